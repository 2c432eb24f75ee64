"""Smaller fetches over a link that is too slow for the current size.

A fetch that exceeds the request timeout is discarded and repeated with the same size, forever
(docs/explanation/kafka-client.md).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.errors import RequestTimedOutError

log = logging.getLogger(__name__)

LEAST_FETCH_BYTES = 64 * 1024
_SHRINKING = 4
_SIZES = ("fetch_max_bytes", "max_partition_fetch_bytes")
_REMEMBERED_SECONDS = 600.0
"""Time that new consumers of the process start with the reduced size."""


class _Limit:
    """Fetch size of the process that a slow link has recently allowed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size, self._until = sys.maxsize, 0.0

    @property
    def bytes(self) -> int:
        return self._size if time.monotonic() < self._until else sys.maxsize

    def lower(self, size: int) -> bool:
        """Set a lower limit; return False if it is already as low."""
        with self._lock:
            if self.bytes <= size:
                return False
            self._size, self._until = size, time.monotonic() + _REMEMBERED_SECONDS
            return True


_limit = _Limit()


def shrink_on_timeout(fetcher: Fetcher, request_timeout_ms: int) -> None:
    """Quarter a consumer's fetch size after each timed-out fetch.

    Parameters
    ----------
    fetcher : Fetcher
        The consumer's fetcher.
    """
    handle = fetcher._handle_fetch_error

    def limit(size: int) -> None:
        for name in _SIZES:
            fetcher.config[name] = min(fetcher.config[name], size)

    def handle_and_shrink(node: Any, error: Exception) -> None:
        handle(node, error)
        size = fetcher.config[_SIZES[0]]
        if not isinstance(error, RequestTimedOutError) or size <= LEAST_FETCH_BYTES:
            return
        smaller = max(size // _SHRINKING, LEAST_FETCH_BYTES)
        limit(smaller)
        if _limit.lower(smaller):
            log.warning(
                "the link to the broker is slow, or the broker: a fetch of up to %d KiB was not answered "
                "within kafka.request_timeout_ms = %d; fetches are of %d KiB now",
                size // 1024,
                request_timeout_ms,
                smaller // 1024,
            )

    limit(_limit.bytes)
    fetcher._handle_fetch_error = handle_and_shrink
