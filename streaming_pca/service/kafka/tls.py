"""TLS handshakes with a time limit for kafka-python, which has none.

Reasons: docs/explanation/kafka-client.md.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

from kafka.net.transport import KafkaSSLTransport

__all__ = ["install"]

_HANDSHAKE_SECONDS = 5.0


async def _handshake(self: Any) -> None:
    """Shake hands; KafkaTimeoutError after :data:`_HANDSHAKE_SECONDS`."""
    timeout_at = time.monotonic() + _HANDSHAKE_SECONDS
    while True:
        try:
            self._sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await self._net.wait_read(self._sock, timeout_at)
        except ssl.SSLWantWriteError:
            await self._net.wait_write(self._sock, timeout_at)


def install() -> None:
    """Patch the client; harmless when repeated."""
    KafkaSSLTransport.handshake = _handshake
