"""A user's charge is on disk before the report, despite crashes and concurrent processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.local import AccountantError, AlreadySpent, LocalAccountant
from streaming_pca.privacy.errors import ParameterError
from tests.data.refusals import refuses

ONE = (1.0, 1e-6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spent.sqlite"


def test_a_user_reports_once_to_a_topic(path: Path) -> None:
    with LocalAccountant(path) as accountant:
        accountant.spend(b"ada", "in", *ONE)
        words = r"\(1\.0, 1e-06\) of \(1\.0, 1e-06\) on 'in'"
        assert "ada" not in refuses(words, accountant.spend, b"ada", "in", *ONE, error=AlreadySpent)
        accountant.spend(b"ada", "other", *ONE)
        accountant.spend(b"bob", "in", *ONE)
        assert accountant.spent(b"ada", "in") == (1, Fraction(1, 10**6))
        assert accountant.spent(b"eve", "in") == (0, 0)


def test_a_refusal_charges_nothing_and_a_smaller_report_may_pass(path: Path) -> None:
    cap = (1.0, 1e-6)
    with LocalAccountant(path) as accountant:
        accountant.spend(b"ada", "in", 0.7, 1e-7, cap)
        for epsilon, delta in ((0.4, 1e-7), (0.1, 9.5e-7)):
            assert not accountant.allows(b"ada", "in", epsilon, delta, cap=cap)
            with pytest.raises(AlreadySpent):
                accountant.spend(b"ada", "in", epsilon, delta, cap)
        assert accountant.spent(b"ada", "in") == (Fraction(7, 10), Fraction(1, 10**7))
        accountant.spend(b"ada", "in", 0.3, 9e-7, cap)
        assert accountant.spent(b"ada", "in") == (1, Fraction(1, 10**6))


def test_sums_are_exact(path: Path) -> None:
    """In floats ten tenths are below one, and three are above 0.3."""
    with LocalAccountant(path) as accountant:
        for _ in range(3):
            accountant.spend(b"ada", "in", 0.1, 1e-7, (0.3, 3e-7))
        assert not accountant.allows(b"ada", "in", 1e-15, 1e-30, cap=(0.3, 3e-7))


def test_what_is_left_can_be_asked(path: Path) -> None:
    with LocalAccountant(path) as accountant:
        assert accountant.allows(b"ada", "in", 0.5, 1e-7, reports=2, cap=ONE)
        assert not accountant.allows(b"ada", "in", 0.5, 1e-7, reports=3, cap=ONE)
        assert accountant.spent(b"ada", "in") == (0, 0)


def test_promises_that_are_none_are_refused(path: Path) -> None:
    with LocalAccountant(path) as accountant:
        for epsilon, delta, cap in ((0, 1e-6, None), (1, 1, None), (1, 1e-6, (2, 0)), (2, 1e-6, (1, 1e-6))):
            with pytest.raises(ParameterError):
                accountant.spend(b"ada", "in", epsilon, delta, cap)


def test_the_file_outlives_its_process_and_is_not_read_by_others(path: Path) -> None:
    LocalAccountant(path).spend(b"ada lovelace", "in", *ONE)
    with LocalAccountant(path) as again, pytest.raises(AlreadySpent):
        again.spend(b"ada lovelace", "in", *ONE)
    assert path.stat().st_mode & 0o077 == 0
    assert b"ada" not in path.read_bytes()


def test_the_digest_of_a_user_is_another_in_each_file(tmp_path: Path) -> None:
    seen = set()
    for name in ("a", "b"):
        with LocalAccountant(tmp_path / name) as accountant:
            accountant.spend(b"ada", "in", *ONE)
        connection = sqlite3.connect(tmp_path / name)
        seen.add(connection.execute("SELECT user FROM spent").fetchone()[0])
        connection.close()
    assert len(seen) == 2


def test_another_file_is_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("this is no database at all, of any kind" * 100)
    other = tmp_path / "other"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    connection.close()
    for path in (text, other, tmp_path / "no" / "folder", tmp_path):
        before = path.read_bytes() if path.is_file() else None
        refuses(path.name, LocalAccountant, path, error=AccountantError)
        assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_that_another_process_holds_is_one_line(path: Path) -> None:
    with LocalAccountant(path), LocalAccountant(path, timeout=0.05) as accountant:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        refuses("locked", accountant.spend, b"ada", "in", *ONE, error=AccountantError)
        holder.close()
        accountant.spend(b"ada", "in", *ONE)


BEGINNER = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    print(error)
"""


def test_a_charge_keeps_its_lock_when_its_process_opens_the_file_again(path: Path) -> None:
    """POSIX drops all of a process's locks on a file when any descriptor is closed."""
    with LocalAccountant(path) as accountant, accountant._transaction():
        refuses("locked", LocalAccountant, path, timeout=0.0, error=AccountantError)
        other = subprocess.run([sys.executable, "-c", BEGINNER, str(path)], stdout=subprocess.PIPE, text=True)
        assert other.stdout == "database is locked\n"


def test_a_link_to_a_file_that_is_not_there_makes_it_for_its_owner_alone(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    LocalAccountant(link).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_name_is_a_file_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalAccountant(":memory:") as accountant:
        accountant.spend(b"ada", "in", *ONE)
    with LocalAccountant(":memory:") as accountant, pytest.raises(AlreadySpent):
        accountant.spend(b"ada", "in", *ONE)


SPENDER = """
import sys
from streaming_pca.local import AlreadySpent, LocalAccountant
accountant = LocalAccountant(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
allowed = 0
for user in range(60):
    try:
        accountant.spend(b"user %d" % user, "in", 0.5, 1e-7, (1.0, 1e-6))
        allowed += 1
    except AlreadySpent:
        pass
print(allowed)
"""


def test_processes_together_spend_no_more_than_the_cap(path: Path) -> None:
    """Three create the file simultaneously; each asks for three reports a user, two are left."""
    how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", SPENDER, str(path)]
    running: list[Any] = [subprocess.Popen(command, **how) for _ in range(3)]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    allowed = [int(process.communicate(timeout=240)[0]) for process in running]
    assert sum(allowed) == 120
    with LocalAccountant(path) as accountant:
        for user in range(60):
            assert accountant.spent(b"user %d" % user, "in") == (1, Fraction(2, 10**7))


KILLED = """
import os, signal, sys
from streaming_pca.local import LocalAccountant
if sys.argv[2] == "before it sends":
    LocalAccountant(sys.argv[1]).spend(b"ada", "in", 1.0, 1e-6)
    os.kill(os.getpid(), signal.SIGKILL)
with LocalAccountant(sys.argv[1])._transaction() as connection:
    connection.execute("INSERT INTO spent VALUES ('in', X'00', '1', '1')")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill(path: Path, when: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), when], check=False)
    assert killed.returncode == -9


def test_a_producer_that_is_killed_before_it_sends_has_spent(path: Path) -> None:
    kill(path, "before it sends")
    with LocalAccountant(path) as accountant, pytest.raises(AlreadySpent):
        accountant.spend(b"ada", "in", *ONE)


def test_a_producer_that_is_killed_while_it_charges_leaves_a_whole_file(path: Path) -> None:
    kill(path, "while it charges")
    with LocalAccountant(path) as accountant:
        accountant.spend(b"ada", "in", *ONE)
        assert accountant._connection.execute("SELECT count(*) FROM spent").fetchone() == (1,)
