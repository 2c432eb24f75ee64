"""Payloads of the chaos loop, good and bad, with the expected result of decoding each.

Like :mod:`tests.kafka.faults.chaos_check` it imports nothing from the package.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

Headers = Sequence[tuple[str, bytes | None]]
Payload = tuple[bytes | None, Headers]

_MOST_ROWS = 64
_JSON = [("content-type", b"application/json")]
_NPY = [("content-type", b"application/x-npy")]
_ARROW = [("content-type", b"application/vnd.apache.arrow.stream")]
_DOUBLE = [("content-type", b"application/octet-stream"), ("dtype", b"float64")]


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def _arrow(rows: np.ndarray) -> bytes:
    batch = pa.record_batch([pa.array(column) for column in rows.T], [f"c{i}" for i in range(rows.shape[1])])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


# -- good ------------------------------------------------------------------

# Odd headers do not make a record bad.
GOOD: dict[str, Callable[[np.ndarray], Payload]] = {
    "plain": lambda x: (x.astype("<f4").tobytes(), []),
    "octets": lambda x: (x.astype("<f4").tobytes(), [("content-type", b"application/octet-stream")]),
    "double": lambda x: (x.astype("<f8").tobytes(), _DOUBLE),
    "npy": lambda x: (_npy(x), _NPY),
    "json": lambda x: (json.dumps({"rows": x.tolist()}).encode(), _JSON),
    "arrow": lambda x: (_arrow(x), _ARROW),
    "many headers": lambda x: (x.astype("<f4").tobytes(), [(f"h{i}", b"x") for i in range(200)]),
    "huge header": lambda x: (x.astype("<f4").tobytes(), [("huge", b"x" * 200_000)]),
    "odd header names": lambda x: (x.astype("<f4").tobytes(), [("", b""), ("\x00", None), ("\u2028é", b"")]),
    "header twice": lambda x: (
        x.astype("<f4").tobytes(),
        [("content-type", b"nonsense"), ("content-type", b"application/octet-stream")],
    ),
}


def good(kind: str, rows: np.ndarray) -> tuple[Payload, bytes]:
    """Return a payload of rows (r, d), and the expected result of decoding it."""
    single = kind in ("plain", "octets", "many headers", "huge header", "odd header names", "header twice")
    rows = rows.astype("<f4") if single else rows.astype("<f8")
    return GOOD[kind](rows), rows.astype("<f8").tobytes()


# -- bad -------------------------------------------------------------------


def _with(rows: np.ndarray, value: float) -> np.ndarray:
    spoilt = rows.copy()
    spoilt[-1, -1] = value
    return spoilt


def _octets(rows: np.ndarray) -> bytes:
    return rows.astype("<f4").tobytes()


BAD: dict[str, Callable[[np.ndarray], Payload]] = {
    "no value": lambda x: (None, []),
    "empty": lambda x: (b"", []),
    "one byte": lambda x: (b"\x00", []),
    "a number too few": lambda x: (_octets(x)[:-4], []),
    "a byte too many": lambda x: (_octets(x) + b"\x00", []),
    "NaN": lambda x: (_octets(_with(x, np.nan)), []),
    "infinity": lambda x: (_octets(_with(x, np.inf)), []),
    "minus infinity": lambda x: (_octets(_with(x, -np.inf)), []),
    "NaN in double": lambda x: (_with(x, np.nan).astype("<f8").tobytes(), _DOUBLE),
    "signalling NaN": lambda x: (_octets(x)[:-4] + b"\x01\x00\xa0\x7f", []),
    "too many rows": lambda x: (_octets(np.ones((_MOST_ROWS + 1, x.shape[1]))), []),
    "200 kB": lambda x: (b"\x00" * 200_000, []),
    "unknown dtype": lambda x: (_octets(x), [("dtype", b"float16")]),
    "dtype of strange bytes": lambda x: (_octets(x), [("dtype", b"\xff\xfe")]),
    "dtype without a value": lambda x: (_octets(x), [("dtype", None)]),
    "unknown content type": lambda x: (_octets(x), [("content-type", b"text/plain")]),
    "content type of strange bytes": lambda x: (_octets(x), [("content-type", b"\xff\xfe")]),
    "content type without a value": lambda x: (_octets(x), [("content-type", None)]),
    "of kind matrix": lambda x: (_octets(x), [("record-kind", b"matrix")]),
    "of kind local": lambda x: (_octets(x), [("record-kind", b"local")]),
    "of no kind": lambda x: (_octets(x), [("record-kind", b"")]),
    "JSON without an end": lambda x: (b'{"x": [1, 2', _JSON),
    "JSON of depth": lambda x: (b'{"x": ' + b"[" * 1500 + b"]" * 1500 + b"}", _JSON),
    "JSON too short": lambda x: (json.dumps({"x": x[0, :-1].tolist()}).encode(), _JSON),
    "JSON of texts": lambda x: (json.dumps({"x": [str(v) for v in x[0]]}).encode(), _JSON),
    "JSON of NaN": lambda x: (json.dumps({"x": [float("nan")] * x.shape[1]}).encode(), _JSON),
    "JSON of 3,000 digits": lambda x: (b'{"x": [' + b"9" * 3000 + b", 0" * (x.shape[1] - 1) + b"]}", _JSON),
    "JSON of two keys": lambda x: (json.dumps({"x": x[0].tolist(), "y": 1}).encode(), _JSON),
    "JSON of null": lambda x: (b"null", _JSON),
    "JSON not in UTF-8": lambda x: (b'{"x": [\xff\xfe]}', _JSON),
    "JSON of truth": lambda x: (json.dumps({"x": [True] * x.shape[1]}).encode(), _JSON),
    "npy of another magic": lambda x: (b"\x93NUMPX" + _npy(x)[6:], _NPY),
    "npy cut short": lambda x: (_npy(x)[:-1], _NPY),
    "npy of objects": lambda x: (_npy(np.array([{"a": 1}] * x.shape[1], dtype=object)), _NPY),
    "npy of another shape": lambda x: (_npy(x[:, :-1]), _NPY),
    "npy of complex numbers": lambda x: (_npy(x.astype(complex)), _NPY),
    "npy that promises more": lambda x: (_npy(x).replace(b"'shape': (", b"'shape': (9", 1), _NPY),
    "arrow cut short": lambda x: (_arrow(x)[:-40], _ARROW),
    "arrow of noise": lambda x: (b"\xff" * 300, _ARROW),
    "arrow of too few columns": lambda x: (_arrow(x[:, :-1]), _ARROW),
    "arrow of NaN": lambda x: (_arrow(_with(x, np.nan)), _ARROW),
}
assert len(BAD) >= 30


def draw(dice: random.Random, dim: int) -> tuple[Payload, str, bytes | None]:
    """Draw a payload: value and headers, its kind, and the expected result of decoding it."""
    rows = np.array(
        [[dice.gauss(0, 2.0 / (1 + i)) for i in range(dim)] for _ in range(dice.choice((1, 1, 2)))]
    )
    if dice.random() < 0.3:
        kind = dice.choice(list(BAD))
        return BAD[kind](rows), kind, None
    kind = dice.choices(list(GOOD), [12, 12, 3, 3, 3, 3, 1, 1, 1, 1])[0]
    payload, meaning = good(kind, rows)
    return payload, kind, meaning
