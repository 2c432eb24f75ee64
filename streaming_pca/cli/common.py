"""What all commands share: options, the two consoles, settings by path."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from streaming_pca.settings import KafkaSettings

out = Console()
err = Console(stderr=True)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The stream's TOML file.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
MaybeConfig = Annotated[Path | None, typer.Option("--config", "-c", help="The stream's TOML file.")]
InputOption = Annotated[str | None, typer.Option("--input", help="Input topic, where no --config is given.")]
BootstrapOption = Annotated[
    str | None, typer.Option("--bootstrap", help="Broker, HOST:PORT, where no --config is given.")
]


def fail(error: BaseException, status: int) -> NoReturn:
    line = " ".join(str(error).split())
    err.print(f"error: {line}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)


def ledger_of(
    config: Path | None, input_topic: str | None, bootstrap: str | None
) -> tuple[KafkaSettings, str]:
    from streaming_pca.settings import ConfigurationError, KafkaSettings

    if config is not None:
        from streaming_pca.configuration import load_streams

        found = load_streams(config)
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
    print(json.dumps(data, allow_nan=False))


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )
