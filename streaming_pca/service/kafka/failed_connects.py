"""Immediate closing of the sockets of failed connections.

kafka-python leaves them to the garbage collector, and a process whose broker is unavailable opens several a
second. Reasons: docs/explanation/kafka-client.md.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from kafka.net.inet import KafkaNetSocket


async def _connect(
    self: Any, net: Any, address: Sequence[Any], socket_options: Sequence[Any] = (), timeout_at: Any = None
) -> socket.socket:
    """Connect a socket like the patched method, but close it on failure."""
    family, kind, protocol, _, place = address
    made: socket.socket = self.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        for option in socket_options:
            made.setsockopt(*option)
        connected: socket.socket = await self.sock_connect(net, made, place, timeout_at=timeout_at)
        return connected
    except BaseException:  # also if its client is closed, which ends the coroutine
        made.close()
        raise


def install() -> None:
    """Patch the client; idempotent."""
    KafkaNetSocket.connect = _connect
