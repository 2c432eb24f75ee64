"""Whether the ledger admits a stream as it is configured."""

from __future__ import annotations

from typing import Any

from streaming_pca.privacy.ledger import Ledger, Standing
from streaming_pca.privacy.parameters import format_rational
from streaming_pca.service.errors import StreamRefused
from streaming_pca.settings import StreamSettings

__all__ = ["check_admission", "check_opened"]


def check_opened(stream: StreamSettings, ledger: Ledger) -> None:
    """Refuse a ledger without a cap, or with another one than the stream's settings name.

    Raises
    ------
    StreamRefused
    """
    opened = ledger.opened
    if opened is None:
        raise StreamRefused(
            f"ledger {stream.ledger_topic!r} is not open: set a cap with "
            "`streaming-pca topics create --config FILE --cap EPSILON,DELTA`"
        )
    cap = stream.cap
    if cap is not None and cap != opened.cap:
        raise StreamRefused(
            f"stream.cap is ({format_rational(cap.epsilon)}, {format_rational(cap.delta)}), "
            f"the ledger was opened with ({format_rational(opened.cap.epsilon)}, "
            f"{format_rational(opened.cap.delta)}): set stream.cap to that, or remove it"
        )


def check_admission(stream: StreamSettings, ledger: Ledger) -> None:
    """Refuse a stream that could not reserve, whatever its records.

    Raises
    ------
    StreamRefused
    """
    check_opened(stream, ledger)
    name, job = stream.name, ledger.job(stream.name)
    if job.standing is Standing.RETIRED:
        raise StreamRefused(f"stream {name!r} is retired, which is final: choose a new stream.name")
    if job.charges:
        raise StreamRefused(
            f"{name!r} is a job with charges for releases made elsewhere: choose a new stream.name"
        )
    promised = job.promise
    if promised is None:
        return
    for key, value in stream.promise.items():
        if promised.get(key) != value:
            raise StreamRefused(
                f"stream.{key} is {_short(value)}, but the ledger has promised "
                f"{_short(promised.get(key))} for stream {name!r}: "
                "set it back, or choose a new stream.name"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
