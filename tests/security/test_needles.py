"""The search for secrets finds them in every encoding, so an empty result is evidence."""

from __future__ import annotations

import base64
import binascii
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.security.needles import EVERYTHING, RECORDS, ROW, SECRETS, found_in, search, secret

VECTOR = np.array([0.25, *ROW, 3.0])
SPELLINGS = {
    "text": secret("password").encode(),
    "an assertion": repr({"password": secret("password")}).encode(),
    "JSON": json.dumps({"password": secret("password")}).encode(),
    "HTTP basic": base64.b64encode(f"user:{secret('password')}".encode()),
    "SASL PLAIN": base64.b64encode(f"\0user\0{secret('password')}".encode()),
    "UTF-16": secret("password").encode("utf-16"),
    "a hexdump": binascii.hexlify(secret("password").encode()),
    "reversed": secret("password")[::-1].encode(),
    "float32": b"x" + VECTOR.astype("<f4").tobytes(),
    "float64": b"xyz" + VECTOR.astype("<f8").tobytes(),
    "float32, big-endian": VECTOR.astype(">f4").tobytes(),
    "float64, big-endian": VECTOR.astype(">f8").tobytes(),
    "base64 of float32": base64.b64encode(b"x" + VECTOR.astype("<f4").tobytes()),
    "base64 of float64": base64.urlsafe_b64encode(VECTOR.astype("<f8").tobytes()),
    "hexadecimal": VECTOR.tobytes().hex(" ", 8).replace(" ", "").encode(),
    "a list": str(VECTOR.tolist()).encode(),
    "an array": repr(VECTOR).encode(),
    "an array of float32": repr(VECTOR.astype(np.float32)).encode(),
    "a number in a sentence": f"could not convert {np.float32(ROW[1])} to a count".encode(),
    "six decimals": f"{ROW[0]:.6f}".encode(),
    "a hexadecimal float": ROW[0].hex().encode(),
    "pickle": pickle.dumps(VECTOR),
}


@pytest.mark.parametrize("octets", SPELLINGS.values(), ids=SPELLINGS)
def test_it_finds_what_is_planted(octets: bytes, tmp_path: Path) -> None:
    assert found_in(b"before " + octets + b" after")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log").write_bytes(b"\0" * (2**20) + octets)
    (tmp_path / "b").write_bytes(b"nothing")
    result = search(sorted(tmp_path.rglob("*")))
    assert result.files == 2
    assert result.octets == 2**20 + len(octets) + 7
    assert result.found
    assert all(str(tmp_path / "a" / "log") in each for each in result.found)


def test_it_finds_a_file_of_that_name(tmp_path: Path) -> None:
    (tmp_path / secret("token")).touch()
    assert "the name of" in search(tmp_path.rglob("*")).found[0]


def test_it_finds_nothing_where_there_is_nothing() -> None:
    noise = np.random.default_rng(0).bytes(2**22)
    numbers = repr(np.random.default_rng(0).standard_normal(20000).tolist()).encode()
    assert not found_in(noise)
    assert not found_in(numbers)
    assert not found_in(b"")


def test_a_needle_is_long_enough_to_be_no_chance_find() -> None:
    assert len(EVERYTHING) == len(SECRETS) + len(RECORDS)
    for needle in EVERYTHING:
        # 8 octets, or 8 characters of base64 or digits.
        assert len(needle.octets) >= 8, needle
