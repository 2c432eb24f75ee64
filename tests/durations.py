"""Plugin that measures the seconds of each test and fixture, by kind, and records failures.

The process that shows the results writes `build/durations/SCOPE-PART.csv`, and prints each kind's sum and the
ten longest tests. `python -m tests.durations` records the tests of these files in `tests/durations.csv`,
which orders later runs. Failures stay in `build/durations/SCOPE-PART.failed`, the middle of long ones left
out: `make` shows those of both parts at the end, so that a truncated log still has them.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from typing import Any

import pytest

from tests.selection import RECORDED, ROOT, kind_of, read_recorded

_FIXTURES, _KIND = "fixtures", "kind"
FOLDER = ROOT / "build" / "durations"
_LEAST = 0.2
"""Seconds: shorter tests are not recorded."""
_SHOWN = 10
_HEAD, _TAIL = 700, 1300
"""Characters of a failure's reason that `make` shows again; a reason may contain a worker's whole log."""
FAILURES = pytest.StashKey[list[str]]()
"""Reasons why a run fails, in its configuration; other plugins may add to them until the session's end."""


class Durations:
    """Plugin of every process of a run; the process that shows the results reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._file = FOLDER / f"{config.option.scope}-{config.option.part}.csv"
        self._failures = config.stash.setdefault(FAILURES, [])
        self._fixtures: list[tuple[str, float]] = []
        self._tests: Counter[tuple[str, str]] = Counter()
        self._setups: Counter[tuple[str, str]] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        """Time a fixture, without the fixtures that it requests (they run before it)."""
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self._fixtures.append((fixturedef.argname, time.perf_counter() - began))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Add kind and fixtures to the report that goes to the process which shows it."""
        report = yield
        report.user_properties += [(_KIND, kind_of(item)), (_FIXTURES, self._fixtures)]
        self._fixtures = []
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up durations, and collect failures."""
        message = dict(report.user_properties)
        kind = str(message.get(_KIND, "pure"))
        # pytest-xdist adds the name of the group.
        self._tests[kind, report.nodeid.partition("@tests/")[0]] += report.duration
        for name, seconds in message.get(_FIXTURES, ()):
            self._setups[kind, name] += seconds
        if report.failed:
            self._failures.append(f"{report.nodeid} ({report.when})\n{_shortened(report.longreprtext)}\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Any:
        result = yield
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not self._tests:
            return result
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.with_suffix(".failed").write_text("\n".join(self._failures))
        with self._file.open("w", newline="") as file:
            rows = csv.writer(file)
            for what, counted in (("test", self._tests), ("fixture", self._setups)):
                rows.writerows((what, kind, name, f"{s:.3f}") for (kind, name), s in counted.most_common())
        reporter.ensure_newline()
        sums, counts = Counter[str](), Counter[str]()
        for (kind, _), seconds in self._tests.items():
            sums[kind] += seconds
            counts[kind] += 1
        for kind, seconds in sums.most_common():
            reporter.write_line(f"{seconds:8.1f} s in {counts[kind]} tests of kind {kind}")
        for (kind, name), seconds in self._tests.most_common(_SHOWN):
            reporter.write_line(f"{seconds:8.1f} s {kind}: {name}")
        return result


def _shortened(text: str) -> str:
    """Return a failure's lines of reason, or else its end, without the middle of long ones."""
    reason = "\n".join(line for line in text.splitlines() if line.startswith("E ")) or text[-_HEAD - _TAIL :]
    return reason if len(reason) <= _HEAD + _TAIL else f"{reason[:_HEAD]}\n[...]\n{reason[-_TAIL:]}"


def record() -> None:
    """Record the seconds of the last runs' tests; keep the other tests of the file."""
    seconds = read_recorded()
    for path in sorted(FOLDER.glob("*.csv")):
        with path.open(newline="") as file:
            seconds |= {name: float(s) for what, _, name, s in csv.reader(file) if what == "test"}
    with RECORDED.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows((name, f"{s:.1f}") for name, s in sorted(seconds.items()) if s >= _LEAST)


if __name__ == "__main__":
    record()
