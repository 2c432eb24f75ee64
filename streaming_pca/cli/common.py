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
    from streaming_pca.settings import KafkaSettings, Settings

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


def settings_of(path: Path) -> Settings:
    from streaming_pca.configuration import load_settings

    return load_settings(path)


def ledger_of(
    config: Path | None, input_topic: str | None, bootstrap: str | None
) -> tuple[KafkaSettings, str]:
    from streaming_pca.settings import ConfigurationError, KafkaSettings

    if config is not None:
        settings = settings_of(config)
        return settings.kafka, settings.stream.input
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
