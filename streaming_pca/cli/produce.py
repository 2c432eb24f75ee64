"""Command `streaming-pca produce`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, StreamOption, err, print_json, say, step
from streaming_pca.errors import UserError

if TYPE_CHECKING:
    from streaming_pca.client.sending import Produced, Sending
    from streaming_pca.config.settings import Settings
    from streaming_pca.data.files import ColumnChoice, RecordFile


@dataclass(frozen=True)
class _Local:
    radius: float | None = None
    accountant: Path | None = None
    skip_spent: bool = False


def produce(
    file: Annotated[
        Path,
        typer.Argument(
            help="Records: .npy of shape (m, d) or (m, r, d), .csv with one a line, .parquet or .arrow; "
            ".jsonl with an object a line, for a stream with features.",
            show_default=False,
        ),
    ],
    config: ConfigOption,
    stream: StreamOption = None,
    shuffle: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SEED",
            help="Public seed of a random order to send in. A .parquet or .arrow file is then read whole.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Most records sent in a second.")
    ] = None,
    rows_per_message: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help='Rows of a message, for privacy_unit = "row" or with --factors.'
        ),
    ] = 1,
    factors: Annotated[
        bool, typer.Option("--factors", help="Send every --rows-per-message rows as one record, a factor.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the messages' keys, by name or number; it is not a feature. "
            'Keys identify the users of privacy_unit = "user" and of --local-accountant. They are '
            "read as text, without spaces around it: 7 and 07 are two users.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line of a .csv file has the names of its columns. By default it has "
            "if none of its cells is a number; reports need the option.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Columns that are features, in this order: names, or numbers from 1, such as a,b or 2-5,8.",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Columns that are not features, as for --columns.", show_default=False
        ),
    ] = None,
    content_type: Annotated[
        Literal["octets", "npy", "json", "arrow"],
        typer.Option(
            metavar="FORMAT", help="Format of the messages: octets, npy, json or arrow; octets are fastest."
        ),
    ] = "octets",
    local_radius: Annotated[
        float | None,
        typer.Option(
            help="Public radius R that vectors x are clipped to; a report is of x x^T / R². By default 1.",
            show_default=False,
        ),
    ] = None,
    local_accountant: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that records which users have reported, so that no user reports to a topic twice. "
            "Users are the keys of --key, or else the rows of the file. Keys are not sent.",
            show_default=False,
        ),
    ] = None,
    local_skip_spent: Annotated[
        bool,
        typer.Option(
            "--local-skip-spent",
            help="Skip rows of users charged before. An interruption may lose up to 200 charged reports.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a file of records to the stream's input topic.

    Named columns are sent in the order of stream.feature_names.

    For a stream with record_kind = "local" no record is sent. Each vector x is clipped to norm 1, or to
    --local-radius, and a report of x x^T is sent, with Gaussian noise that guarantees stream.epsilon and
    stream.delta. A report has dim (dim + 1)/2 numbers. A vector with a cell that is not a finite number is
    reported as zeros, so that its absence cannot be observed.

    [dim]Examples:

    streaming-pca produce records.npy --config stream.toml --shuffle 7

    streaming-pca produce rows.parquet --config stream.toml --rows-per-message 50

    streaming-pca produce rows.csv --config stream.toml --rows-per-message 4 --factors --content-type json

    streaming-pca produce visits.csv --config stream.toml --key user_id

    streaming-pca produce export.csv --config stream.toml --no-header --columns 3-6

    streaming-pca produce export.parquet --config stream.toml --drop id,comment

    streaming-pca produce people.csv --config local.toml --local-radius 5 --key person \
--local-accountant spent.sqlite[/]
    """
    from streaming_pca.admin.produce import arrange, check_format, send_records
    from streaming_pca.client.sending import Sending
    from streaming_pca.config.loading import load_settings
    from streaming_pca.data.files import ColumnChoice, open_records

    settings = load_settings(config, stream)
    to = Sending(settings.kafka, settings.stream.input, shuffle, rate)
    choice = ColumnChoice.parse(columns, drop, header)
    local = _Local(local_radius, local_accountant, local_skip_spent)
    plain = not factors and rows_per_message == 1 and content_type == "octets"
    if settings.stream.record_kind == "local" or local != _Local():
        if not plain:
            raise UserError(
                "a report is of one vector, in octets: "
                "leave out --factors, --rows-per-message and --content-type"
            )
        _produce_reports(settings, file, key, choice, local, to, as_json)
        return
    if file.suffix.lower() == ".jsonl":
        if not plain or choice != ColumnChoice.parse(None, None, None):
            raise UserError("objects are sent unchanged: leave out all options but --key")
        _produce_objects(settings, file, key, to, as_json)
        return
    # Before its cells are read: their faults are of no account in a file of the wrong kind.
    check_format(file, settings.stream, key is not None)
    found = open_records(file, key, choice)
    names = found.feature_names
    if found.guessed_header and names is not None and set(names) != set(settings.stream.feature_names or ()):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        say(
            f"warning: {found.path}: the first line is taken as names of columns ({shown}): "
            "add --header if it is, or --no-header if it is a record",
            err,
        )
    records = arrange(found, settings.stream, rows_per_message=rows_per_message, factors=factors)
    _note_order(found, records)
    by_row = settings.stream.privacy_unit == "row"
    together = 1 if factors else rows_per_message
    rows = records.shape[1] if len(records.shape) == 3 else together
    with step("messages delivered", -(-len(records) // together)) as sending:
        sent = send_records(
            replace(to, rate=rate and rate / (rows if by_row else 1), progress=sending.advance),
            records,
            dtype=settings.stream.dtype,
            content_type=content_type,
            rows_per_message=together,
        )
    if sent.not_finite:
        cells = f"a cell that is empty, nan, infinite or too large for {settings.stream.dtype}"
        of_all = f"{sent.not_finite} of {sent.messages} messages have"
        say(f"warning: {file}: {of_all} {cells}: such a record counts as null", err)
    _print_sent(file, sent, settings, by_row, as_json)


def _print_sent(file: Path, sent: Produced, settings: Settings, by_row: bool, as_json: bool) -> None:
    if sent.without_key and settings.stream.privacy_unit == "user" and settings.stream.user_field is None:
        say(
            f"warning: {file}: {sent.without_key} of {sent.messages} messages have no key: "
            'with privacy_unit = "user" their records count as null',
            err,
        )
    n_records = sent.rows if by_row else sent.messages
    if as_json:
        print_json({"records": n_records, **_counts(sent)})
    else:
        messages = "" if n_records == sent.messages else f" in {sent.messages} messages"
        say(f"{n_records} records sent to {sent.topic}{messages} in {sent.seconds:.1f} s")


def _produce_objects(settings: Settings, file: Path, key: str | None, to: Sending, as_json: bool) -> None:
    from streaming_pca.admin.produce import send_objects

    if settings.stream.features is None:
        raise UserError(f"{file}: objects need [[stream.features]], which describe their fields")
    with step("messages delivered") as sending:
        sent = send_objects(replace(to, progress=sending.advance), settings.stream, file, key=key)
    if sent.not_finite:
        null = f"{sent.not_finite} of {sent.messages} messages are null records"
        say(f"warning: {file}: {null}: `streaming-pca features check` shows why", err)
    _print_sent(file, sent, settings, False, as_json)


def _counts(sent: Produced) -> dict[str, Any]:
    counts = {"messages": sent.messages, "rows": sent.rows}
    return {**counts, "seconds": round(sent.seconds, 3), "topic": sent.topic}


def _note_order(found: RecordFile, records: RecordFile) -> None:
    if records.feature_names != found.feature_names:
        say(f"{records.path}: columns are sent in the order of stream.feature_names", err)


def _produce_reports(
    settings: Settings,
    file: Path,
    key: str | None,
    choice: ColumnChoice,
    local: _Local,
    to: Sending,
    as_json: bool,
) -> None:
    from streaming_pca.admin.produce import arrange_vectors, check_unchanged, report_mechanism, send_reports
    from streaming_pca.data.files import open_records
    from streaming_pca.local.accountant import LocalAccountant

    mechanism = report_mechanism(settings.stream, 1.0 if local.radius is None else local.radius)
    if local.accountant is None and (local.skip_spent or key is not None):
        option = "--key" if key is not None else "--local-skip-spent"
        raise UserError(
            f"{option} is about the users of --local-accountant, because reports are sent without keys: "
            f"add --local-accountant FILE, or leave out {option}"
        )
    found = open_records(file, key, choice, reports_dim=settings.stream.dim)
    records = arrange_vectors(found, settings.stream)
    _note_order(found, records)
    if local.accountant is None:
        say("no --local-accountant: nothing prevents a row from being reported again", err)
    elif records.row_keys is None:
        say(f"users are rows of {file.resolve()}: a renamed file reports again, unless --key names them", err)
    opened = nullcontext() if local.accountant is None else LocalAccountant(local.accountant)
    with step("privatizing", len(records)) as privatizing, opened as accountant:
        if accountant is not None and records.row_keys is None:
            check_unchanged(file, accountant, to.topic, mechanism)
        sent = send_reports(
            replace(to, progress=privatizing.advance),
            records,
            mechanism,
            accountant=accountant,
            skip_spent=local.skip_spent,
        )
    if sent.not_finite:
        zeros = f"{sent.not_finite} of {sent.messages} vectors were reported as zeros"
        say(f"warning: {file}: {zeros}: a cell is not a finite number, or a list has another length", err)
    skipped = len(records) - sent.messages
    if as_json:
        own = {name: getattr(mechanism, name) for name in ("epsilon", "delta", "radius", "sigma")}
        path = None if local.accountant is None else str(local.accountant)
        print_json({"records": sent.messages, "skipped": skipped, **own, "accountant": path, **_counts(sent)})
        return
    left_out = f", leaving out {skipped} rows of users charged before" if skipped else ""
    say(
        f"{sent.messages} reports of ({mechanism.epsilon:g}, {mechanism.delta:g}) made and sent to "
        f"{sent.topic} in {sent.seconds:.1f} s{left_out}"
    )
