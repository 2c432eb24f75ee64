"""Commands `streaming-pca payload` and `streaming-pca features`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import (
    ConfigOption,
    JsonOption,
    MaybeConfig,
    StreamOption,
    err,
    print_json,
    say,
    step,
)
from streaming_pca.errors import UserError
from streaming_pca.text import first_line

if TYPE_CHECKING:
    from streaming_pca.data.codec import PayloadCodec
    from streaming_pca.data.features.suggesting import Suggestion
    from streaming_pca.data.validation import PayloadReport

app = typer.Typer(help="Check payloads before they are sent.", no_args_is_help=True)
features = typer.Typer(help="Describe records with named fields.", no_args_is_help=True)

_SHOWN = 20  # most null payloads listed in text; JSON lists all


@app.command("check")
def payload_check(
    file: Annotated[
        str, typer.Argument(help="File with one payload; - for standard input.", show_default=False)
    ],
    config: MaybeConfig = None,
    stream: StreamOption = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Features of a record, without --config.")] = None,
    content_type: Annotated[
        str | None,
        typer.Option(help="Header content-type: octets, npy, json, arrow, or a media type. By default none."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another header; repeat for more.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the message, for user streams.")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Take each line of the file as a separate payload.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that a stream reads a payload, or show why it is null.

    The check uses the worker's own decoder and does not need a broker. Specify the headers that the
    producer sends. The exit status is 0 for a record and 1 for a null record, or if any line is one.

    [dim]Examples:

    streaming-pca payload check message.bin --config stream.toml --content-type json

    echo '{"x": [1, 2, 3]}' | streaming-pca payload check - --dim 3 --content-type json

    kcat -C -b localhost:9092 -t vectors -e -q | streaming-pca payload check - --lines --config stream.toml \
--content-type json[/]
    """
    from streaming_pca.data.validation import explain_payload

    codec, names, pairs = _codec(config, stream, dim)
    headers = _headers(content_type, header or [])
    data = _read(file)
    payloads = data.splitlines() if lines else [data]
    encoded_key = None if key is None else os.fsencode(key)
    reports = []
    with step("checking payloads", len(payloads)) as checking:
        for value in payloads:
            message: Any = SimpleNamespace(key=encoded_key, value=value, headers=headers)
            reports.append(explain_payload(codec, message, names, pairs=pairs))
            checking.advance()
    null = sum(not report.is_record for report in reports)
    if as_json:
        found = [_facts(report, payload) for report, payload in zip(reports, payloads, strict=True)]
        print_json({"payloads": len(found), "null": null, "verdicts": found} if lines else found[0])
    elif lines:
        _say_lines(codec, reports)
    else:
        _say_report(codec, reports[0])
    if null or not reports:
        raise typer.Exit(1)


def _codec(
    config: Path | None, stream: str | None, dim: int | None
) -> tuple[PayloadCodec, Sequence[str] | None, bool]:
    """Return the decoder and feature names of the stream, and whether it reads pairs."""
    from streaming_pca.config.loading import load_settings
    from streaming_pca.data.codec import PayloadCodec
    from streaming_pca.service.input.source import build_codec
    from streaming_pca.service.schema_registry import schemas_of

    if config is not None:
        if dim is not None:
            raise UserError("--dim is given by --config: leave out one of them")
        settings = load_settings(config, stream)
        # The worker's key is secret, and the report is the same under every key.
        key = bytes(32) if settings.stream.privacy_unit == "user" else None
        schemas = schemas_of(settings.registry, settings.stream.registry_subject)
        codec = build_codec(settings.stream, key, schemas)
        return codec, settings.stream.feature_names, settings.stream.centering == "pairs"
    if stream is not None:
        raise UserError("--stream needs --config FILE")
    if dim is None:
        raise UserError("name --dim, or --config FILE")
    return PayloadCodec(dim), None, False


def _headers(content_type: str | None, named: Sequence[str]) -> list[tuple[str, bytes]]:
    from streaming_pca.data.codec import FORMATS

    headers = []
    if content_type is not None:
        media_types: dict[str, str] = dict(FORMATS.items())
        headers.append(("content-type", os.fsencode(media_types.get(content_type, content_type))))
    for text in named:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UserError(f"--header {text}: write NAME=VALUE")
        headers.append((name, os.fsencode(value)))
    return headers


def _read(file: str) -> bytes:
    try:
        with step("reading standard input" if file == "-" else "reading the file"):
            return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from None


def _facts(report: PayloadReport, payload: bytes) -> dict[str, Any]:
    of_rows = {name: getattr(report, name) for name in ("rows", "null_rows", "least", "largest")}
    verdict = {"record": report.is_record, "reason": report.reason or None, "hint": report.hint or None}
    return {**verdict, "octets": len(payload), **of_rows}


def _say_report(codec: PayloadCodec, report: PayloadReport) -> None:
    if report.is_record:
        what = f"{report.rows} records" if codec.unit == "row" else "a record"
        rows = f"{report.rows} {'row' if report.rows == 1 else 'rows'}"
        numbers = f"{codec.kind.width(codec.dim)} numbers"
        say(f"{what}: {rows} of {numbers} from {report.least:.6g} to {report.largest:.6g}")
    elif report.null_rows and codec.unit == "row":
        say(f"{report.null_rows} of {report.rows} records are null: {report.reason}")
    else:
        say(f"null record: {report.reason}")
    if report.hint:
        say(f"{'warning: ' if report.is_record else ''}{report.hint}")


def _say_lines(codec: PayloadCodec, reports: Sequence[PayloadReport]) -> None:
    null = [(number, report) for number, report in enumerate(reports, 1) if not report.is_record]
    for number, report in null[:_SHOWN]:
        say(f"line {number}: {report.reason}{'; ' if report.hint else ''}{report.hint}")
    if len(null) > _SHOWN:
        say(f"and {len(null) - _SHOWN} more")
    say(f"{len(null)} of {len(reports)} payloads {'hold' if codec.unit == 'row' else 'are'} null records")


_ARROW_FILES = (".parquet", ".arrow", ".arrows", ".feather", ".ipc")
_PROTOBUF_FILES = (".desc", ".pb", ".binpb", ".protoset", ".fds")


@features.command("suggest")
def features_suggest(
    schema: Annotated[
        Path | None,
        typer.Argument(
            help="JSON Schema (.json), Avro schema (.avsc), descriptors by protoc (.desc, .pb), or a file of "
            "Parquet or Arrow.",
            show_default=False,
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Schema registry, in place of a file. Environment variables may hold its credentials.",
            show_default=False,
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Subject in the registry, TOPIC-value.", show_default=False)
    ] = None,
    config: MaybeConfig = None,
    stream: StreamOption = None,
    message: Annotated[
        str | None,
        typer.Option(help="Full name of the Protobuf message; by default the first one.", show_default=False),
    ] = None,
) -> None:
    """Write [\\[stream.features]] for the fields of a schema, without reading values of records.

    Bounds and vocabularies that the schema does not declare are left empty: they must be public, so a
    person has to fill them in. With --config the registry and the subject are read from the file, which
    need not have features yet.

    [dim]Examples:

    streaming-pca features suggest visit.avsc >> stream.toml

    streaming-pca features suggest visits.parquet

    streaming-pca features suggest --registry https://registry.example --subject visits-value[/]
    """
    from streaming_pca.data.features.suggesting import features_toml

    if (schema is None) == (registry is None and config is None):
        raise UserError("name a file of a schema, or --registry URL with --subject, or --config FILE")
    if schema is None:
        where, found = _registered(registry, subject, config, stream, message)
    else:
        where = str(schema)
        if subject is not None:
            raise UserError("--subject needs --registry URL, or --config FILE")
        found = _suggestions(schema, message)
    if not found:
        raise UserError(f"{where}: its schema has no fields")
    sys.stdout.write(features_toml(found))


def _registered(
    url: str | None, subject: str | None, config: Path | None, stream: str | None, message: str | None
) -> tuple[str, list[Suggestion]]:
    """Return the name and the fields of a subject's newest schema."""
    from streaming_pca.config.loading import load_registry, registry_settings
    from streaming_pca.service.errors import SessionLost, StreamRefused
    from streaming_pca.service.schema_registry import read_latest

    if url is not None and config is not None:
        raise UserError("--registry is given by --config: leave out one of them")
    if config is not None:
        settings, of_stream = load_registry(config, stream)
        subject = subject or of_stream
    else:
        settings = registry_settings({"url": url})
    if subject is None:
        raise UserError("--registry needs --subject, TOPIC-value as a rule")
    try:
        format_, data = read_latest(settings, subject)
    except (SessionLost, StreamRefused) as error:
        raise UserError(str(error)) from None
    return subject, _fields_of(format_, data, message, subject)


def _suggestions(path: Path, message: str | None) -> list[Suggestion]:
    from streaming_pca.data.features.suggesting import fields_of_arrow
    from streaming_pca.data.tables import schema_of_file

    try:
        if path.suffix in _ARROW_FILES:
            return fields_of_arrow(*schema_of_file(path))
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: {first_line(error, None)}") from None
    format_ = {**dict.fromkeys(_PROTOBUF_FILES, "protobuf"), ".avsc": "avro"}.get(path.suffix, "json")
    return _fields_of(format_, data, message, str(path))


def _fields_of(format_: str, data: bytes, message: str | None, where: str) -> list[Suggestion]:
    from streaming_pca.data.features import suggesting
    from streaming_pca.data.features.protobuf_records import message_type

    if message is not None and format_ != "protobuf":
        raise UserError("--message needs a schema of Protobuf")
    try:
        if format_ == "protobuf":
            return suggesting.fields_of_protobuf(message_type(data, message))
        schema = json.loads(data.decode("utf-8-sig"))
        fields_of = suggesting.fields_of_avro if format_ == "avro" else suggesting.fields_of_json_schema
        return fields_of(schema)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        text = first_line(error, None) if isinstance(error, ValueError) else "it is not a schema"
        if isinstance(error, json.JSONDecodeError):
            text = f"it is not a schema, which is one JSON document: {text}"
        raise UserError(f"{where}: {text}") from None


@features.command("check")
def features_check(
    file: Annotated[
        str,
        typer.Argument(help="File of JSON objects, one a line; - for standard input.", show_default=False),
    ],
    config: ConfigOption,
    stream: StreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply a stream's features to sample records, which must be public or synthetic.

    For each feature the command counts the records that lack the field, are refused, or are clamped by
    bounds. The exit status is 1 if any record is null.

    [dim]Example:

    streaming-pca features check sample.jsonl --config stream.toml[/]
    """
    from streaming_pca.config.loading import load_settings
    from streaming_pca.data.validation import check_records
    from streaming_pca.service.input.source import build_codec

    settings = load_settings(config, stream).stream
    if settings.features is None:
        raise UserError(f"{config}: stream {settings.name} has no [[stream.features]]")
    texts = [line for line in _read(file).splitlines() if line.strip()]
    if not texts:
        raise UserError(f"{file}: has no line with an object")
    of_users = settings.privacy_unit == "user"
    # Samples are JSON objects, so a registry's schemas do not matter.
    codec = build_codec(settings, bytes(32) if of_users else None, {} if settings.registry_subject else None)
    with step(f"checking {len(texts):,} records"):
        report = check_records(codec, texts, _SHOWN, pairs=settings.centering == "pairs")
    if as_json:
        print_json(asdict(report))
    else:
        for own in report.features:
            skip = ("name", "in_categories")
            counts = [f"{n} {key.replace('_', ' ')}" for key, n in vars(own).items() if n and key not in skip]
            counts += ["set the unit that the numbers count"] if own.in_1970 else []
            say(f"{own.name}: {', '.join(counts) or 'fits every record'}")
            if own.outside_categories and not own.in_categories:
                say(f"warning: {own.name}: no record has one of its categories: correct their spelling", err)
        for place, reason in report.reasons:
            say(f"record {place + 1}: {reason}")
        say(f"{report.null} of {report.records} records are null")
    if report.null:
        raise typer.Exit(1)
