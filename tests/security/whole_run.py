"""Search of a test run's output and files for the tests' own secrets and records.

Tests use secrets and records that :mod:`tests.security.needles` recognises. Each test's output and
log is searched as it ends, and all files below the run's temporary folder after the last one. A find
fails the run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.durations import FAILURES
from tests.security.needles import EVERYTHING, found_in, search

HOLDERS: Mapping[str, str] = {
    r"[^/]+/(token|metrics|password)": "files of tokens and passwords, which settings name",
    r"test_a_wrong_file_is_one_line_?\d+/stream\.toml": "a secret where none belongs, which is refused",
    r"test_the_schema_refuses_what_i\d+/stream\.toml": "a secret where none belongs, which is refused",
    r"test_a_secret_of_spark_is_not_\d+/s\.toml": "Spark's own settings hold its secrets",
    r"test_a_password_(in_the_file_is|under_a_wrong)_?\d+/stream\.toml": "the same, in other settings",
    r"test_settings_of_tokens_belong_?\d+/stream\.toml": "the same, in a token's settings",
    r"test_(it_finds|a_run_that_shows)_[^/]+\d+/.*": "what the tests of this search plant",
    r"distributions\d+/source/tests/.*": "a copy of the tests, which hold what is searched for",
    r"secured\d+/.*": "passwords and tokens of a broker's users, and its settings",
    r".+/worker-\d+/observed": "what an estimator saw, for the check of its batches",
    r"held\d+/.*": "secrets where none belong, which are refused",
    r"certificates\d+/.*": "keys of a broker's certificates",
}
"""Files that hold a secret or a record on purpose, by their path below the temporary folder of a run's
process (a regular expression), and the reason."""

_HOLDERS = re.compile("|".join(f"(?:{pattern})" for pattern in HOLDERS) or r"(?!)")
_OF_PROCESS = re.compile(r"popen-gw\d+/")
_MOST = 100
"""Maximum number of finds shown."""


def is_searched(path: str) -> bool:
    """Return whether a file is searched, by its path below the temporary folder."""
    return _HOLDERS.fullmatch(_OF_PROCESS.sub("", path, count=1)) is None


class WholeRun:
    """Plugin of the process that collects the results."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: list[str] = []
        self._seconds = 0.0
        self._characters = self._tests = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Search the output and log of a test."""
        began = time.perf_counter()
        self._tests += report.when == "call"
        for name, text in report.sections:
            self._characters += len(text)
            self._found += [
                f"{report.nodeid}, {name}: {each}" for each in found_in(text.encode(errors="replace"))
            ]
        self._found += [f"the name of a test: {each}" for each in found_in(report.nodeid.encode())]
        self._seconds += time.perf_counter() - began

    # Innermost: a find fails the run, and another plugin writes that result.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None] | Any:
        """Search the files, and fail the run on a find."""
        result = yield
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not self._tests:
            return result
        began = time.perf_counter()
        base: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        searched = search(path for path in base.rglob("*") if is_searched(str(path.relative_to(base))))
        found = [*self._found, *searched.found]
        self._seconds += time.perf_counter() - began
        reporter.ensure_newline()
        reporter.write_line(
            f"secrets and records: {len(found)} found, in {len(EVERYTHING)} encodings, in "
            f"{self._characters} characters that {self._tests} tests printed, and in {searched.files} files "
            f"of {searched.octets} octets ({self._seconds:.1f} s)",
            red=bool(found),
        )
        for each in found[:_MOST]:
            reporter.write_line(f"FOUND {each}", red=True)
        self._config.stash.setdefault(FAILURES, []).extend(f"FOUND {each}" for each in found[:_MOST])
        if found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return result
