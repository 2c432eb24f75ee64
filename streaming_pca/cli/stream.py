"""Commands `streaming-pca stream`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, StreamOption, log_step, print_json, say
from streaming_pca.errors import UserError

if TYPE_CHECKING:
    from streaming_pca.admin.pause import Change
    from streaming_pca.config.kafka import KafkaSettings
    from streaming_pca.config.settings import Settings, StreamSettings

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

    _change(pause, load_settings(config, stream), reason, as_json)


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

    _change(resume, load_settings(config, stream), reason, as_json)


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
    from streaming_pca.config.loading import load_settings

    settings = load_settings(config, stream)
    if not yes:
        name = settings.stream.name
        if not _is_terminal():
            raise UserError(f"--yes must be given: retiring stream {name!r} can never be undone")
        if not typer.confirm(f"retire stream {name!r} permanently?", err=True):
            raise UserError("not retired: not confirmed")
    _change(retire, settings, reason, as_json)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _change(
    command: Callable[[KafkaSettings, StreamSettings, str], Change],
    settings: Settings,
    reason: str,
    as_json: bool,
) -> None:
    with log_step(f"changing stream {settings.stream.name}"):
        change = command(settings.kafka, settings.stream, reason)
    if as_json:
        print_json(vars(change) | {"standing": str(change.standing)})
        return
    already = "" if change.changed else " already"
    batch = f"; its last batch, {change.batch}, is {change.phase}" if change.batch else ""
    say(f"stream {change.stream} is {change.standing}{already}{batch}")
