"""Commands `streaming-pca stream`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, StreamOption, log_step, print_json, say
from streaming_pca.errors import UserError

app = typer.Typer(help="Pause, resume or retire a stream.", no_args_is_help=True)

ReasonOption = Annotated[str, typer.Option("--reason", help="Reason in one line, recorded in the ledger.")]


@app.command("pause")
def stream_pause(
    config: ConfigOption,
    stream: StreamOption = None,
    reason: ReasonOption = "not given",
    as_json: JsonOption = False,
) -> None:
    """Pause a stream: it does not process further batches until it is resumed.

    Its workers keep running and wait. An already reserved batch may still be finished.

    [dim]Example: streaming-pca stream pause --config stream.toml --reason "broker upgrade"[/]
    """
    _change("pause", config, stream, reason, as_json)


@app.command("resume")
def stream_resume(
    config: ConfigOption,
    stream: StreamOption = None,
    reason: ReasonOption = "not given",
    as_json: JsonOption = False,
) -> None:
    """Resume a paused stream.

    [dim]Example: streaming-pca stream resume --config stream.toml[/]
    """
    _change("resume", config, stream, reason, as_json)


@app.command("retire")
def stream_retire(
    config: ConfigOption,
    stream: StreamOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    reason: ReasonOption = "not given",
    as_json: JsonOption = False,
) -> None:
    """Retire a stream permanently; the charges of its records remain.

    A reserved batch is abandoned, its workers exit, and its name can never be used again on this topic.

    [dim]Example: streaming-pca stream retire --config stream.toml --yes --reason "study is over"[/]
    """
    _change("retire", config, stream, reason, as_json, yes)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _change(act: str, config: Path, stream: str | None, reason: str, as_json: bool, yes: bool = True) -> None:
    from streaming_pca.admin import pause
    from streaming_pca.config.loading import load_settings

    settings = load_settings(config, stream)
    name = settings.stream.name
    if not yes:
        if not _is_terminal():
            raise UserError(f"--yes must be given: retiring stream {name!r} can never be undone")
        if not typer.confirm(f"retire stream {name!r} permanently?", err=True):
            raise UserError("not retired: not confirmed")
    with log_step(f"changing stream {name}"):
        change: pause.Change = getattr(pause, act)(settings.kafka, settings.stream, reason)
    if as_json:
        print_json(vars(change) | {"standing": str(change.standing)})
        return
    kept = "; its reason is unchanged" * (reason != "not given")
    batch = f"; its last batch, {change.batch}, is {change.phase}" if change.batch else ""
    say(f"stream {change.stream} is {change.standing}{'' if change.changed else f' already{kept}'}{batch}")
