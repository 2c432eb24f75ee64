"""Smaller fetches over a link that is too slow for the present size.

A fetch that takes longer than a request may is thrown away and asked for again, of the same size, for ever
(docs/explanation/kafka-client.md).
"""

from __future__ import annotations

import logging
from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.errors import RequestTimedOutError

__all__ = ["LEAST_FETCH_BYTES", "shrink_on_timeout"]

log = logging.getLogger(__name__)

LEAST_FETCH_BYTES = 64 * 1024
_SHRINKING = 4
_SIZES = ("fetch_max_bytes", "max_partition_fetch_bytes")


def shrink_on_timeout(fetcher: Fetcher, request_timeout_ms: int) -> None:
    """Let a consumer ask for a quarter after each fetch that was not answered in time.

    Parameters
    ----------
    fetcher : Fetcher
        The consumer's own. Its sizes stay small until the consumer is replaced, by the next session.
    request_timeout_ms : int
    """
    handle = fetcher._handle_fetch_error

    def handle_and_shrink(node: Any, error: Exception) -> None:
        handle(node, error)
        size = fetcher.config[_SIZES[0]]
        if not isinstance(error, RequestTimedOutError) or size <= LEAST_FETCH_BYTES:
            return
        smaller = max(size // _SHRINKING, LEAST_FETCH_BYTES)
        for name in _SIZES:
            fetcher.config[name] = min(fetcher.config[name], smaller)
        log.warning(
            "the link to the broker is slow, or the broker: a fetch of up to %d KiB was not answered within "
            "kafka.request_timeout_ms = %d; fetches are of %d KiB now",
            size // 1024,
            request_timeout_ms,
            smaller // 1024,
        )

    fetcher._handle_fetch_error = handle_and_shrink
