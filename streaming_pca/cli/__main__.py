"""`python -m streaming_pca.cli`."""

from streaming_pca.cli.app import main

main()
