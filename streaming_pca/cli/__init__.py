"""The command line."""

import os
import signal
import sys

# The first process of a container ignores a signal without a handler, and a worker's own handler comes
# seconds later: without this it would lead, and release, after it was told to stop.
if os.getpid() == 1:
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))

# Before numpy is imported: its BLAS threads would occupy the cores that the kernels' own threads
# (streaming_pca.kernels.threads) need. A variable that is set already stays.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

try:
    from streaming_pca.cli.app import main
except ImportError as error:
    # The version of Kafka's client is a user's mistake; all else is a bug.
    if error.name != "kafka":
        raise
    sys.stderr.write(f"streaming-pca: {error}\n")
    sys.exit(2)

__all__ = ["main"]
