"""TLS for kafka-python: handshakes have a time limit, and failures close the socket.

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
    """Make a transport like the patched method; raise KafkaConnectionError for unusable files.

    The client would pass the file's own error to a waiting request, which does not expect it, and keep the
    socket open.
    """
    try:
        _make(self, net, sock, **configs)
    except OSError as error:
        sock.close()
        raise KafkaConnectionError(f"the files of kafka.ssl_* cannot be used: {error}") from None


async def _handshake(self: Any) -> None:
    """Shake hands; raise KafkaTimeoutError after :data:`_HANDSHAKE_SECONDS`. A failure closes the socket."""
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
    except BaseException:  # also if its client is closed, which ends the coroutine
        self._sock.close()
        raise


def install() -> None:
    """Patch the client; idempotent."""
    KafkaSSLTransport.__init__ = _init
    KafkaSSLTransport.handshake = _handshake
