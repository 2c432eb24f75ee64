"""Commands `streaming-pca config`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, print_json, say, streams_of

if TYPE_CHECKING:
    from streaming_pca.config.effective import EffectiveSetting
    from streaming_pca.config.settings import Settings

app = typer.Typer(help="Check a file of settings, and describe all settings.", no_args_is_help=True)

_WIDEST = 56
"""Most characters of a value in text; JSON has longer values whole."""


@app.command("check")
def config_check(
    config: ConfigOption,
    broker: Annotated[
        bool, typer.Option("--broker", help="Check the topics, the cap and the privacy contract too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a file and the environment, and show each setting with its origin.

    Shows each stream's topics, first batch and memory too. Passwords are masked.
    The exit status is 2 if anything is wrong.

    [dim]Example: streaming-pca config check --config stream.toml --broker[/]
    """
    from streaming_pca.config.effective import describe_stream, process_settings, stream_settings

    loaded = streams_of(config, None)
    # An unreadable password file is an error of the settings.
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
    say(f"{config}: good" + ("" if broker else "; the broker was not asked (--broker)"))


@app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a settings file, for editors.

    With taplo, the first line of the file names it: `#:schema ./streaming-pca.schema.json`.

    [dim]Example: streaming-pca config schema > streaming-pca.schema.json[/]
    """
    from streaming_pca.config.schema import file_schema

    print(json.dumps(file_schema(), indent=2, allow_nan=False))


@app.command("reference")
def config_reference() -> None:
    """Print all settings as Markdown: type, default, environment variable, description.

    [dim]Example: streaming-pca config reference > settings.md[/]
    """
    from streaming_pca.config.schema import settings_markdown

    print(settings_markdown(), end="")


def _check_broker(loaded: Sequence[Settings]) -> None:
    from streaming_pca.admin.ledger import read_ledger
    from streaming_pca.service.commit.admission import check_admission
    from streaming_pca.service.topics.find import find_topics

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
            say(f"[{title}]")
        key = ".".join(each.path).removeprefix(f"{title}.")
        value = "not set" if each.value is None else json.dumps(each.value, ensure_ascii=False)
        if len(value) > _WIDEST:
            value = value[: _WIDEST - 1] + "…"
        say(f"  {key:<24} {value:<{_WIDEST}} {each.origin}")


def _print_stream(about: dict[str, Any]) -> None:
    first, memory = about["first_batch"], about["memory_bytes"]
    charge, noise = first["charge"], first["noise_multiplier"]
    whom = "user charged" if about["privacy_unit"] == "user" else "charged"
    say(f"stream {about['stream']}")
    say(f"  topics       {', '.join(about['topics'].values())}")
    say(
        f"  first batch  {first['records']} records, each {whom} epsilon {charge['epsilon']}, "
        f"delta {charge['delta']}" + ("" if noise is None else f"; noise multiplier {noise:.6g}")
    )
    line = f"  memory       at most {_mebibytes(memory['any_messages'])}"
    if "one_row_messages" in memory:
        line += f", {_mebibytes(memory['one_row_messages'])} with messages of one row"
    say(line)


def _mebibytes(n_bytes: int) -> str:
    return f"{-(-n_bytes // 2**20)} MiB"
