"""Commands `streaming-pca stream`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, StreamOption, print_json, say

if TYPE_CHECKING:
    from streaming_pca.admin.pause import Change

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
    from streaming_pca.admin.pause import pause
    from streaming_pca.config.loading import load_settings

    settings = load_settings(config, stream)
    _report(pause(settings.kafka, settings.stream, reason), as_json)


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
    from streaming_pca.admin.pause import resume
    from streaming_pca.config.loading import load_settings

    settings = load_settings(config, stream)
    _report(resume(settings.kafka, settings.stream, reason), as_json)


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
    from streaming_pca.admin.pause import retire
    from streaming_pca.config.kafka import ConfigurationError
    from streaming_pca.config.loading import load_settings

    settings = load_settings(config, stream)
    if not yes:
        name = settings.stream.name
        if not _is_terminal():
            raise ConfigurationError(f"--yes must be given: retiring stream {name!r} can never be undone")
        if not typer.confirm(f"retire stream {name!r} permanently?", err=True):
            raise ConfigurationError("not retired: not confirmed")
    _report(retire(settings.kafka, settings.stream, reason), as_json)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _report(change: Change, as_json: bool) -> None:
    if as_json:
        print_json(vars(change) | {"standing": str(change.standing)})
        return
    already = "" if change.changed else " already"
    batch = f"; its last batch, {change.batch}, is {change.phase}" if change.batch else ""
    say(f"stream {change.stream} is {change.standing}{already}{batch}")
