"""Errors that end a command with one line and an exit status."""

from __future__ import annotations


class UserError(Exception):
    """Error that a user or an operator can correct; each line of its message names one problem."""

    exit_status = 2


class LibraryMissing(UserError):
    """Error that a library of an extra is not installed; it has the command to install it."""
