"""Local accountant: a small file of the privacy that each user has spent on reports."""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path

from streaming_pca.errors import UserError
from streaming_pca.privacy.errors import ParameterError, require_open_unit, require_positive
from streaming_pca.privacy.randomness import secret_salt

_APPLICATION = 0x6C706361
_making = threading.Lock()
_VERSION = 1
_SCHEMA = """
    CREATE TABLE secret (salt BLOB NOT NULL);
    CREATE TABLE spent (
        topic TEXT NOT NULL, user BLOB NOT NULL, epsilon TEXT NOT NULL, delta TEXT NOT NULL,
        PRIMARY KEY (topic, user)
    ) WITHOUT ROWID;
"""


class AccountantError(UserError):
    """Failure to use the accountant's file; one line that names it."""


class AlreadySpent(UserError):
    """Report that a user's cap for a topic does not allow."""


class LocalAccountant:
    """Accountant that keeps users from reporting to a topic beyond their cap.

    Epsilons and deltas of a user's reports add up. A producer charges the accountant before each report.

    Parameters
    ----------
    path : Path or str
        An SQLite file, made if it does not exist, readable by its owner alone.
    timeout : float
        Seconds to wait for other processes that use the file.

    Notes
    -----
    The charge of :meth:`spend` is on the disk before it returns, so before any noise is
    drawn. If the report is then not sent, or the process is killed, the charge stays:
    recorded charges always cover the reports that were sent. Processes may share the file
    on one machine: each charge is one transaction, which reads and writes under
    the lock of the file.

    Users are not in the file by name, but as HMAC-SHA256 of their key under a secret salt. The salt is in the
    file: a user cannot be looked up without the file, but its holder can try names. Sums are exact: a float
    counts as the decimal that prints it, as everywhere in this package.

    The cap is for one topic and one file. Reports of the same data to two topics, with two files, or after an
    older copy of the file was put back, add up, which the accountant cannot see.
    """

    def __init__(self, path: Path | str, timeout: float = 30.0) -> None:
        self.path = Path(path)
        with self._errors():
            # Absolute, as SQLite reads names such as ":memory:" as databases without a file.
            real = os.path.realpath(self.path)
            # A process that closes a file releases all its locks on it, also of other connections. So an
            # existing file, which may be in use, is not opened here; a file being made is not in use yet.
            with _making, suppress(FileExistsError):
                os.close(os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            self._connection = sqlite3.connect(real, timeout=timeout, isolation_level=None)
            try:
                # Every commit must reach the disk, with any build of SQLite.
                self._connection.execute("PRAGMA synchronous = EXTRA")
                self._salt = self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> LocalAccountant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def spend(
        self, user: bytes, topic: str, epsilon: float, delta: float, cap: tuple[float, float] | None = None
    ) -> None:
        """Charge a user for one report, durably, before its noise is drawn.

        Parameters
        ----------
        user : bytes
            The user's key, the same in all files and processes.
        topic : str
            Topic that the report is sent to.
        epsilon, delta : float
            The report's privacy guarantee.
        cap : (epsilon, delta), optional
            Most that the user may spend on the topic; by default one such report.

        Raises
        ------
        AlreadySpent
            If the user has too little left; nothing is charged.
        ParameterError
            If (epsilon, delta) is out of range, or above the cap.
        AccountantError
            If the file cannot be read or written.
        """
        cost, most = self._amounts(epsilon, delta, cap)
        digest = self._digest(user)
        with self._transaction() as connection:
            before = self._spent(connection, topic, digest)
            after = tuple(a + b for a, b in zip(before, cost, strict=True))
            if any(a > m for a, m in zip(after, most, strict=True)):
                raise AlreadySpent(
                    f"{self.path}: a user has already spent ({float(before[0])!r}, {float(before[1])!r}) "
                    f"of ({float(most[0])!r}, {float(most[1])!r}) on {topic!r}: "
                    f"too little is left for a report of ({epsilon!r}, {delta!r})"
                )
            connection.execute(
                "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?)",
                (topic, digest, str(after[0]), str(after[1])),
            )

    def spent(self, user: bytes, topic: str) -> tuple[Fraction, Fraction]:
        """Return the epsilon and delta that a user has spent on a topic."""
        with self._errors():
            return self._spent(self._connection, topic, self._digest(user))

    def allows(
        self,
        user: bytes,
        topic: str,
        epsilon: float,
        delta: float,
        reports: int = 1,
        cap: tuple[float, float] | None = None,
    ) -> bool:
        """Return whether ``reports`` reports are left, unless others charge first; charges nothing."""
        cost, most = self._amounts(epsilon, delta, cap)
        before = self.spent(user, topic)
        return all(b + reports * c <= m for b, c, m in zip(before, cost, most, strict=True))

    @staticmethod
    def _amounts(
        epsilon: float, delta: float, cap: tuple[float, float] | None
    ) -> tuple[tuple[Fraction, Fraction], tuple[Fraction, Fraction]]:
        for e, d in ((epsilon, delta), cap or (epsilon, delta)):
            require_positive("epsilon", e)
            require_open_unit("delta", d)
        cost = _exact(epsilon), _exact(delta)
        most = cost if cap is None else (_exact(cap[0]), _exact(cap[1]))
        if any(c > m for c, m in zip(cost, most, strict=True)):
            raise ParameterError(f"a report of ({epsilon!r}, {delta!r}) is above the cap of {cap!r}")
        return cost, most

    def _digest(self, user: bytes) -> bytes:
        return hmac.digest(self._salt, user, hashlib.sha256)

    @staticmethod
    def _spent(connection: sqlite3.Connection, topic: str, digest: bytes) -> tuple[Fraction, Fraction]:
        row = connection.execute(
            "SELECT epsilon, delta FROM spent WHERE topic = ? AND user = ?", (topic, digest)
        ).fetchone()
        return (Fraction(0), Fraction(0)) if row is None else (Fraction(row[0]), Fraction(row[1]))

    def _prepare(self) -> bytes:
        """Return the salt of the file; set the file up if it is new."""
        with self._transaction() as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not (application or version or tables):
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO secret VALUES (?)", (secret_salt(),))
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            elif (application, version) != (_APPLICATION, _VERSION):
                raise AccountantError(f"{self.path}: is not an accountant's file of this version")
            (salt,) = connection.execute("SELECT salt FROM secret").fetchone()
            return bytes(salt)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: atomic, under the file's lock, and on the disk at its end."""
        # The connection commits at the end of the block, and rolls back after an error.
        with self._errors(), self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise AccountantError(f"{self.path}: cannot be used as the accountant's file: {reason}") from None


def _exact(number: float) -> Fraction:
    return Fraction(repr(float(number)))
