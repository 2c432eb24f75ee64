"""Errors for requests about missing objects, with one-line messages."""

from __future__ import annotations


class _Unknown(LookupError):
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class UnknownStream(_Unknown):
    """No stream of the settings has this name."""


class UnknownLedger(_Unknown):
    """No stream of the settings reads this topic."""


class UnknownRelease(_Unknown):
    """The stream has no such release, or its topic has deleted it."""


class UnknownRecord(_Unknown):
    """The topic has never had such a record."""
