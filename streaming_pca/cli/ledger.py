"""`streaming-pca ledger`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table

from streaming_pca.cli.common import (
    BootstrapOption,
    InputOption,
    JsonOption,
    MaybeConfig,
    err,
    ledger_of,
    out,
    print_json,
)

app = typer.Typer(help="Read the privacy ledger of an input topic.", no_args_is_help=True)


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
    from streaming_pca.service.inspection import describe_ledger

    facts = describe_ledger(*ledger_of(config, input_topic, bootstrap))
    if as_json:
        print_json(facts)
        return
    cap = facts["cap"]
    cap_text = (
        "not open" if cap is None else f"epsilon {cap['epsilon']}, delta {cap['delta']} ({facts['filter']})"
    )
    table = Table(title=f"ledger of {facts['topic']}: cap {cap_text}")
    for name in ("offset", "entry", "job", "batch", "records", "epsilon", "delta", "void because"):
        table.add_column(name, justify="left" if name in ("entry", "job", "void because") else "right")
    for row in facts["entries"]:
        keys = ("offset", "kind", "job", "batch", "records", "epsilon", "delta", "void")
        table.add_row(*(str(row.get(key, "")) for key in keys))
    out.print(table)


@app.command("verify")
def ledger_verify(
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the whole ledger against the releases, independently of the code that wrote it.

    Exit status 1 if anything is wrong. [dim]Example: streaming-pca ledger verify --config stream.toml[/]
    """
    from streaming_pca.service.inspection import verify_ledger

    report = verify_ledger(*ledger_of(config, input_topic, bootstrap))
    if as_json:
        print_json(report.to_json())
    else:
        for problem in report.problems:
            err.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)
        out.print("verified" if report.ok else "NOT verified")
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
    """Show what one record has been charged, and what is left.

    [dim]Example: streaming-pca ledger spent --config stream.toml --partition 0 --offset 41[/]
    """
    from streaming_pca.service.inspection import describe_spent

    facts = describe_spent(*ledger_of(config, input_topic, bootstrap), partition, offset)
    if as_json:
        print_json(facts)
        return
    table = Table(title=f"{facts['topic']}, partition {partition}, offset {offset}")
    for name in ("", "epsilon", "delta"):
        table.add_column(name)
    for job, charge in facts["jobs"].items():
        table.add_row(f"job {job}", charge["epsilon"], charge["delta"])
    for name in ("spent", "left", "cap"):
        table.add_row(name, facts[name]["epsilon"], facts[name]["delta"])
    out.print(table)
