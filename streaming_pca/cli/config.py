"""Commands `streaming-pca config`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streaming_pca.cli.common import (
    ConfigOption,
    JsonOption,
    StreamOption,
    charge_text,
    err,
    log_step,
    print_json,
    record_text,
    say,
    wrapped,
)
from streaming_pca.errors import UserError

if TYPE_CHECKING:
    from streaming_pca.config.effective import EffectiveSetting

app = typer.Typer(
    help="Check a file of settings, and describe all settings and messages.", no_args_is_help=True
)


@app.command("check")
def config_check(
    config: ConfigOption,
    broker: Annotated[
        bool, typer.Option("--broker", help="Check the topics, the cap and the privacy contract too.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Show each setting with its origin, and bounds of the memory, too."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a file and the environment, and show each stream's guarantee, first batch and topics.

    Passwords and tokens are masked. A warning names a delta that protects too little. The exit status is 2 if
    the file is wrong; each problem is a line. With --broker it is 4 if no broker answers, and only the first
    problem of the topics is a line: `streaming-pca topics check` lists all of them.

    [dim]Examples:

    streaming-pca config check --config stream.toml --broker

    streaming-pca config check --config stream.toml --verbose[/]
    """
    from streaming_pca.config import effective
    from streaming_pca.config.loading import load_streams

    loaded = load_streams(config, files=True)
    common = effective.process_settings(loaded[0])
    streams = [
        (effective.describe_stream(settings.stream), effective.stream_settings(settings, number))
        for number, settings in enumerate(loaded)
    ]
    if broker:
        from streaming_pca.admin.topics import check_streams

        with log_step("checking topics and ledgers"):
            begun = check_streams(loaded)
        for name in begun:
            say(f'note: stream {name} has begun: stream.start = "latest" has no effect', err)
    elif any(settings.stream.start == "latest" for settings in loaded):
        say('note: stream.start = "latest" has no effect on a stream that has begun (--broker)', err)
    for about, _ in streams:
        for warning in about["warnings"]:
            say(f"warning: stream {about['stream']}: {warning}", err)
    if as_json:
        facts = {
            "settings": _json_of(common),
            "streams": [about | {"settings": _json_of(found)} for about, found in streams],
            "broker": "checked" if broker else "not asked",
        }
        print_json(facts)
        return
    if verbose:
        _print_settings(common)
    one = f": stream {loaded[0].stream.name}" if len(loaded) == 1 else f": {len(loaded)} streams"
    say(f"{config}: ok{one}" + ("" if broker else "; broker not checked (--broker)"))
    for settings, (about, found) in zip(loaded, streams, strict=True):
        if verbose:
            _print_settings(found)
        if len(loaded) > 1:
            say(f"stream {about['stream']}")
        pairs = settings.stream.centering == "pairs"
        guarantee = effective.describe_guarantee(settings.stream)
        _print_stream(about, guarantee, pairs=pairs, memory=verbose)


@app.command("schema")
def config_schema(
    name: Annotated[
        Literal["settings", "release", "ledger", "payload", "asyncapi"],
        typer.Argument(help="Format to describe."),
    ] = "settings",
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="TOML file of the stream that payload or asyncapi is for."),
    ] = None,
    stream: StreamOption = None,
) -> None:
    """Print the JSON schema of settings or messages, or the topics' AsyncAPI document.

    With taplo, the first line of a settings file names its schema: `#:schema ./streaming-pca.schema.json`.

    [dim]Examples:

    streaming-pca config schema > streaming-pca.schema.json

    streaming-pca config schema asyncapi --config stream.toml > asyncapi.json[/]
    """
    from streaming_pca.config.loading import load_settings
    from streaming_pca.config.schema import file_schema
    from streaming_pca.data.schemas import ledger_schema, release_schema
    from streaming_pca.service.topics.asyncapi import asyncapi_document, stream_payload_schema

    if config is None and stream is not None:
        raise UserError("--stream names a stream of a file: add --config FILE")
    if config is not None and name not in ("payload", "asyncapi"):
        raise UserError(f"the schema of {name} is the same for all streams: leave out --config")
    one = None if config is None else load_settings(config, stream)
    if name == "asyncapi":
        made = asyncapi_document() if one is None else asyncapi_document(one.stream, one.kafka)
    elif name == "payload":
        made = stream_payload_schema(None if one is None else one.stream)
    else:
        made = {"settings": file_schema, "release": release_schema, "ledger": ledger_schema}[name]()
    print(json.dumps(made, indent=2, allow_nan=False))


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
        if each.value is None:
            value = "not set"
        elif each.path[:2] == ("stream", "cap"):
            value = charge_text(each.value)
        else:
            value = json.dumps(each.value, ensure_ascii=False)
        say(wrapped(f"  {key:<24} {value:<40} {each.origin}", indent=27))


def _print_stream(about: dict[str, Any], guarantee: str, *, pairs: bool, memory: bool) -> None:
    first, bounds = about["first_batch"], about["memory_bytes"]
    charge, noise = first["charge"], first["noise_multiplier"]
    whom = "users" if about["privacy_unit"] == "user" else "each"
    unit = "messages" if about["privacy_unit"] == "row" else "records"
    pair = f"({charge_text(charge['epsilon'])}, {charge_text(charge['delta'])})"
    factor = "" if noise is None else f"; noise multiplier {noise:.4g}"
    rows = {
        "guarantee": guarantee,
        "first batch": f"{first['records']} {unit}, {whom} charged {pair}{factor}",
        "topics": ", ".join(about["topics"].values()),
    }
    if pairs:
        rows["centering"] = '"pairs": records of several rows count as null'
    if memory:
        rows["memory"] = f"at most {_mebibytes(bounds['any_messages'])}"
        if "one_row_messages" in bounds:
            rows["memory"] += f", {_mebibytes(bounds['one_row_messages'])} with messages of one row"
    say(record_text(rows, indent=2))


def _mebibytes(n_bytes: int) -> str:
    return f"{-(-n_bytes // 2**20)} MiB"
