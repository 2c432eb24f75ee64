"""The check that a call is refused in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.config.refusals import refusal


def refuses(
    words: str, call: Callable[..., Any], *given: Any, error: type[Exception] = ValueError, **named: Any
) -> str:
    """Assert that the call raises the error, with one line that matches the words; return that line."""
    line = refusal(error, call, *given, **named)
    assert re.search(words, line), f"{words!r} is not in {line!r}"
    return line
