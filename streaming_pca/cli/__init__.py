"""The command line."""

import os
import signal
import sys

# The first process of a container ignores signals without a handler, and a worker installs its own handler
# only seconds later: without this one it would lead, and release, after a SIGTERM.
if os.getpid() == 1:
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))

# Before the import of numpy, whose BLAS threads would occupy the cores that the kernels' own threads
# (streaming_pca.kernels.threads) need. Variables that are already set stay unchanged.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

try:
    from streaming_pca.cli.app import main
except ImportError as error:
    # A wrong version of Kafka's client is a user's mistake; other errors are bugs.
    if error.name != "kafka":
        raise
    sys.stderr.write(f"streaming-pca: {error}\n")
    sys.exit(2)

__all__ = ["main"]
