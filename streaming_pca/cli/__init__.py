"""The command line."""

import os

# Before numpy is imported: its BLAS threads would occupy the cores that the kernels' own threads
# (streaming_pca.kernels.threads) need. A variable that is set already stays.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from streaming_pca.cli.app import main  # noqa: E402

__all__ = ["main"]
