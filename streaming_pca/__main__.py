"""`python -m streaming_pca`."""

from streaming_pca.cli.app import main

main()
