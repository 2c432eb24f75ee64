"""The commands' tables cut no name and no number at any terminal width."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streaming_pca.cli import common, ledger, plan, status, watch
from streaming_pca.data.release import Release
from streaming_pca.privacy.parameters import format_number
from tests.cli.command import call
from tests.cli.test_app import COMMANDS
from tests.cli.test_watch import release

Capture = pytest.CaptureFixture[str]
WIDTHS = (60, 80, 200)
JOB = "flights-from-" + "x" * 90
NUMBERS = {"epsilon": "1/3", "delta": "1/1000000", "rho": "1359179953/50000000000"}


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
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
    return [
        {"offset": 0, "kind": "OPENED", "void": ""},
        {
            "offset": 123_456_789,
            "kind": "RESERVED",
            "void": "",
            "job": job,
            "batch": 1234,
            "records": 987_654_321,
            "ranges": ranges,
            **NUMBERS,
        },
        {
            "offset": 2,
            "kind": "CHARGED",
            "void": "",
            "job": job,
            "ranges": ranges,
            "reason": "a b",
            **NUMBERS,
        },
    ]


def test_a_ledger_is_shown(capfd: Capture, width: int) -> None:
    for job in ("tour", JOB):
        facts = {
            "topic": "in",
            "cap": {"epsilon": "2", "delta": "1/100000"},
            "filter": "basic",
            "entries": entries(job),
            "jobs": {},
        }
        text = printed(
            capfd,
            width,
            lambda facts=facts: ledger.print_ledger(facts),  # type: ignore[misc]
            *(job, "123456789", "987654321", "0.333333333333", "1e-06", "0.02718359906", f"2:0:{2**62}"),
        )
        assert text.startswith("ledger of in: cap epsilon 2, delta 1e-05 (basic)\n")


def test_a_short_ledger_has_a_line_an_entry_on_80_columns(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common.out, "_width", 80)
    rows = [row | {"epsilon": "1"} for row in entries("tour") if row["kind"] == "RESERVED"]
    facts = {"topic": "in", "cap": None, "filter": None, "entries": rows, "jobs": {}}
    ledger.print_ledger(facts)
    title, *lines = capfd.readouterr().out.splitlines()
    assert title == "ledger of in: cap not open"
    assert [line.split()[:2] for line in lines] == [
        ["offset", "entry"],
        ["123456789", "RESERVED"],
    ]


def test_charges_of_a_record_are_shown(capfd: Capture, width: int) -> None:
    charges: dict[str, dict[str, str | None]] = {f"job {JOB}": dict(NUMBERS), "left": {"rho": None}}
    printed(
        capfd,
        width,
        lambda: ledger._print_charges("in, partition 0, offset 41", charges),
        *(JOB, "0.333333333333", "1e-06", "0.02718359906", "none"),
    )


def test_estimators_are_listed(capfd: Capture, width: int) -> None:
    def show() -> None:
        print(call(capfd, "estimators").stdout)

    printed(capfd, width, show, "output-perturbation", "tensor-private")


def test_findings_of_an_audit_are_shown(capfd: Capture, width: int) -> None:
    claim = SimpleNamespace(epsilon=1.0, delta=1e-6, mu=123.456)
    finding: Any = SimpleNamespace(
        id="output-perturbation/" + "y" * 50,
        claim=claim,
        epsilon_lower_bound=0.123,
        mu_lower_bound=0.5,
        refuted=True,
    )
    printed(capfd, width, lambda: plan._print_findings([finding]), finding.id, "123.456", "0.123", "REFUTED")


def test_releases_are_followed(capfd: Capture, width: int) -> None:
    many: Release = release(
        1,
        version=5,
        records=10**12,
        dim=6,
        rank=6,
        components=[[float(i == j) for j in range(6)] for i in range(6)],
        explained_variance=[123456.0 - i for i in range(6)],
        explained_variance_error=[1.5] * 6,
        total_variance=10.0**9,
        total_variance_error=2.0,
        doubts=("variance-lost",),
    )
    item: Any = SimpleNamespace(release=many, principal_angle=1.5)

    def show() -> None:
        watch._print_line(watch._HEAD)
        watch._print_release(item, as_json=False)

    text = printed(
        capfd, width, show, "1000000000000", "85.944°", many.created, "1.2346e+05", "variance-lost:"
    )
    assert text.count("1.2346e+05") + text.count("1.2345e+05") == 6


def test_a_status_is_shown(capfd: Capture, width: int) -> None:
    pair = {"epsilon": "1/3", "delta": "1/1000000"}
    facts: dict[str, Any] = {
        "stream": JOB,
        "input": JOB,
        "standing": "active",
        "leader": None,
        "batches": {"committed": 10**9, "abandoned": 0, "released": 10**9},
        "records": 10**12,
        "last_release": None,
        "accuracy": None,
        "counts": None,
        "lag": {"total": 10**12, "partitions": {"0": 1}, "in_transactions": 0},
        "charged": {"by_stream": pair, "by_all": pair},
        "left": pair,
        "left_of_new": pair,
        "cap": pair,
        "filter": "basic",
        "ledger": {"entries": 10**6, "bytes": 10**12},
    }
    printed(capfd, width, lambda: status._print(facts), JOB, "1000000000000", "0.333333333333,", "1e-06")


@pytest.mark.parametrize(
    ("exact", "shown"),
    [
        ("1/1000000", "1e-06"),
        ("1/3", "0.333333333333"),
        ("0", "0"),
        ("1", "1"),
        ("3/2", "1.5"),
        ("1000000000000", "1000000000000"),
        ("inf", "inf"),
        ("1/" + "9" * 350, "1e-350"),
        ("1e-07", "1e-07"),
    ],
)
def test_a_number_is_written_for_people(exact: str, shown: str) -> None:
    assert format_number(exact) == shown


def test_no_help_cuts_the_name_of_an_option(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in COMMANDS:
        shown = call(capfd, *command, "--help").stdout
        assert "--help" in shown
        assert "…" not in shown, command
