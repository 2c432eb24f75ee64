"""Sockets of connections that fail are closed at once.

kafka-python leaves them to the garbage collector, and a process whose broker is away makes several a second.
Reasons: docs/explanation/kafka-client.md.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from kafka.net.inet import KafkaNetSocket


async def _connect(
    self: Any, net: Any, address: Sequence[Any], socket_options: Sequence[Any] = (), timeout_at: Any = None
) -> socket.socket:
    """Connect a socket, as the patched method does, but close it on failure."""
    family, kind, protocol, _, place = address
    made: socket.socket = self.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        for option in socket_options:
            made.setsockopt(*option)
        connected: socket.socket = await self.sock_connect(net, made, place, timeout_at=timeout_at)
        return connected
    except BaseException:  # also where its client is closed meanwhile, which ends the coroutine
        made.close()
        raise


def install() -> None:
    """Patch the client; harmless when repeated."""
    KafkaNetSocket.connect = _connect
