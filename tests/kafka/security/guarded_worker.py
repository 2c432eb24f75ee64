"""The worker's command as an unprivileged user, with every log at its most verbose.

It loads the compiled kernels as the user of the tests, because another user cannot write that user's
cache. Then it becomes the user whose number is the first argument. The remaining arguments are those of
``streaming-pca``. With BREAK set, computing a batch fails with a text of secrets and records.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import sys
from typing import Any

import numpy as np
from numba.core import caching

from streaming_pca.cli import main
from streaming_pca.service import logs, session
from tests.kafka.child import replace, warm_up
from tests.security.needles import ROW, secret

_TALKATIVE = (
    "asyncio",
    "kafka.admin.client",
    "kafka.net.sasl",
    "streaming_pca",
    "uvicorn.access",
    "uvicorn.error",
)


def configure_everything(settings: Any) -> None:
    """Log as configured, and everything that libraries log."""
    configure(settings)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.DEBUG)


def fail(*_: Any) -> Any:
    """Fail like a library that quotes the value it cannot handle."""
    raise ValueError(f"{secret('of-a-bug')} could not be read: {np.array(ROW)}")


if __name__ == "__main__":
    user, *command = sys.argv[1:]
    warm_up()
    # It may read the kernels of the user of the tests, and does not need to store any.
    replace(caching.InTreeCacheLocator, "ensure_cache_path", lambda self: None)
    if int(user):
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
        # As after an exec, which starts every ordinary process.
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    faulthandler.enable()
    configure, logs.configure_logging = logs.configure_logging, configure_everything
    if os.environ.get("BREAK"):
        replace(session, "compute_batch", fail)
    sys.argv = ["streaming-pca", *command]
    main()
