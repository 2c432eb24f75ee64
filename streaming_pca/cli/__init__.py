"""The command line."""

import os

# Before numpy is imported: its BLAS would spin on the cores that the kernels' own threads
# (streaming_pca.linalg.threads) need. Who sets a variable means it.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from streaming_pca.cli.app import main  # noqa: E402

__all__ = ["main"]
