"""A run of the tests reports that Apache Kafka, or a browser, is not available."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.conftest import pytest_collection_modifyitems

ROOT = Path(__file__).parent.parent


KAFKA, BROWSER = "tests/kafka/test_broker.py", "tests/browser/test_watching.py"


def run_without_java(
    *arguments: str, files: tuple[str, ...] = (KAFKA,), **environment: str
) -> subprocess.CompletedProcess[str]:
    left_out = ("JAVA_HOME", "KAFKA_BOOTSTRAP", "CHROMIUM")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, *files],
        cwd=ROOT,
        env=kept | {"PATH": "/nowhere", "REQUIRE_KAFKA": "0", "REQUIRE_BROWSER": "0"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_java_the_embedded_broker_serves_and_the_last_lines_count_what_was_skipped() -> None:
    chosen = "any_broker or aborted or fences or good_page or axe"
    run = run_without_java("-k", chosen, files=(KAFKA, BROWSER))
    assert run.returncode == 0, run.stdout
    assert "1 passed, 4 skipped" in run.stdout
    assert set(run.stdout.splitlines()[-2:]) == {
        "2 KAFKA TESTS SKIPPED: NO JAVA 17 FOUND",
        "2 BROWSER TESTS SKIPPED: NO CHROMIUM FOUND",
    }


def test_two_processes_count_what_was_skipped_together() -> None:
    run = run_without_java("-k", "any_broker or aborted or fences", "-n", "2")
    assert run.returncode == 0, run.stdout
    assert "1 passed, 2 skipped" in run.stdout
    assert run.stdout.splitlines()[-1] == "2 KAFKA TESTS SKIPPED: NO JAVA 17 FOUND"


def test_a_required_kafka_or_browser_that_cannot_be_had_is_a_failure() -> None:
    chosen = "any_broker or aborted or good_page"
    run = run_without_java("-k", chosen, files=(KAFKA, BROWSER), REQUIRE_KAFKA="1", REQUIRE_BROWSER="1")
    assert run.returncode == 1
    assert "3 errors" in run.stdout
    assert "REQUIRE_KAFKA is set, but no Java 17 found" in run.stdout
    assert "REQUIRE_BROWSER is set, but no chromium found" in run.stdout
    assert "SKIPPED" not in run.stdout


def test_a_named_broker_that_is_silent_is_a_failure() -> None:
    run = run_without_java("-k", "aborted", KAFKA_BOOTSTRAP="127.0.0.1:1")
    assert run.returncode == 1
    assert "KAFKA_BOOTSTRAP=127.0.0.1:1 does not answer" in run.stdout


@pytest.mark.parametrize(
    ("markers", "kept"), [("", 1), ("not kafka", 1), ("soak", 2), ("soak or not soak", 2)]
)
def test_soak_is_left_out_unless_it_is_named(markers: str, kept: int) -> None:
    def item(*marks: str) -> Any:
        # A mock, because it is hashable, like an item.
        made = MagicMock(nodeid="tests/x.py::test", fixturenames=(), _fixtureinfo=None)
        made.get_closest_marker = lambda name: name if name in marks else None
        return made

    dropped: list[list[Any]] = []
    config: Any = SimpleNamespace(
        option=SimpleNamespace(markexpr=markers, scope="all", part="both", fast=False),
        hook=SimpleNamespace(pytest_deselected=lambda items: dropped.append(items)),
    )
    items: list[Any] = [item("soak"), item()]
    pytest_collection_modifyitems(config, items)
    assert len(items) == kept
    assert sum(map(len, dropped)) == 2 - kept


def test_leaving_kafka_out_leaves_out_every_test_that_asks_for_it() -> None:
    run = run_without_java("--collect-only", "-q", "-m", "not kafka and not broker")
    collected = [line for line in run.stdout.splitlines() if "::" in line]
    assert [line.rpartition("::")[2] for line in collected] == [
        "test_what_goes_into_the_embedded_broker_comes_out"
    ]
