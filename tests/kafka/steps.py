"""Numbered steps of the ledger's writers, for tests that strike there."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


def steps_of(module: ModuleType) -> list[str]:
    """Return the names of all steps, read from the source to include new steps; methods number their own."""
    calls = [n for n in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(n, ast.Call)]
    named = [n.args[0] for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == "_step"]
    names: list[str] = [ast.literal_eval(argument) for argument in named]
    numbers: dict[str, list[int]] = {}
    for name in names:
        method, _, number = name.split()[0].partition(".")
        numbers.setdefault(method, []).append(int(number))
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values()), numbers
    return names


def before_step(
    patch: pytest.MonkeyPatch, writer: Any, wanted: str, event: Callable[[], object], times: int = 1
) -> list[str]:
    """Run ``event`` when a writer begins a step, at most ``times`` times; return the step names."""
    original = writer._step
    happened: list[str] = []

    @contextmanager
    def step(self: Any, name: str) -> Iterator[None]:
        with original(self, name):
            if name == wanted and len(happened) < times:
                happened.append(name)
                event()
            yield

    patch.setattr(writer, "_step", step)
    return happened
