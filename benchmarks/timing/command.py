"""Common parts of the benchmarks' command lines: one-line errors and argument types."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn, TypeVar

__all__ = ["Parser", "keeping_message", "whole"]

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line, without usage, and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def whole(least: int) -> Callable[[str], int]:
    """Return an argument type: whole numbers of at least ``least``."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {text}")
        return int(text)

    return read


def keeping_message(read: Callable[[str], T]) -> Callable[[str], T]:
    """Make an argument type that preserves messages of ValueErrors, which argparse hides."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
