"""Errors for requests about missing objects, with one-line messages."""

from __future__ import annotations


class Unknown(LookupError):
    """The requested object does not exist."""


class UnknownStream(Unknown):
    """No stream of the settings has this name."""


class UnknownLedger(Unknown):
    """No stream of the settings reads this topic."""


class UnknownRelease(Unknown):
    """The stream has no such release, or its topic has deleted it."""


class UnknownRecord(Unknown):
    """The topic has never had such a record."""
