"""`streaming-pca config`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, out, print_json

if TYPE_CHECKING:
    from streaming_pca.effective_settings import EffectiveSetting
    from streaming_pca.settings import Settings

app = typer.Typer(help="Check a file of settings, and describe what can be in it.", no_args_is_help=True)

_WIDEST = 56
"""A value of more characters is cut on a terminal; JSON has it whole."""


@app.command("check")
def config_check(
    config: ConfigOption,
    broker: Annotated[
        bool, typer.Option("--broker", help="Ask the broker too: the topics, the cap, what was promised.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a file and the environment come to, and what each stream will do first.

    Each value with its origin; passwords are masked. Exit status 2 if anything is wrong.
    [dim]Example: streaming-pca config check --config stream.toml --broker[/]
    """
    from streaming_pca.configuration import load_streams
    from streaming_pca.effective_settings import describe_stream, process_settings, stream_settings

    loaded = load_streams(config)
    # Where it cannot be read, now is the time to say so.
    _ = loaded[0].kafka.password
    common = process_settings(loaded[0])
    streams = [
        (describe_stream(settings.stream), stream_settings(settings, number))
        for number, settings in enumerate(loaded)
    ]
    if broker:
        _check_broker(loaded)
    if as_json:
        facts = {
            "settings": _json_of(common),
            "streams": [about | {"settings": _json_of(found)} for about, found in streams],
            "broker": "checked" if broker else "not asked",
        }
        print_json(facts)
        return
    _print_settings(common)
    for about, found in streams:
        _print_settings(found)
        _print_stream(about)
    _say(f"{config}: good" + ("" if broker else "; the broker was not asked (--broker)"))


@app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a file, for editors.

    Put `#:schema ./streaming-pca.schema.json` on the file's first line for taplo.
    [dim]Example: streaming-pca config schema > streaming-pca.schema.json[/]
    """
    from streaming_pca.settings_reference import file_schema

    print(json.dumps(file_schema(), indent=2, allow_nan=False))


@app.command("reference")
def config_reference(
    write: Annotated[
        Path | None, typer.Option(help="Put it into this file, between its markers, instead of printing it.")
    ] = None,
) -> None:
    """Print every setting as Markdown: type, default, environment variable, meaning.

    [dim]Example: streaming-pca config reference --write README.md[/]
    """
    from streaming_pca.settings import ConfigurationError
    from streaming_pca.settings_reference import markdown, with_reference

    if write is None:
        print(markdown(), end="")
        return
    try:
        text = write.read_text(encoding="utf-8")
        write.write_text(with_reference(text), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--write: {write}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigurationError(f"--write: {write}: {error}") from None


def _check_broker(loaded: Sequence[Settings]) -> None:
    from streaming_pca.service.admission import check_admission
    from streaming_pca.service.inspection import read_ledger
    from streaming_pca.service.topics import find_topics

    for settings in loaded:
        find_topics(settings.kafka, settings.stream)
        check_admission(settings.stream, read_ledger(settings.kafka, settings.stream.input))


def _json_of(found: Sequence[EffectiveSetting]) -> dict[str, Any]:
    return {".".join(each.path): {"value": each.value, "origin": each.origin} for each in found}


def _print_settings(found: Sequence[EffectiveSetting]) -> None:
    section = ""
    for each in found:
        title = ".".join(each.path[: 2 if each.path[:2] == ("stream", "options") else 1])
        if title != section:
            section = title
            _say(f"[{title}]")
        key = ".".join(each.path).removeprefix(f"{title}.")
        value = "not set" if each.value is None else json.dumps(each.value, ensure_ascii=False)
        if len(value) > _WIDEST:
            value = value[: _WIDEST - 1] + "…"
        _say(f"  {key:<24} {value:<{_WIDEST}} {each.origin}")


def _print_stream(about: dict[str, Any]) -> None:
    first, memory = about["first_batch"], about["memory_bytes"]
    charge, noise = first["charge"], first["noise_multiplier"]
    whom = "user charged" if about["privacy_unit"] == "user" else "charged"
    _say(f"stream {about['stream']}")
    _say(f"  topics       {', '.join(about['topics'].values())}")
    _say(
        f"  first batch  {first['records']} records, each {whom} epsilon {charge['epsilon']}, "
        f"delta {charge['delta']}" + ("" if noise is None else f"; noise multiplier {noise:.6g}")
    )
    line = f"  memory       at most {_mebibytes(memory['any_messages'])}"
    if "one_row_messages" in memory:
        line += f", {_mebibytes(memory['one_row_messages'])} with messages of one row"
    _say(line)


def _mebibytes(n_bytes: int) -> str:
    return f"{-(-n_bytes // 2**20)} MiB"


def _say(line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True)
