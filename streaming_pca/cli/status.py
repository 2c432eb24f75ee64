"""Commands `streaming-pca status` and `dashboard`."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from streaming_pca.cli.common import (
    ConfigOption,
    ConfigsOption,
    JsonOption,
    charge_text,
    chosen_streams,
    err,
    log_step,
    print_json,
    record_text,
    say,
    start_process,
)


def status(
    config: ConfigOption,
    stream: Annotated[
        str | None, typer.Option(help="Show this stream only; by default all streams of the file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the status of the streams of a file: batches, last release, lag and charges.

    Everything is read from the topics. The exit status is 1 if a stream's topics cannot be read.

    [dim]Example: streaming-pca status --config stream.toml[/]
    """
    from streaming_pca.admin.broker_status import describe_status

    streams = chosen_streams(config, stream)
    with log_step("reading the topics"):
        found = describe_status(streams)
    if as_json:
        print_json(found)
    for facts in found:
        if facts["problem"] is not None:
            say(f"problem: stream {facts['stream']}: {facts['problem']}", err)
        elif not as_json:
            _print(facts)
    if any(facts["problem"] is not None for facts in found):
        sys.exit(1)


def dashboard(
    config: ConfigsOption,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token or client certificates.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 9470,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser too.")] = False,
) -> None:
    """Show streams in a browser: releases, budgets and ledgers, live; and serve the HTTP API.

    The dashboard only reads the topics and does not need a worker. Tokens, certificates and limits are those
    of the file's section http. It needs the extra `dashboard`. Exit status: 0 stopped, 2 refused.

    [dim]Example: streaming-pca dashboard --config stream.toml --open[/]
    """
    from streaming_pca.dashboard.site import run_dashboard

    settings = start_process(config, "http.port", "worker")

    def show(url: str) -> None:
        say(f"dashboard: {url}/ (Ctrl-C ends it)")
        if open_browser and not webbrowser.open(f"{url}/"):
            say("no browser was found on this machine: open the address above yourself", err)

    run_dashboard(settings, host, port, show)


def _print(facts: dict[str, Any]) -> None:
    from streaming_pca.cli.plan import counts_text, explained_text
    from streaming_pca.estimators.remedies import Advice

    batches, lag, release = facts["batches"], facts["lag"], facts["last_release"]
    advice = None if release is None else release["advice"]
    outcome = f", {release['outcome']}" if release and release["outcome"] else ""
    waiting = f"{min(lag['total'], facts['next_batch'] or 0)} of {facts['next_batch']} offsets"
    held = f", and {lag['in_transactions']} held back by an open transaction" * bool(lag["in_transactions"])
    rows: dict[str, str | Sequence[str]] = {
        "standing": f"{facts['standing']}, {_leader(facts['leader'])}",
        **{name: facts[name] for name in ("reason", "refused") if facts[name] is not None},
        "batches": ", ".join(f"{number} {name}" for name, number in batches.items()),
        "messages" if facts["unit"] == "row" else "records": str(facts["records"]),
        "last release": f"batch {release['batch']}, {release['created']}{outcome}" if release else "none",
        **({} if release is None else {"explained": explained_text(facts["accuracy"])}),
        **({} if facts["counts"] is None else {"last batch": counts_text(facts["counts"])}),
        **({} if advice is None else {"doubts": Advice(**advice).lines}),
        **({"next batch": waiting} if facts["next_batch"] else {}),
        "lag": f"{lag['total']} offsets in {len(lag['partitions'])} partitions of {facts['input']}{held}",
        **_charges(facts),
        "ledger": f"{facts['ledger']['entries']} entries, {facts['ledger']['bytes']} bytes",
    }
    say(facts["stream"])
    say(record_text(rows, indent=2))


def _leader(leader: dict[str, Any] | None) -> str:
    if leader is None:
        return "the broker does not report the leader"
    if not leader["present"]:
        return f"no leader, {leader['candidates'] or 'and no worker'} standing by"
    return f"led from {leader['host']}, {leader['candidates'] - 1} standing by"


def _charges(facts: dict[str, Any]) -> dict[str, str]:
    if facts["cap"] is None:
        return {"charged": "the ledger is not open"}
    charged = facts["charged"]
    is_user = facts["unit"] == "user"
    new = "one charge covers all batches" if is_user else f"{_said(facts['left_of_new'])} for new records"
    others = "" if charged["by_all"] == charged["by_stream"] else f", by all jobs {_said(charged['by_all'])}"
    return {
        "charged": f"{_said(charged['by_stream'])} a record at most{others}",
        "left": f"{_said(facts['left'])} of {_said(facts['cap'])} ({facts['filter']}) for the most charged "
        f"record, {new}",
    }


def _said(charge: dict[str, str | None]) -> str:
    return ", ".join(
        f"{name} {'unknown' if value is None else charge_text(value)}" for name, value in charge.items()
    )
