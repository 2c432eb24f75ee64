"""Commands `streaming-pca ledger`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import (
    BootstrapOption,
    InputOption,
    JsonOption,
    MaybeConfig,
    charge_text,
    err,
    ledger_location,
    log_step,
    print_json,
    print_table,
    say,
)
from streaming_pca.errors import UserError
from streaming_pca.text import printable

if TYPE_CHECKING:
    from streaming_pca.privacy.ledger.entries import OffsetSpan
    from streaming_pca.privacy.parameters import Charge

app = typer.Typer(help="Show, verify and charge the privacy ledger of an input topic.", no_args_is_help=True)


@app.command("show")
def ledger_show(
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the cap, the jobs and every entry.

    [dim]Example: streaming-pca ledger show --config stream.toml[/]
    """
    from streaming_pca.admin.ledger import describe_ledger

    kafka, topic = ledger_location(config, input_topic, bootstrap)
    with log_step(f"reading the ledger of {topic}"):
        facts = describe_ledger(kafka, topic)
    if as_json:
        print_json(facts)
    else:
        print_ledger(facts)


def print_ledger(facts: dict[str, Any]) -> None:
    cap = facts["cap"]
    cap_text = "not open" if cap is None else f"{_said(cap)} ({facts['filter']})"
    say(f"ledger of {facts['topic']}: cap {cap_text}")
    rows = [row | {"ranges": _charged_ranges(row)} for row in facts["entries"]]
    # Rarer columns are shown only if an entry has a value in them.
    rare = [key for key in ("rho", "ranges", "reason", "void") if any(row.get(key) for row in rows)]
    keys = ["offset", "kind", "job", "batch", "records", "epsilon", "delta", *rare]
    headings = {"kind": "entry", "void": "void because"}
    print_table(
        [{headings.get(key, key): _cell(key, row.get(key)) for key in keys} for row in rows],
        right=("offset", "batch", "records", "epsilon", "delta", "rho"),
    )
    if everywhere := facts.get("everywhere"):
        say(f"every record, by jobs whose unit of privacy is a user: {_said(everywhere)}")
    for name, job in facts["jobs"].items():
        if job["standing"] != "active":
            say(printable(f"job {name} is {job['standing']}"))


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    return charge_text(value) if key in ("epsilon", "delta", "rho") else str(value)


def _said(charge: dict[str, Any]) -> str:
    return f"epsilon {charge_text(charge['epsilon'])}, delta {charge_text(charge['delta'])}"


def _charged_ranges(row: dict[str, Any]) -> str:
    """Format the offsets of a CHARGED or STARTED entry; other entries show a batch number."""
    if row["kind"] == "STARTED":
        return " ".join(f"{p['partition']}:{p['offset']}:" for p in row["positions"])
    if row["kind"] != "CHARGED":
        return ""
    return " ".join(f"{r['partition']}:{r['start']}:{r['end']}" for r in row["ranges"])


@app.command("verify")
def ledger_verify(
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    states: Annotated[
        bool,
        typer.Option(
            help="Compare states too; they hold results before their release, so no auditor may read them."
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Verify the whole ledger, and states and releases against it, from the topics alone.

    Every entry must follow the protocol, every charge must cover its guarantee and its mechanisms, and no
    record may exceed the cap. Each job's state must be its last committed state, and its releases must be
    in order. The exit status is 1 if anything is wrong.

    [dim]Examples:

    streaming-pca ledger verify --config stream.toml

    streaming-pca ledger verify --config stream.toml --no-states[/]
    """
    from streaming_pca.service.commit.verification import verify_ledger

    kafka, topic = ledger_location(config, input_topic, bootstrap)
    with log_step(f"verifying the ledger of {topic}"):
        report = verify_ledger(kafka, topic, states=states)
    facts = report.to_json()
    if as_json:
        print_json(facts)
    else:
        for problem in report.problems:
            say(printable(f"problem: {problem}"), err)
        outcome = f"{'' if report.ok else 'NOT '}verified{'' if states else ', without states'}"
        say(f"{outcome}: the ledger of {topic}")
        for name, jobs in (("paused", report.paused), ("retired", report.retired)):
            if jobs:
                say(printable(f"{name}: {', '.join(jobs)}"))
        if report.of_users:
            say(
                f"jobs whose unit of privacy is a user: {printable(', '.join(report.of_users))}; "
                f"together they charge every record epsilon {charge_text(facts['everywhere_epsilon'])}, "
                f"delta {charge_text(facts['everywhere_delta'])}"
            )
        if report.other_releases:
            say(f"releases of earlier topics of this name, whose ledgers hold: {report.other_releases}")
        if report.charges:
            say(f"charges for releases made elsewhere: {report.charges}")
    if not report.ok:
        sys.exit(1)


@app.command("spent")
def ledger_spent(
    partition: Annotated[int, typer.Option(min=0, help="Partition of the record.")],
    offset: Annotated[int, typer.Option(min=0, help="Offset of the record.")],
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the charges of one record, and the remaining budget.

    [dim]Example: streaming-pca ledger spent --config stream.toml --partition 0 --offset 41[/]
    """
    from streaming_pca.admin.ledger import describe_spent

    kafka, topic = ledger_location(config, input_topic, bootstrap)
    with log_step(f"reading the ledger of {topic}"):
        facts = describe_spent(kafka, topic, partition, offset)
    if as_json:
        print_json(facts)
        return
    _print_charges(
        f"{facts['topic']}, partition {partition}, offset {offset}",
        {f"job {job}": charge for job, charge in facts["jobs"].items()}
        | {name: facts[name] for name in ("spent", "left", "cap")},
    )


def _print_charges(title: str, charges: dict[str, dict[str, str | None]]) -> None:
    columns = ["epsilon", "delta"] + ["rho"] * any("rho" in charge for charge in charges.values())
    say(title)
    print_table(
        [
            {"charge": name} | {column: charge_text(charge.get(column)) for column in columns}
            for name, charge in charges.items()
        ],
        right=columns,
    )


@app.command("charge")
def ledger_charge(
    job: Annotated[str, typer.Option(help="Job to charge under; it must not be a stream's name.")],
    epsilon: Annotated[
        str, typer.Option(help="Epsilon that the release costs each record: 0.1, 1/3 or inf.")
    ],
    delta: Annotated[str, typer.Option(help="Delta that the release costs each record, such as 1e-6.")],
    reason: Annotated[str, typer.Option(help="Reason in one line, recorded in the ledger.")],
    rho: Annotated[
        str | None,
        typer.Option(
            help="Cost of the release in zCDP; needed if the ledger was created with --filter zcdp."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Charge every record now on the topic.")] = False,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="P:START:END",
            help="Charge offsets START to END - 1 of partition P; may be repeated.",
        ),
    ] = None,
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Charge records for a release made elsewhere, so that the cap covers it.

    It can never be taken back. If a record would exceed the cap, nothing is charged; the exit status is 3.

    [dim]Example: streaming-pca ledger charge --config stream.toml --job census-2026 --epsilon 0.5
    --delta 1e-7 --all --reason "histogram sent to the agency"[/]
    """
    from streaming_pca.admin.external_charge import charge_records
    from streaming_pca.admin.ledger import describe_charge, describe_left

    spans = _spans(everything, ranges or [])
    charge = _charge(epsilon, delta, rho)
    kafka, topic = ledger_location(config, input_topic, bootstrap)
    with log_step(f"charging records of {topic}"):
        done = charge_records(kafka, topic, job, charge, spans, reason)
    zcdp = done.opened.filter == "zcdp"
    charges: dict[str, dict[str, str | None]] = {
        "charge": describe_charge(charge, with_rho=rho is not None),
        "spent": describe_charge(done.spent, with_rho=zcdp),
        "left": {**describe_left(done.spent, done.opened)},
        "cap": done.opened.cap.model_dump(mode="json"),
    }
    if as_json:
        ranges_json = [r.model_dump() for r in done.entry.ranges]
        print_json({"topic": topic, "job": job, "offset": done.offset, "ranges": ranges_json, **charges})
        return
    count = sum(r.end - r.start for r in done.entry.ranges)
    say(f"{count} offsets of {topic} charged, as job {job}")
    _print_charges("their most charged record", charges)


def _charge(epsilon: str, delta: str, rho: str | None) -> Charge:
    from streaming_pca.privacy.parameters import Charge, parse_rational

    parts = {}
    for name, text in (("epsilon", epsilon), ("delta", delta), ("rho", rho)):
        try:
            parts[name] = None if text is None else parse_rational(text)
        except ValueError as error:
            raise UserError(f"--{name} {error}") from None
    return Charge(**parts)


def _spans(everything: bool, ranges: list[str]) -> list[OffsetSpan] | None:
    """Return the ranges in the options; None for all records."""
    from streaming_pca.privacy.ledger.entries import OffsetSpan

    named = [text.split(":") for text in ranges]
    for text, parts in zip(ranges, named, strict=True):
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            raise UserError(f"--range must be P:START:END, as in --range 0:0:500, not {text!r}")
    if everything == bool(named):
        raise UserError("name the records by --all, or by --range P:START:END, and not by both")
    if everything:
        return None
    return [OffsetSpan(partition=int(p), start=int(a), end=int(b)) for p, a, b in named]
