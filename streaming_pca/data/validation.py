"""Validation of payloads and of a map, with reasons, for the records' holder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.codec import FORMATS, OCTETS, Format, Message, PayloadCodec
from streaming_pca.data.features.records import JSON, find
from streaming_pca.data.features.row_map import RowMap
from streaming_pca.data.features.values import unix_seconds
from streaming_pca.data.payloads import MalformedPayload
from streaming_pca.data.records import RecordKind, is_symmetric
from streaming_pca.text import first_line

_YEAR = 365 * 86400
_MOST_NAMED = 5  # null rows that are named, where each row is a record
_MARKS: tuple[tuple[bytes, str, Format], ...] = (  # beginnings of formats that a header must name
    (b"{", "JSON", "json"),
    (b"[", "JSON", "json"),
    (b"\x93NUMPY", "an npy file", "npy"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "arrow"),
)
_TEXT = re.compile(rb"[ -~\s]*")


@dataclass(frozen=True)
class PayloadReport:
    """Report on one message, as the worker's decoder reads it."""

    reason: str  # reason why it is, or holds, a null record; "" if it does not
    rows: int  # rows of numbers that the decoder takes from it; 0 for a null record
    null_rows: int = 0  # rows among them that are null records, where each row is a record
    least: float | None = None
    largest: float | None = None  # range of its finite numbers
    hint: str = ""  # format that it seems to have, though nothing names that format; "" for none

    @property
    def is_record(self) -> bool:
        """True if no record of the message is null."""
        return not self.reason


def explain_payload(
    codec: PayloadCodec, message: Message, names: Sequence[str] | None = None, *, pairs: bool = False
) -> PayloadReport:
    """Decode a message as the worker does, and explain why it is null.

    ``pairs`` is true for a stream with ``centering = "pairs"``, whose estimator reads a message of several
    rows as null. The report reveals contents of a payload: it is not part of the service.
    """
    decoded, lengths, users = codec.decode_all([message])
    reason = _fault(codec, message, names)
    nulls = int(np.count_nonzero(~np.isfinite(decoded).all(axis=1)))
    # The reason is found apart from the worker's own decoder, and must never contradict it.
    if (reason == "") != (int(lengths[0]) > 0 and nulls == 0):
        raise AssertionError(f"the decoder takes {int(lengths[0])} rows, but the reason is {reason!r}")
    if not reason and users is not None and not users.any():
        place = None if codec.fields is None else codec.fields.user_field
        what = "no key" if place is None else f"no field {'.'.join(place)!r}"
        reason, lengths = f"it has {what} to name the user", np.zeros(1, np.int64)
    if not reason and pairs and codec.unit != "row" and int(lengths[0]) > 1:
        reason = f'it has {int(lengths[0])} rows, but centering = "pairs" reads records of one row'
        lengths = np.zeros(1, np.int64)
    finite = decoded[np.isfinite(decoded)]
    least, largest = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    return PayloadReport(reason, int(lengths[0]), nulls, least, largest, _hint(codec, message))


def _fault(codec: PayloadCodec, message: Message, names: Sequence[str] | None) -> str:
    faults: dict[int, str] = {}
    try:
        rows = codec.read_rows(message, faults)
    except MalformedPayload as error:
        return str(error)
    except Exception as error:
        # From numpy, pyarrow or a codec of text.
        return f"it cannot be read: {type(error).__name__}: {first_line(error)}"
    if not len(rows):
        return "it has no rows"
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        # One row of a factor is enough; where rows are records, each is another null record.
        shown = wrong[: _MOST_NAMED if codec.unit == "row" else 1].tolist()
        head = "row {}: " if len(rows) > 1 else ""
        texts = [head.format(i) + (faults.get(i) or _not_finite(rows[i], names)) for i in shown]
        more = len(wrong) - len(shown)
        return "; ".join(texts) + (f"; and {more} more rows" if more and codec.unit == "row" else "")
    if codec.kind is RecordKind.MATRIX and not is_symmetric(rows):
        return "the matrix is not symmetric"
    return ""


def _not_finite(row: NDArray[np.floating], names: Sequence[str] | None) -> str:
    """Name the first number that is not finite; positions count from 0."""
    at = int(np.flatnonzero(~np.isfinite(row))[0])
    named = "" if names is None or len(names) != len(row) else f" ({names[at]})"
    return f"{'NaN' if np.isnan(row[at]) else 'infinity'} at position {at}{named}"


def _hint(codec: PayloadCodec, message: Message) -> str:
    """Name the format that a payload of plain octets seems to have."""
    if codec.content_type != OCTETS or any(name == "content-type" for name, _ in message.headers or ()):
        return ""
    start = (message.value or b"")[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    for mark, name, short in _MARKS:
        # A number of plain octets can begin with a bracket, but hardly continues as text.
        if start.startswith(mark) and (name != "JSON" or _TEXT.fullmatch(start)):
            return (
                f"it looks like {name}, but has no header content-type: send the header "
                f'"content-type: {FORMATS[short]}", or set stream.format = "{short}"'
            )
    return ""


@dataclass
class _Message:
    value: bytes | None
    key: bytes | None = b"key"
    headers: Sequence[tuple[str, bytes]] = (("content-type", JSON.encode()),)


@dataclass
class FeatureReport:
    """Counts of one feature's values."""

    name: str
    missing: int = 0  # records that lack the field, with or without a stand-in
    refused: int = 0  # records with a value that the feature refuses, or without one and without a stand-in
    clamped: int = 0  # records with a number beyond the bounds
    in_categories: int = 0  # records with a word of the vocabulary
    outside_categories: int = 0  # records with another word
    in_1970: int = 0  # records whose number is a time in 1970, as of a unit that is too small


@dataclass
class MapReport:
    """Counts of records, and of the values of each feature."""

    records: int = 0
    null: int = 0
    unread: int = 0  # null records that are not an object of these fields
    features: list[FeatureReport] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)  # first null records, from 0, and why


def check_records(
    codec: PayloadCodec, texts: Sequence[bytes], reasons: int, *, pairs: bool = False
) -> MapReport:
    """Apply a stream's map to JSON objects; report reasons of at most ``reasons`` null records."""
    assert codec.fields is not None, "a stream without features"
    rows = codec.fields.map
    report = MapReport(len(texts), features=[FeatureReport(feature.name) for feature in rows.features])
    for place, text in enumerate(texts):
        # The worker's decoder decides, for a message with a key.
        reason = explain_payload(codec, _Message(text), pairs=pairs).reason
        values = codec.fields.json_values(text)
        report.null += bool(reason)
        if reason and len(report.reasons) < reasons:
            report.reasons.append((place, reason))
        report.unread += values is None
        values = values or _values_of_unread(text, rows)
        for feature, value, own in zip(rows.features, values, report.features, strict=False):
            columns = feature.column_values(value)
            own.missing += value is None
            if feature.kind == "time" and isinstance(value, (int, float)):
                own.in_1970 += 0 <= unix_seconds(value, feature.unit) < _YEAR
            if not np.isfinite(columns).all():
                own.refused += 1
            elif feature.categories is not None and value is not None:
                is_in = bool(columns[: len(feature.categories)].any())
                own.in_categories += is_in
                own.outside_categories += not is_in
            elif feature.column_bounds is not None:
                own.clamped += bool((columns != columns.clip(*feature.column_bounds)).any())
    return report


def _values_of_unread(text: bytes, rows: RowMap) -> list[Any]:
    """Return the values in a record that the worker's decoder refuses; none of what is not an object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [find(record, place) for place in rows.places] if isinstance(record, dict) else []
