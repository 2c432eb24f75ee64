"""Options, consoles and small steps that the commands share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from streaming_pca.config.settings import KafkaSettings, Settings

out = Console()
err = Console(stderr=True)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="TOML file of the settings.", show_default=False)
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
    """Print one line as it is, without markup or wrapping."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def fail(error: BaseException, status: int) -> NoReturn:
    """Print an error as one line and exit with this status."""
    say(f"error: {' '.join(str(error).split())}", err)
    sys.exit(status)


def streams_of(path: Path, stream: str | None) -> tuple[Settings, ...]:
    """Load one stream of a file, or all of them."""
    from streaming_pca.config.loading import load_settings, load_streams

    return load_streams(path) if stream is None else (load_settings(path, stream),)


def ledger_of(
    config: Path | None, input_topic: str | None, bootstrap: str | None
) -> tuple[KafkaSettings, str]:
    """Return the connection and the input topic that the options of a command name."""
    from streaming_pca.config.settings import ConfigurationError, KafkaSettings

    if config is not None:
        found = streams_of(config, None)
        inputs = sorted({settings.stream.input for settings in found})
        if input_topic is None and len(inputs) > 1:
            raise ConfigurationError(
                f"{config}: reads several inputs ({', '.join(inputs)}): add --input TOPIC"
            )
        if input_topic is not None and input_topic not in inputs:
            raise ConfigurationError(f"--input {input_topic}: {config} reads {', '.join(inputs)}")
        return found[0].kafka, input_topic or inputs[0]
    if input_topic is None:
        raise ConfigurationError("name the ledger by --config FILE, or by --input TOPIC (and --bootstrap)")
    return KafkaSettings(bootstrap_servers=bootstrap or "localhost:9092"), input_topic


def print_json(data: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(data, allow_nan=False))


def progress_bar() -> Progress:
    """Return a progress bar on standard error that vanishes at its end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )
