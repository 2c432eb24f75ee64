"""A socket is read in large pieces, a piece at a time.

kafka-python 3.0.12 reads 4 KiB at a time until nothing is left. Each call gives
up the interpreter's lock, and beside a thread that computes each may wait for
it again: 4,096 times for a fetch of 16 MiB. And as long as a broker sends, no
other connection of the thread has its turn.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaTCPTransport

__all__ = ["PIECE_BYTES", "install"]

PIECE_BYTES = 2**18


def _read_piece(self: Any) -> tuple[bytes, Exception | None]:
    """What is there, up to a piece: whoever calls waits until more is, and is called again."""
    try:
        data: bytes = self._sock.recv(PIECE_BYTES)
    except (BlockingIOError, InterruptedError):
        return b"", None
    except OSError as error:
        return b"", KafkaConnectionError(error)
    # A socket that is readable and has nothing was closed by its other end.
    return data, None if data else KafkaConnectionError("socket disconnected")


def install() -> None:
    """Teach the client; harmless when repeated.

    Not where there is TLS: what it has decrypted does not show at the socket, so it must be read to its end.
    """
    KafkaTCPTransport._sock_recv = _read_piece
