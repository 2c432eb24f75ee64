"""Common options, consoles and small steps of the commands."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, cast

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from streaming_pca.errors import UserError
from streaming_pca.progress import Progress, Task
from streaming_pca.service.process_hardening import protect_process
from streaming_pca.text import one_line, printable

if TYPE_CHECKING:
    from streaming_pca.config.kafka import KafkaSettings
    from streaming_pca.config.settings import Settings

out = Console()
err = Console(stderr=True)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="TOML file of the settings.", show_default=False)
]
ConfigsOption = Annotated[
    list[Path],
    typer.Option(
        "--config", "-c", help="TOML file of one stream or several; may be repeated.", show_default=False
    ),
]
MaybeConfig = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file of the settings.")]
StreamOption = Annotated[
    str | None, typer.Option("--stream", help="Name of the stream; needed if the file holds several.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
InputOption = Annotated[str | None, typer.Option("--input", help="Input topic, without --config.")]
BootstrapOption = Annotated[
    str | None, typer.Option("--bootstrap", help="Broker as HOST:PORT, without --config.")
]


def say(line: str, console: Console = out) -> None:
    """Print lines without markup or wrapping; the terminal executes nothing in them."""
    console.print(printable(line, "\n\t"), markup=False, highlight=False, soft_wrap=True)


def record_text(pairs: Mapping[str, str | Sequence[str]], indent: int = 0, label: int = 0) -> str:
    """Format names and values in two columns; long values wrap between words, uncut.

    A value of several texts has a line for each. The names take ``label`` columns, or the width of the
    longest name if that is larger.
    """
    label = max([label, *map(cell_len, pairs)])
    lines = []
    for name, value in pairs.items():
        begin = " " * indent + set_cell_size(name, label) + "  "
        for text in [value] if isinstance(value, str) else value:
            lines.append(wrapped(printable(text), cell_len(begin), begin))
            begin = " " * cell_len(begin)
    return "\n".join(lines)


def wrapped(text: str, indent: int, begin: str = "") -> str:
    """Wrap text to the terminal between words; indent it from the second line on."""
    lines = textwrap.wrap(
        text,
        max(out.width, indent + 1),
        initial_indent=begin,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines or [begin.rstrip()])


def print_table(rows: Sequence[Mapping[str, str]], right: Collection[str] = ()) -> None:
    """Print rows of the same columns, or names and values if they are too wide.

    Numbers and names are never cut. Columns in ``right`` are right-aligned.
    """
    if not rows:
        return
    rows = [{name: printable(cell) for name, cell in row.items()} for row in rows]
    table = [{name: name for name in rows[0]}, *rows]
    widths = {name: max(cell_len(row[name]) for row in table) for name in rows[0]}
    if sum(widths.values()) + 2 * (len(widths) - 1) > out.width:
        for number, row in enumerate(rows):
            if number:
                say("")
            say(record_text({name: cell for name, cell in row.items() if cell}, 0, max(map(cell_len, row))))
        return
    for row in table:
        cells = []
        for name, width in widths.items():
            space = " " * (width - cell_len(row[name]))
            cells.append(space + row[name] if name in right else row[name] + space)
        say("  ".join(cells).rstrip())


def charge_text(value: str | None) -> str:
    """Format a number of a charge for readers; JSON has the exact number."""
    from streaming_pca.privacy.parameters import format_number

    return "none" if value is None else format_number(value)


def connection_to(bootstrap: str | None) -> KafkaSettings:
    from pydantic import ValidationError

    from streaming_pca.config.kafka import KafkaSettings

    try:
        return KafkaSettings.of_argument("--bootstrap", bootstrap)
    except ValidationError:
        raise UserError(f"--bootstrap must be HOST:PORT, not {bootstrap!r}") from None


def prepare_process(settings: Settings) -> None:
    """Set up the log, apply the protection from debuggers, and log its limits."""
    from streaming_pca.service.logs import configure_logging

    configure_logging(settings.log)
    doubt = protect_process(debuggable=settings.worker.debuggable)
    if doubt is not None:
        logging.getLogger(__name__).warning("%s", doubt)


def fail(error: BaseException, status: int) -> NoReturn:
    """Print a line for each problem of an error, and exit with a status."""
    for line in getattr(error, "lines", None) or (str(error),):
        # Names from a foreign file can contain control characters, which a terminal would execute.
        say(f"error: {printable(one_line(line))}", err)
    sys.exit(status)


def chosen_streams(path: Path, stream: str | None) -> tuple[Settings, ...]:
    from streaming_pca.config.loading import load_settings, load_streams

    return load_streams(path) if stream is None else (load_settings(path, stream),)


def start_process(paths: Sequence[Path], *ignored: str) -> tuple[Settings, ...]:
    """Load the streams of one process, set up its log, and protect it."""
    from streaming_pca.config.loading import load_together

    settings = load_together(paths, ignored=("spark", *ignored))
    prepare_process(settings[0])
    return settings


def ledger_location(
    config: Path | None, input_topic: str | None, bootstrap: str | None
) -> tuple[KafkaSettings, str]:
    """Return the connection and the input topic for a command's options."""
    if config is not None:
        if bootstrap is not None:
            raise UserError("--bootstrap is for use without --config")
        found = chosen_streams(config, None)
        inputs = sorted({settings.stream.input for settings in found})
        if input_topic is None and len(inputs) > 1:
            raise UserError(f"{config}: reads several inputs ({', '.join(inputs)}): add --input TOPIC")
        if input_topic is not None and input_topic not in inputs:
            raise UserError(f"--input {input_topic}: {config} reads {', '.join(inputs)}")
        return found[0].kafka, input_topic or inputs[0]
    if input_topic is None:
        raise UserError("name the ledger by --config FILE, or by --input TOPIC (and --bootstrap)")
    return connection_to(bootstrap), input_topic


def print_json(data: Any) -> None:
    print(json.dumps(data, allow_nan=False))


@contextmanager
def step(description: str, total: int | None = None) -> Iterator[Task]:
    """Show the progress of a command's only step on standard error, interrupts included."""
    with Progress(err) as progress:
        task = progress.task(description, total)
        try:
            yield task
        except KeyboardInterrupt:
            say(f"\ninterrupted: {task.line}", err)
            raise


@contextmanager
def log_step(description: str) -> Iterator[None]:
    """Show a step that reads ledgers, states or releases, with the topic that it reads."""
    from streaming_pca.service.commit.log_reader import report_reading

    with step(description) as task, report_reading(lambda place: task.describe(f"{description}: {place}")):
        yield


class OutputFailed(OSError):
    """Error of a write to standard output."""


class _OutputClosed(OutputFailed, BrokenPipeError):
    """Error of a pipe without a reader; typer does not print a line for it."""


class _Output:
    """Stream that marks its own errors, or ignores them: the exit status reports them."""

    def __init__(self, stream: TextIO, *, ignores: bool = False) -> None:
        self._stream, self._ignores = stream, ignores

    def write(self, text: str) -> int:
        with self._marked():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._marked():
            self._stream.flush()

    @contextmanager
    def _marked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._ignores:
                kind = _OutputClosed if error.errno == errno.EPIPE else OutputFailed
                raise kind(error.errno, os.strerror(error.errno or errno.EIO)) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Escape characters that standard output cannot encode, and mark its other errors."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        # The program was started with a closed standard output; the same holds for its input.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stdout = cast(TextIO, _Output(sys.stdout))
    if sys.stderr is not None:
        sys.stderr = cast(TextIO, _Output(sys.stderr, ignores=True))


def end_without_output(error: OSError, status: int = 1) -> NoReturn:
    """Discard unwritten output and exit, with one line unless the reader is gone."""
    # Otherwise Python would write it at exit, and print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        sys.exit(status)
    fail(OSError(f"standard output cannot be written: {error.strerror}"), 1)
