"""Reader of records with named fields: from payloads to rows and users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.json_objects import JsonObjects
from streaming_pca.data.features.paths import Path
from streaming_pca.data.features.row_map import RowMap
from streaming_pca.data.payloads import MalformedPayload, split_values

__all__ = ["MOST_OBJECT_BYTES", "FieldReader"]

MOST_OBJECT_BYTES = 2**20
"""Longest text of one record."""

_BLANK = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REGISTERED = 5
"""Bytes of Confluent's wire format before the text: a zero, and the schema's number."""


class FieldReader:
    """Reader of the fields that a map needs, and of the user's.

    Parameters
    ----------
    features : sequence of Feature
    user_field : path, optional
        Place of the user's name, a text or a whole number, where the message key is not the user.

    Attributes
    ----------
    map : RowMap
    user_field : path or None
    """

    def __init__(self, features: Sequence[Feature], user_field: Path | None = None) -> None:
        self.map = RowMap(features)
        self.user_field = user_field
        self._json = JsonObjects([*self.map.places, *([] if user_field is None else [user_field])])

    def __reduce__(self) -> Any:
        return FieldReader, (self.map.features, self.user_field)

    def json_records(self, value: bytes, most: int, faults: dict[int, str] | None = None) -> list[Any]:
        """Return the records of a JSON object, or of a list of them; None for other values.

        In a list no record's text disturbs another's: texts are separated before any is parsed. ``faults``
        receives why a record is no row of the map.

        Raises
        ------
        MalformedPayload
            If the payload has no such structure, or more than ``most`` records.
        """
        if value[:1] == b"\0":
            value = value[_REGISTERED:]
        text = value.removeprefix(_BYTE_ORDER_MARK).strip(_BLANK)
        if text[:1] != b"[":
            texts = [text]
        else:
            texts, end = split_values(text[1:], most)
            if text[1:][end:] != b"]":
                raise MalformedPayload("more follows its list of objects")
        if faults is not None:
            faults |= {i: fault for i, each in enumerate(texts) if (fault := self._fault(each))}
        return [self._json_record(each) for each in texts]

    def many_json_records(
        self, values: Sequence[bytes | memoryview | None], most: int, limit: float
    ) -> tuple[list[Any], list[int]]:
        """Return the records of all payloads in order, and the number of each one's; 0 for a null payload.

        A payload has at most ``limit`` bytes.
        """
        records: list[Any] = []
        counts: list[int] = []
        decode: Callable[[Any], Any] = self._json.decode
        for value in values:
            count = 0
            if value is not None and len(value) <= MOST_OBJECT_BYTES:
                try:
                    # Nearly all payloads are one object.
                    records.append(decode(value))
                    counts.append(1)
                    continue
                except Exception:
                    count = 0
            if value is not None and len(value) <= limit:
                try:
                    found = self.json_records(bytes(value), most)
                except Exception:
                    found = []
                records += found
                count = len(found)
            counts.append(count)
        return records, counts

    def _json_record(self, text: bytes) -> Any:
        if len(text) > MOST_OBJECT_BYTES:
            return None
        try:
            return self._json.decode(text)
        except Exception:
            # An error of a decoder must not end the worker, nor disturb the records beside it.
            return None

    def rows(self, records: Sequence[Any]) -> NDArray[np.float64]:
        """Return a row for each record (n, d); NaNs for None, and where the map refuses it."""
        there = self._there(records)
        found = self.map.rows([list(map(get, there)) for get in self._getters()], len(there))
        if len(there) == len(records):
            return found
        rows = np.full((len(records), self.map.dim), np.nan)
        rows[[record is not None for record in records]] = found
        return rows

    def users(self, records: Sequence[Any]) -> list[bytes | None]:
        """Return the user of each record; None where none is named."""
        if self.user_field is None:
            raise ValueError("no field names the user")
        get = self._json.getters[-1]
        return [None if record is None else _user(get(record)) for record in records]

    def _fault(self, text: bytes) -> str:
        faults: dict[int, str] = {}
        self.values_of(text, faults)
        return faults.get(0, "")

    def values_of(self, text: bytes, faults: dict[int, str]) -> list[Any] | None:
        """Return the values of a JSON object's fields; None if it is none.

        ``faults`` receives at 0 why it is no row of the map, for who holds the records.
        """
        if len(text) > MOST_OBJECT_BYTES:
            faults[0] = f"its text is longer than {MOST_OBJECT_BYTES} octets"
            return None
        try:
            record = self._json.decode(text)
        except RecursionError:
            faults[0] = "it nests too deeply"
            return None
        except Exception as error:
            faults[0] = f"it is no JSON object with these fields: {error}"
            return None
        values = [get(record) for get in self._getters()]
        if fault := self.map.fault(values):
            faults[0] = fault
        return values

    def _getters(self) -> list[Any]:
        return self._json.getters[: len(self.map.features)]

    @staticmethod
    def _there(records: Sequence[Any]) -> Sequence[Any]:
        return records if all(r is not None for r in records) else [r for r in records if r is not None]


def _user(value: Any) -> bytes | None:
    """Return a user's name as bytes; None unless it is a text that is not empty, or a whole number."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass") or None
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value if abs(value) < 2**64 else None
    return None
