"""A consumer's sockets: read in large pieces, a piece at a time, and copied no more than needed.

kafka-python 3.0.12 reads 4 KiB at a time until nothing is left. Each call gives
up the interpreter's lock, and beside a thread that computes each may wait for
it again: 4,096 times for a fetch of 16 MiB. And as long as a broker sends, no
other connection of the thread has its turn.

It copies an answer twice, whole, before it decodes it. And whenever it waits for a
socket, the standard library writes a message, which nobody reads, about a socket
that is not registered: four calls of the system that give up the lock, too.
Without all this a consumer takes a third of the time.
"""

from __future__ import annotations

import selectors
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes

__all__ = ["PIECE_BYTES", "KeySelector", "install"]

PIECE_BYTES = 2**18
_LEAST_SHARED_BYTES = 2**16


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


_copy = KafkaBytes.read


def _read_rest(self: Any, nbytes: int | None = None) -> bytes | memoryview:
    """The same bytes: where they are all that is left of a large answer, as they lie there.

    Its decoder takes both, and nobody writes to an answer that is complete.
    """
    if nbytes is not None or len(self) - self._idx < _LEAST_SHARED_BYTES:
        few: bytes = _copy(self, nbytes)
        return few
    rest = memoryview(self)[self._idx :]
    self._idx = len(self)
    return rest


class KeySelector(selectors.DefaultSelector):
    """One that says in no words that a file is not registered."""

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        # By the standard library's own table, which heals itself where a closed file's number is used again.
        me: Any = self
        key: selectors.SelectorKey | None = me._fd_to_key.get(me._fileobj_lookup(fileobj))
        if key is None:
            raise KeyError(fileobj)
        return key


def install() -> None:
    """Teach the client; harmless when repeated.

    Pieces not where there is TLS: what it has decrypted does not show at the socket, so it must be read
    to its end.
    """
    KafkaTCPTransport._sock_recv = _read_piece
    KafkaBytes.read = _read_rest
