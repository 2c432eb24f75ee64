"""Texts from elsewhere, shortened for messages."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@cache
def install_command(extra: str) -> str:
    """Return what installs an extra, for users of a checkout or of a wheel; no index has the package."""
    if (Path(__file__).parents[1] / "pyproject.toml").is_file():
        return f"pip install '.[{extra}]' in the checkout"
    here = distribution("streaming-pca")
    source = urlsplit(json.loads(here.read_text("direct_url.json") or "{}").get("url", ""))
    is_local = source.scheme == "file"  # a wheel, or the directory of a checkout
    place = unquote(source.path) if is_local else f"streaming_pca-{here.version}-py3-none-any.whl"
    return f"pip install '{place}[{extra}]'"


def one_line(text: object, most: int | None = None) -> str:
    """Join the words of a text or an error in one line."""
    return " ".join(str(text).split())[:most]


def first_line(error: BaseException, most: int | None = 200) -> str:
    """Return the printable first line of an error's text, else its type's name."""
    return printable((str(error).splitlines() or [""])[0][:most]) or type(error).__name__


def is_number(value: Any) -> bool:
    """Return whether a value is a number, or the text of one."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def offsets_text(start: int, end: int) -> str:
    """Name the offsets from ``start`` to before ``end`` by the first and the last."""
    return f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"


def printable(text: str, kept: str = "") -> str:
    """Replace control characters, which a terminal would execute, by question marks, except ``kept``."""
    return "".join(each if each.isprintable() or each in kept else "?" for each in text)


def shown(value: object, most: int = 60) -> str:
    """Return the beginning of a value's representation, in one line."""
    text = one_line(repr(value))
    return text if len(text) <= most else f"{text[: most - 3]}..."
