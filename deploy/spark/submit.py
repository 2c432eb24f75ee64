"""Driver for spark-submit: the command `streaming-pca spark`, whose options follow the name of this file."""

import sys

from streaming_pca.cli import main

if __name__ == "__main__":
    sys.argv[:1] = ["streaming-pca", "spark"]
    main()
