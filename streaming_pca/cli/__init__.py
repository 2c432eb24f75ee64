"""The command line."""

from streaming_pca.cli.app import main

__all__ = ["main"]
