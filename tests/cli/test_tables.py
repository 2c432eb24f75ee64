"""The commands' tables cut no name and no number at any terminal width."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streaming_pca.cli import common, ledger, plan, status, watch
from streaming_pca.cli.app import _Line
from streaming_pca.data.release import Release
from streaming_pca.privacy.parameters import format_number
from streaming_pca.service.logs import _TextFormatter
from tests.cli.command import call
from tests.cli.test_app import COMMANDS
from tests.cli.test_watch import release

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]
WIDTHS = (60, 80, 200)
JOB = "flights-from-" + "x" * 90
NUMBERS = {"epsilon": "1/3", "delta": "1/1000000", "rho": "1359179953/50000000000"}


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: Patch) -> int:
    monkeypatch.setattr(common.out, "_width", request.param)
    return int(request.param)


def printed(capfd: Capture, width: int, show: Callable[[], None], *whole: str) -> str:
    """Return the output: it has these words whole, and only a single word may exceed the width."""
    capfd.readouterr()
    show()
    text = capfd.readouterr().out
    for word in whole:
        assert word in text.split(), (word, text)
    for line in text.splitlines():
        assert len(line) <= width or len(line.split()) <= 2, line
    assert "…" not in text
    return text


def entries(job: str) -> list[dict[str, Any]]:
    ranges = [{"partition": p, "start": 0, "end": 2**62, "count": 7} for p in range(3)]
    of_job = {"void": "", "job": job, "ranges": ranges} | NUMBERS
    reserved = {"offset": 123_456_789, "kind": "RESERVED", "batch": 1234, "records": 987_654_321}
    return [
        {"offset": 0, "kind": "OPENED", "void": ""},
        of_job | reserved,
        of_job | {"offset": 2, "kind": "CHARGED", "reason": "a b"},
    ]


def test_a_ledger_is_shown(capfd: Capture, width: int) -> None:
    facts: dict[str, Any] = {"topic": "in", "cap": {"epsilon": "2", "delta": "1/100000"}, "filter": "basic"}
    numbers = ("123456789", "987654321", "0.333333333333", "1e-06", "0.02718359906", f"2:0:{2**62}")
    for job in ("tour", JOB):
        show = partial(ledger.print_ledger, facts | {"entries": entries(job), "jobs": {}})
        text = printed(capfd, width, show, job, *numbers)
        assert text.startswith("ledger of in: cap epsilon 2, delta 1e-05 (basic)\n")


def test_a_terminal_executes_nothing_of_a_ledger(capfd: Capture, width: int) -> None:
    hostile = "a\x1b[2J\n9 COMMITTED"
    jobs = {hostile: {"standing": "paused"}}
    facts: dict[str, Any] = {"topic": "in", "cap": None, "entries": entries(hostile), "jobs": jobs}
    facts["entries"][2]["reason"] = hostile
    text = printed(capfd, width, partial(ledger.print_ledger, facts))
    assert text.isascii()
    assert "\x1b" not in text
    assert text.count("a?[2J?9") == 4
    assert not any(line.startswith("9") for line in text.splitlines())


FORMATS = ("%(kind)s: %(message)s", "%(asctime)s %(levelname)s %(message)s")


@pytest.mark.parametrize("formatter", [*map(_Line, FORMATS), _TextFormatter("%(message)s")])
def test_a_terminal_executes_nothing_of_a_log_line(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("worker", logging.WARNING, "", 1, "paused: %s", ("\x1b[2J\nverified",), None)
    line = formatter.format(record)
    assert line.endswith("paused: ?[2J?verified")
    assert line.isprintable()


def test_a_short_ledger_has_a_line_an_entry_on_80_columns(capfd: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(common.out, "_width", 80)
    rows = [row | {"epsilon": "1"} for row in entries("tour") if row["kind"] == "RESERVED"]
    facts = {"topic": "in", "cap": None, "filter": None, "entries": rows, "jobs": {}}
    ledger.print_ledger(facts)
    title, *lines = capfd.readouterr().out.splitlines()
    assert title == "ledger of in: cap not open"
    assert [line.split()[:2] for line in lines] == [["offset", "entry"], ["123456789", "RESERVED"]]


def test_charges_of_a_record_are_shown(capfd: Capture, width: int) -> None:
    charges: dict[str, dict[str, str | None]] = {f"job {JOB}": dict(NUMBERS), "left": {"rho": None}}
    show = partial(ledger._print_charges, "in, partition 0, offset 41", charges)
    printed(capfd, width, show, JOB, "0.333333333333", "1e-06", "0.02718359906", "none")


def test_estimators_are_listed(capfd: Capture, width: int) -> None:
    names = ("output-perturbation", "tensor-private")
    printed(capfd, width, lambda: print(call(capfd, "estimators").stdout), *names)


def test_findings_of_an_audit_are_shown(capfd: Capture, width: int) -> None:
    claim, id_ = SimpleNamespace(epsilon=1.0, delta=1e-6, mu=123.456), "output-perturbation/" + "y" * 50
    bounds = {"epsilon_lower_bound": 0.123, "mu_lower_bound": 0.5}
    finding: Any = SimpleNamespace(id=id_, claim=claim, refuted=True, **bounds)
    printed(capfd, width, lambda: plan._print_findings([finding]), id_, "123.456", "0.123", "REFUTED")


def test_releases_are_followed(capfd: Capture, width: int) -> None:
    variances = {
        "explained_variance": [123456.0 - i for i in range(6)],
        "explained_variance_error": [1.5] * 6,
    }
    total = {"total_variance": 10.0**9, "total_variance_error": 2.0, "doubts": ("variance-lost",)}
    shape = {"dim": 6, "rank": 6, "components": np.eye(6).tolist()}
    many: Release = release(1, version=5, records=10**12, **shape, **variances, **total)
    item: Any = SimpleNamespace(release=many, principal_angle=1.5)

    def show() -> None:
        watch._print_line(watch._HEAD)
        watch._print_release(item, as_json=False)

    words = ("1000000000000", "85.944°", many.created, "1.2346e+05", "variance-lost:")
    text = printed(capfd, width, show, *words)
    assert text.count("1.2346e+05") + text.count("1.2345e+05") == 6


def test_a_status_is_shown(capfd: Capture, width: int) -> None:
    pair = {"epsilon": "1/3", "delta": "1/1000000"}
    facts: dict[str, Any] = {
        **dict.fromkeys(("stream", "input"), JOB),
        **dict.fromkeys(("leader", "last_release", "accuracy", "counts", "reason")),
        **dict.fromkeys(("left", "left_of_new", "cap"), pair),
        "standing": "active",
        "unit": "message",
        "refused": f"asked epsilon 1 \x1b for {JOB}",
        "batches": {"committed": 10**9, "abandoned": 0, "released": 10**9},
        "records": 10**12,
        "next_batch": 10**12,
        "lag": {"total": 10**12, "partitions": {"0": 1}, "in_transactions": 0},
        "charged": {"by_stream": pair, "by_all": pair},
        "filter": "basic",
        "ledger": {"entries": 10**6, "bytes": 10**12},
    }
    printed(capfd, width, lambda: status._print(facts), JOB, "1000000000000", "0.333333333333,", "1e-06", "?")


def test_a_number_is_written_for_people() -> None:
    for same in ("0", "1", "1000000000000", "inf", "1e-07"):
        assert format_number(same) == same
    others = {"1/1000000": "1e-06", "1/3": "0.333333333333", "3/2": "1.5", "1/" + "9" * 350: "1e-350"}
    for exact, shown in others.items():
        assert format_number(exact) == shown


def test_no_help_cuts_the_name_of_an_option(capfd: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in COMMANDS:
        shown = call(capfd, *command, "--help").stdout
        assert "--help" in shown
        assert "…" not in shown, command
