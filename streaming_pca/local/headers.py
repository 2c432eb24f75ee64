"""Message headers that name the privacy guarantee of a report."""

from __future__ import annotations

from typing import Final

from streaming_pca.privacy.errors import require_open_unit, require_positive

KIND_HEADER: Final = "record-kind"
"""Name of the header of every report; its value is :data:`REPORT_KIND`."""

CONTRACT_HEADER: Final = "local-promise"
"""Name of the header whose value is :func:`contract_header`."""

REPORT_KIND: Final = b"local"

_OCTETS: Final = b"application/octet-stream"


def contract_header(epsilon: float, delta: float) -> bytes:
    """Return (epsilon, delta) as a header's value, such as ``b"1.0,1e-06"``.

    Two guarantees have the same text only if they are equal: each number is the
    shortest decimal that reads as the same float64.
    """
    require_positive("epsilon", epsilon)
    require_open_unit("delta", delta)
    return f"{float(epsilon)!r},{float(delta)!r}".encode("ascii")


def report_headers(epsilon: float, delta: float) -> list[tuple[str, bytes]]:
    """Return all headers of a message with a report."""
    return [
        ("content-type", _OCTETS),
        (KIND_HEADER, REPORT_KIND),
        (CONTRACT_HEADER, contract_header(epsilon, delta)),
    ]
