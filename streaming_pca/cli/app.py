"""Command line: each command parses its options, calls one function and prints."""

from __future__ import annotations

import inspect
import logging
import sys
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from streaming_pca import __version__
from streaming_pca.cli import (
    backup,
    config,
    dev,
    ledger,
    payload,
    plan,
    produce,
    status,
    stream,
    topics,
    watch,
    worker,
)
from streaming_pca.cli.common import OutputFailed, end_without_output, fail, guard_output
from streaming_pca.errors import UserError
from streaming_pca.service.process_hardening import protect_process, traceback_text, withheld_messages
from streaming_pca.text import printable

app = typer.Typer(
    name="streaming-pca",
    help="Differentially private streaming PCA over Apache Kafka.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(worker.worker)
app.command()(worker.spark)
app.command()(worker.project)
app.command()(produce.produce)
app.add_typer(payload.app, name="payload")
app.add_typer(payload.features, name="features")
app.add_typer(topics.app, name="topics")
app.add_typer(ledger.app, name="ledger")
app.command("export")(backup.export_backup)
app.command("import")(backup.import_backup)
app.command()(watch.watch)
app.add_typer(stream.app, name="stream")
app.command()(status.status)
app.command()(status.dashboard)
app.add_typer(config.app, name="config")
app.command()(plan.estimators)
app.command()(plan.plan)
app.command()(plan.audit)
app.command()(worker.demo)
app.add_typer(dev.app, name="dev")


def main() -> NoReturn:
    """Run the program.

    After a user's mistake it ends with one line on standard error and a status above 0.
    """
    # Before reading settings, because a file or a variable may contain a secret.
    protect_process()
    guard_output()
    with withheld_messages():
        try:
            _run()
        except SystemExit as end:
            try:
                # Otherwise Python would flush later, and print a traceback on failure.
                sys.stdout.flush()
            except OutputFailed as error:
                end_without_output(error, end.code if isinstance(end.code, int) else 1)
            raise


def _run() -> NoReturn:
    command = typer.main.get_command(app)
    _tidy(command)
    # click's UsageError: newer versions of typer have a click of their own.
    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        # Of a command that ended by typer.Exit; others return nothing.
        sys.exit(command(prog_name="streaming-pca", standalone_mode=False) or 0)
    except UserError as error:
        fail(error, error.exit_status)
    except usage_error as error:
        _end_by_usage(error)
    except typer.Abort:
        sys.exit(130)
    except OutputFailed as error:
        end_without_output(error)
    except Exception as error:
        sys.stderr.write(traceback_text(error))
        sys.exit(1)


def _end_by_usage(error: Any) -> NoReturn:
    """Exit with one line on options that a command does not take; without a line after help."""
    # A choice is checked by pydantic, whose errors begin with their kind.
    if text := error.format_message().rstrip(".").replace("Value error, ", ""):
        path = getattr(error.ctx, "command_path", "streaming-pca")
        fail(UserError(f"{text} ({path} --help)"), error.exit_code)
    sys.exit(error.exit_code)


def _parse(command: Any, parse: Any, ctx: Any, args: list[str]) -> Any:
    """Parse a command's options; refuse a second name, which would replace the first unnoticed."""
    _, _, given = command.make_parser(ctx).parse_args(args=list(args))
    for each in given:
        is_name = each.opts[0] in ("--config", "--stream", "--input", "--releases")
        if is_name and not each.multiple and given.count(each) > 1:
            raise UserError(f"{each.opts[0]} is there twice: {ctx.command_path} takes one")
    return parse(ctx, args)


def _tidy(command: Any) -> None:
    """Show ``--json`` for a flag, not ``--json <bool>``; wrap paragraphs to the terminal only."""
    # typer keeps the line breaks of docstrings, and wraps the lines again.
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for each in getattr(command, "commands", {}).values():
        _tidy(each)
        each.parse_args = partial(_parse, each, each.parse_args)


class _Line(logging.Formatter):
    """Format of log lines like the other lines of commands, or with times."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        vars(record)["kind"] = record.levelname.lower()
        return printable(super().formatMessage(record))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"streaming-pca {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log debugging output too.")] = False,
) -> None:
    # Commands that run for long configure their own log.
    handler = logging.StreamHandler()
    start = "%(asctime)s %(levelname)s" if verbose else "%(kind)s:"
    handler.setFormatter(_Line(f"{start} %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    # The client logs every reconnect; our own log reports the failures that matter.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
