"""The check that a call is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refuses(
    words: str, call: Callable[..., Any], *given: Any, error: type[Exception] = ValueError, **named: Any
) -> str:
    """Assert that the call raises the error, with one line that matches the words; return that line."""
    with pytest.raises(error, match=words) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)
