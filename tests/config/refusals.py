"""Errors as users see them: one line each."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def refusal(
    kind: type[Exception] | tuple[type[Exception], ...],
    use: Callable[..., object],
    /,
    *given: object,
    **how: object,
) -> str:
    """Return the text of the error that a call raises, which must be one line."""
    with pytest.raises(kind) as caught:
        use(*given, **how)
    (line,) = str(caught.value).splitlines()
    assert line == str(caught.value)
    return line
