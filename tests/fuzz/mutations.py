"""Mutations of inputs: of bytes, and of the structures in them."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

__all__ = ["mutate", "with_zip_parts", "zip_parts"]

_NUMBERS = (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_TOKENS = (
    b"1e308",
    b"-1e308",
    b"1e309",
    b"5e-324",
    b"NaN",
    b"Infinity",
    b"-0",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"9" * 5000,
    b"1e999999999",
    b"-" * 3,
    b"[" * 2000,
    b'{"a":' * 2000,
    b"," * 50,
    b"'",
    b"\\",
    b"\0",
    b"\r\n",
    struct.pack("<d", float("nan")),
    struct.pack("<Q", 0x7FF0000000000001),
    struct.pack("<d", 5e-324),
    struct.pack("<f", float("inf")),
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    10**4299,
    1e308,
    -1e308,
    5e-324,
    float("inf"),
    float("nan"),
    "",
    "inf",
    "1/0",
    "1e999",
    "1e-9_9_9_9_9_9_9",
    "\ud800",
    "\0",
    "x" * 10_000,
    [],
    {},
    [[]],
    [None] * 1000,
    {"a": {"b": [1, {"c": None}]}},
)


def mutate(dice: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Make an input from one or two seeds."""
    data = dice.choice(seeds)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 6))):
        data = dice.choice(_MUTATIONS)(dice, data, seeds)
    return data


Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def _flip(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        if out:
            out[dice.randrange(len(out))] = dice.randrange(256)
    return bytes(out)


def _truncate(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    return (
        data[: dice.randrange(len(data) + 1)]
        if dice.random() < 0.7
        else data[dice.randrange(len(data) + 1) :]
    )


def _number(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Overwrite a field by an extreme number, of either endianness."""
    size = dice.choice((1, 2, 4, 8))
    number = (dice.choice(_NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, dice.choice(("little", "big")))
    at = dice.randrange(max(min(len(data), dice.choice((16, 64, 10**9))), 1))
    return data[:at] + number + data[at + size :]


def _token(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at, gone = dice.randrange(len(data) + 1), dice.choice((0, 0, 1, 4, 8))
    return data[:at] + dice.choice(_TOKENS) + data[at + gone :]


def _repeat(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    a = dice.randrange(len(data) + 1)
    piece = data[a : a + dice.choice((1, 4, 16, 100))]
    return data[:a] + piece * dice.choice((2, 10, 1000)) + data[a:]


def _splice(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = dice.choice(seeds)
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


def _reverse(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Reverse the endianness of a run of numbers."""
    size = dice.choice((2, 4, 8))
    a = dice.randrange(len(data) + 1)
    b = a + (len(data) - a) // size * size
    return data[:a] + b"".join(data[i : i + size][::-1] for i in range(a, b, size)) + data[b:]


def _json(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Change one value of a JSON text, anywhere in the bytes."""
    start = data.find(b"{")
    with suppress(ValueError, RecursionError):
        value, end = json.JSONDecoder().raw_decode(data[start:].decode("latin-1"))
        if start >= 0 and isinstance(value, dict):
            text = json.dumps(_changed(dice, value), separators=dice.choice(((",", ":"), (", ", ": "))))
            # Sometimes repeat a key.
            if dice.random() < 0.1 and len(value) > 1:
                text = text[:-1] + "," + json.dumps({dice.choice(list(value)): dice.choice(_VALUES)})[1:]
            return data[:start] + text.encode("latin-1") + data[start + end :]
    return _flip(dice, data, seeds)


def _changed(dice: random.Random, value: Any) -> Any:
    """Return JSON data with one change at a random depth."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        fate = dice.random()
        if fate < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if fate < 0.25:
            return value | {dice.choice(("x", "__class__", "", "1", key + "0")): value[key]}
        return value | {key: _changed(dice, value[key])}
    if isinstance(value, list) and value and dice.random() < 0.8:
        at = dice.randrange(len(value))
        return [*value[:at], _changed(dice, value[at]), *value[at + 1 :]]
    return dice.choice(_VALUES)


def zip_parts(data: bytes) -> dict[str, bytes] | None:
    """Return the members of a small archive; None for anything else."""
    with suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(info.file_size for info in archive.infolist()) < 2**22:
            return {name: archive.read(name) for name in archive.namelist()}
    return None


def with_zip_parts(parts: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Make an archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return buffer.getvalue()


def _zip(dice: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Change one member of an archive, and rewrite the archive."""
    parts = zip_parts(data)
    if not parts:
        return _number(dice, data, seeds)
    name = dice.choice(list(parts))
    fate = dice.random()
    if fate < 0.1:
        del parts[name]
    elif fate < 0.2:
        parts[dice.choice(("x.npy", "../x", "__plain__.npy", "model.npy", name + "x"))] = parts[name]
    elif fate < 0.3:
        parts[name] = parts[name] + bytes(dice.choice((1, 1000, 2**20)))
    else:
        inner = tuple(parts.values())
        # An array's header is at its start, and often describes the bytes that follow.
        parts[name] = dice.choice(_MUTATIONS)(dice, parts[name], inner)
    method = zipfile.ZIP_DEFLATED if dice.random() < 0.2 else zipfile.ZIP_STORED
    return with_zip_parts(parts, method)


_MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _truncate,
    _number,
    _number,
    _token,
    _repeat,
    _splice,
    _reverse,
    _json,
    _json,
    _json,
    _zip,
    _zip,
)
