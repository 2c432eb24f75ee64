"""Recognisable secrets and records, and a search that finds them in any encoding.

Every secret of the tests contains the word `MARK`, so that one search finds all of them. A record is
recognised by `ROW`: two neighbouring features whose decimal digits and octets no other test has.
"""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

MARK = "vQ7xN33dL9"
"""Part of every secret in the tests; letters and digits alone, so that no escaping changes it."""

# The digits are also those of float32. They look like other values of the tests' records.
ROW = (1.7391682863235474, -0.8264739513397217)
"""Neighbouring features of a record."""


def secret(name: str) -> str:
    """Return a secret that the search finds: a password, a token, a key of a message."""
    return f"{MARK}-{name}"


def is_secret(text: str) -> bool:
    return MARK in text


@dataclass(frozen=True)
class Needle:
    """Octets that must not be found, in one encoding."""

    name: str
    octets: bytes


def _encoded(name: str, octets: bytes) -> Iterator[Needle]:
    """Yield octets unchanged, as hexadecimal digits, and as base64 at any offset."""
    yield Needle(f"{name}, raw", octets)
    yield Needle(f"{name}, hexadecimal", octets.hex().encode())
    yield Needle(f"{name}, hexadecimal in capitals", octets.hex().upper().encode())
    for shift in range(3):
        code = base64.b64encode(b"\0" * shift + octets)
        # Digits that also encode neighbouring octets are omitted.
        whole = code[-(-8 * shift // 6) : 8 * (shift + len(octets)) // 6]
        yield Needle(f"{name}, base64 at {shift}", whole)
        if whole.translate(bytes.maketrans(b"+/", b"-_")) != whole:
            yield Needle(f"{name}, base64url at {shift}", whole.translate(bytes.maketrans(b"+/", b"-_")))


def _of_secrets() -> Iterator[Needle]:
    yield from _encoded("a secret", MARK.encode())
    yield Needle("a secret, UTF-16", MARK.encode("utf-16-le"))
    yield Needle("a secret, reversed", MARK[::-1].encode())


def _of_records() -> Iterator[Needle]:
    for order, ending in (("<", "little"), (">", "big")):
        for code, kind in (("f", "float32"), ("d", "float64")):
            yield from _encoded(f"a record, {kind} {ending}-endian", struct.pack(f"{order}2{code}", *ROW))
    for value in ROW:
        # The digits as float32 prints them, or more; some languages use a comma for the point.
        digits = f"{abs(value):.9f}"[:8]
        for point in ".,":
            yield Needle(f"a record's {value}, decimal", digits.replace(".", point).encode())
        hexadecimal = abs(value).hex().removeprefix("0x").encode()[:12]
        yield Needle(f"a record's {value}, hexadecimal float", hexadecimal)


SECRETS = tuple(_of_secrets())
RECORDS = tuple(_of_records())
EVERYTHING = SECRETS + RECORDS


def found_in(octets: bytes, needles: Iterable[Needle] = EVERYTHING) -> list[str]:
    """Return the names of the needles in some octets, each with its surroundings."""
    return [
        f"{needle.name}: {octets[max(0, at - 60) : at + len(needle.octets) + 60]!r}"
        for needle in needles
        if (at := octets.find(needle.octets)) >= 0
    ]


@dataclass(frozen=True)
class Search:
    """The extent of a search, and its finds: a line for each place."""

    files: int
    octets: int
    found: tuple[str, ...]


def search(paths: Iterable[Path], needles: Iterable[Needle] = EVERYTHING) -> Search:
    """Search files and all file names.

    grep searches for all needles together, fifty times as fast as Python's search for each.
    """
    needles, paths = tuple(needles), tuple(paths)
    found = [
        f"the name of {path}: {each}" for path in paths for each in found_in(str(path).encode(), needles)
    ]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    octets = 0
    with NamedTemporaryFile() as patterns:
        assert not any(b"\n" in needle.octets for needle in needles)
        patterns.write(b"\n".join(needle.octets for needle in needles))
        patterns.flush()
        for some in (files[i : i + 500] for i in range(0, len(files), 500)):
            octets += sum(path.stat().st_size for path in some if path.exists())
            for path in _suspects(some, patterns.name):
                with suppress(FileNotFoundError):
                    found += [f"{path}: {each}" for each in found_in(path.read_bytes(), needles)]
    return Search(len(files), octets, tuple(found))


def _suspects(files: Sequence[Path], patterns: str) -> Sequence[Path]:
    """Return the files with a match by grep; all files without grep."""
    grep = shutil.which("grep")
    if grep is None:
        return files
    # -s: a process may end during the search and remove a file.
    done = subprocess.run(
        [grep, "-s", "-l", "-a", "-F", "-Z", "-f", patterns, "--", *map(str, files)],
        capture_output=True,
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
    assert not done.stderr, done.stderr
    return [Path(name) for name in done.stdout.decode().split("\0") if name]
