"""`streaming-pca stream`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, out, print_json

if TYPE_CHECKING:
    from streaming_pca.service.lifecycle import Change

app = typer.Typer(help="Pause, resume or retire a stream.", no_args_is_help=True)

StreamOption = Annotated[
    str | None, typer.Option("--stream", help="Which one, where the file holds several.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="One line for whoever reads the ledger.")]


@app.command("pause")
def stream_pause(
    config: ConfigOption,
    stream: StreamOption = None,
    reason: ReasonOption = "not given",
    as_json: JsonOption = False,
) -> None:
    """Let a stream take no further batch until it is resumed.

    Its workers stay and wait. A batch that is reserved already may still be finished.
    [dim]Example: streaming-pca stream pause --config stream.toml --reason "broker upgrade"[/]
    """
    from streaming_pca.configuration import load_settings
    from streaming_pca.service.lifecycle import pause

    settings = load_settings(config, stream)
    _say(pause(settings.kafka, settings.stream, reason), as_json)


@app.command("resume")
def stream_resume(
    config: ConfigOption,
    stream: StreamOption = None,
    reason: ReasonOption = "not given",
    as_json: JsonOption = False,
) -> None:
    """Let a paused stream go on.

    [dim]Example: streaming-pca stream resume --config stream.toml[/]
    """
    from streaming_pca.configuration import load_settings
    from streaming_pca.service.lifecycle import resume

    settings = load_settings(config, stream)
    _say(resume(settings.kafka, settings.stream, reason), as_json)


@app.command("retire")
def stream_retire(
    config: ConfigOption,
    stream: StreamOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it can never be undone.")] = False,
    reason: ReasonOption = "not given",
    as_json: JsonOption = False,
) -> None:
    """End a stream for ever; what its records were charged stays charged.

    A reserved batch is abandoned, its workers end, and its name can never be used again on this topic.
    [dim]Example: streaming-pca stream retire --config stream.toml --yes --reason "study is over"[/]
    """
    from streaming_pca.configuration import load_settings
    from streaming_pca.service.lifecycle import retire
    from streaming_pca.settings import ConfigurationError

    settings = load_settings(config, stream)
    if not yes:
        name = settings.stream.name
        if not _is_terminal():
            raise ConfigurationError(f"--yes must be given: retiring stream {name!r} can never be undone")
        if not typer.confirm(f"retire stream {name!r} for ever?", err=True):
            raise ConfigurationError("not retired: the answer was no")
    _say(retire(settings.kafka, settings.stream, reason), as_json)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _say(change: Change, as_json: bool) -> None:
    if as_json:
        print_json(vars(change) | {"standing": str(change.standing)})
        return
    already = "" if change.changed else " already"
    batch = f"; its last batch, {change.batch}, is {change.phase}" if change.batch else ""
    out.print(f"stream {change.stream} is {change.standing}{already}{batch}", markup=False, highlight=False)
