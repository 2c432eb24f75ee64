"""What the benchmarks' command lines share: errors of one line, and numbers with a least value."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

__all__ = ["Parser", "whole"]


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage, and ends with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def whole(least: int) -> Callable[[str], int]:
    """A type of arguments: whole numbers of at least ``least``."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {text}")
        return int(text)

    return read
