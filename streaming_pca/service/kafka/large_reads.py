"""Faster sockets for kafka-python: larger reads, fewer copies, no log calls.

With these patches a consumer needs a third of the time. Reasons: docs/explanation/kafka-client.md.
"""

from __future__ import annotations

import selectors
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes

PIECE_BYTES = 2**18
_LEAST_SHARED_BYTES = 2**16


def _read_piece(self: Any) -> tuple[bytes, Exception | None]:
    """Read up to a piece; the caller is called again when more data is available.

    The rest of a large response is read directly into its buffer; then the result is empty and nothing is
    copied.
    """
    parser = getattr(self._protocol, "parser", None)
    answer = parser._rbuffer if parser is not None and parser._receiving else None
    data = b""
    try:
        if answer is not None and len(answer) - answer._idx > _LEAST_SHARED_BYTES:
            # Leave the last byte to the client's own code, which then notices that the response is
            # complete.
            count: int = self._sock.recv_into(memoryview(answer)[answer._idx : -1])
            answer._idx += count
        else:
            data = self._sock.recv(PIECE_BYTES)
            count = len(data)
    except (BlockingIOError, InterruptedError):
        return b"", None
    except OSError as error:
        return b"", KafkaConnectionError(error)
    # A readable socket without data was closed by the peer.
    return data, None if count else KafkaConnectionError("socket disconnected")


_copy = KafkaBytes.read


def _read_rest(self: Any, nbytes: int | None = None) -> bytes | memoryview:
    """Return the patched method's bytes, without copying the rest of a large response.

    The decoder accepts bytes and memoryviews, and a complete response never changes.
    """
    if nbytes is not None or len(self) - self._idx < _LEAST_SHARED_BYTES:
        few: bytes = _copy(self, nbytes)
        return few
    rest = memoryview(self)[self._idx :]
    self._idx = len(self)
    return rest


class KeySelector(selectors.DefaultSelector):
    """Selector without a log message for an unregistered file."""

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        # The standard library's table corrects itself when a closed file's number is reused.
        me: Any = self
        key: selectors.SelectorKey | None = me._fd_to_key.get(me._fileobj_lookup(fileobj))
        if key is None:
            raise KeyError(fileobj)
        return key


def install() -> None:
    """Patch the client; idempotent.

    TLS keeps the client's own reads: decrypted data is not visible at the socket, so it must be read
    completely.
    """
    KafkaTCPTransport._sock_recv = _read_piece
    KafkaBytes.read = _read_rest
