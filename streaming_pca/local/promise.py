"""How a message tells which promise its report keeps."""

from __future__ import annotations

from typing import Final

from streaming_pca.privacy.errors import require_open_unit, require_positive

__all__ = ["KIND_HEADER", "PROMISE_HEADER", "REPORT_KIND", "promise_header", "report_headers"]

KIND_HEADER: Final = "record-kind"
"""Header of a message that holds a report; its value is :data:`REPORT_KIND`."""

PROMISE_HEADER: Final = "local-promise"
"""Header whose value is :func:`promise_header`."""

REPORT_KIND: Final = b"local"

_OCTETS: Final = b"application/octet-stream"


def promise_header(epsilon: float, delta: float) -> bytes:
    """The promise as a header's value, such as ``b"1.0,1e-06"``.

    Two promises have one text only where they are equal: each number is the
    shortest decimal that reads as the same float64.

    Raises
    ------
    ParameterError
        If there is no such promise.
    """
    require_positive("epsilon", epsilon)
    require_open_unit("delta", delta)
    return f"{float(epsilon)!r},{float(delta)!r}".encode("ascii")


def report_headers(epsilon: float, delta: float) -> list[tuple[str, bytes]]:
    """Every header that a message with a report has."""
    return [
        ("content-type", _OCTETS),
        (KIND_HEADER, REPORT_KIND),
        (PROMISE_HEADER, promise_header(epsilon, delta)),
    ]
