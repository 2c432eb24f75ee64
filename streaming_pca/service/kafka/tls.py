"""TLS for kafka-python: handshakes end in time, and a failed one leaves no socket.

Reasons: docs/explanation/kafka-client.md.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaSSLTransport

_HANDSHAKE_SECONDS = 5.0


_make = KafkaSSLTransport.__init__


def _init(self: Any, net: Any, sock: socket.socket, **configs: Any) -> None:
    """Make a transport, as the patched method does; KafkaConnectionError for files that cannot be used.

    The client would pass the file's own error to a waiting request, which expects none, and keep the socket.
    """
    try:
        _make(self, net, sock, **configs)
    except OSError as error:
        sock.close()
        raise KafkaConnectionError(f"the files of kafka.ssl_* cannot be used: {error}") from None


async def _handshake(self: Any) -> None:
    """Shake hands; KafkaTimeoutError after :data:`_HANDSHAKE_SECONDS`. A failure closes the socket."""
    timeout_at = time.monotonic() + _HANDSHAKE_SECONDS
    try:
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)
    except BaseException:  # also where its client is closed meanwhile, which ends the coroutine
        self._sock.close()
        raise


def install() -> None:
    """Patch the client; harmless when repeated."""
    KafkaSSLTransport.__init__ = _init
    KafkaSSLTransport.handshake = _handshake
