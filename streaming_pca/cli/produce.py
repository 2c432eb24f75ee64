"""`streaming-pca produce`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, err, out, print_json, progress_bar

if TYPE_CHECKING:
    from streaming_pca.service.record_files import RecordFile
    from streaming_pca.settings import Settings


@dataclass(frozen=True)
class _Local:
    """The options of reports."""

    epsilon: float | None = None
    delta: float | None = None
    radius: float | None = None
    accountant: Path | None = None
    skip_spent: bool = False


def produce(
    file: Annotated[
        Path,
        typer.Argument(
            help="Records: .npy (m, d) or (m, r, d), .csv, one a line, .parquet or .arrow.",
            show_default=False,
        ),
    ],
    config: ConfigOption,
    stream: Annotated[str | None, typer.Option(help="Which stream, where the file holds several.")] = None,
    shuffle: Annotated[
        int | None,
        typer.Option(
            min=0, help="Public seed: send in a random order. Reads a .parquet or .arrow file whole."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Records a second, at most.")] = None,
    rows_per_message: Annotated[
        int, typer.Option(min=1, help='Rows in a message, for privacy_unit = "row" or with --factors.')
    ] = 1,
    factors: Annotated[
        bool, typer.Option("--factors", help="Every --rows-per-message rows are one record, a factor.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column of the messages' keys, which is no feature: text or whole numbers. "
            'For privacy_unit = "user", and for --local-accountant, keys are the users.',
        ),
    ] = None,
    content_type: Annotated[
        Literal["octets", "npy", "json", "arrow"],
        typer.Option(help="Of the messages; octets are the fastest to read."),
    ] = "octets",
    local_epsilon: Annotated[
        float | None,
        typer.Option(help="Of each report, to be compared with stream.epsilon.", show_default=False),
    ] = None,
    local_delta: Annotated[
        float | None,
        typer.Option(help="Of each report, to be compared with stream.delta.", show_default=False),
    ] = None,
    local_radius: Annotated[
        float | None,
        typer.Option(
            help="Public: longer vectors are clipped to it, and reports are of x x^T over its square. "
            "By default 1.",
            show_default=False,
        ),
    ] = None,
    local_accountant: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep here who has reported, and let nobody report to a topic twice: users are those of "
            "--key, or else each row of the file. Keys are not sent.",
            show_default=False,
        ),
    ] = None,
    local_skip_spent: Annotated[
        bool,
        typer.Option(
            "--local-skip-spent",
            help="Leave out the rows of users who have reported, as after an interruption.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a file of records to the stream's input topic.

    Columns that have names are put in the order of stream.feature_names.

    For a stream with record_kind = "local" no record leaves: each vector x is clipped
    to norm 1, or to --local-radius, and a report is sent of its x x^T, with Gaussian noise that keeps
    stream.epsilon and stream.delta. A report has dim (dim + 1)/2 numbers. A vector with a
    number that is not finite is reported as zeros, so that nobody sees it missing.

    [dim]Examples:

    streaming-pca produce records.npy --config stream.toml --shuffle 7

    streaming-pca produce rows.parquet --config stream.toml --rows-per-message 50

    streaming-pca produce rows.csv --config stream.toml --rows-per-message 4 --factors --content-type json

    streaming-pca produce visits.csv --config stream.toml --key user_id

    streaming-pca produce people.csv --config local.toml --local-epsilon 1 --local-delta 1e-6 \
--local-radius 5 --key person --local-accountant spent.sqlite[/]
    """
    from streaming_pca.configuration import load_settings
    from streaming_pca.service.produce import arrange, send_records
    from streaming_pca.service.record_files import open_records
    from streaming_pca.settings import ConfigurationError

    settings = load_settings(config, stream)
    local = _Local(local_epsilon, local_delta, local_radius, local_accountant, local_skip_spent)
    if settings.stream.record_kind == "local" or local != _Local():
        if factors or rows_per_message > 1 or content_type != "octets":
            raise ConfigurationError(
                "a report is of one vector, in octets: "
                "leave out --factors, --rows-per-message and --content-type"
            )
        _produce_reports(settings, file, key, local, shuffle, rate, as_json)
        return
    found = open_records(file, key)
    records = arrange(found, settings.stream, rows_per_message=rows_per_message, factors=factors)
    _tell_order(records)
    by_row = settings.stream.privacy_unit == "row"
    together = 1 if factors else rows_per_message
    rows = records.shape[1] if len(records.shape) == 3 else together
    with progress_bar() as progress:
        task = progress.add_task("sending", total=-(-len(records) // together))
        sent = send_records(
            settings.kafka,
            settings.stream.input,
            records,
            dtype=settings.stream.dtype,
            content_type=content_type,
            rows_per_message=together,
            shuffle=shuffle,
            rate=rate / rows if rate is not None and by_row else rate,
            progress=lambda n: progress.update(task, advance=n),
        )
    n_records = sent.rows if by_row else sent.messages
    facts = {
        "records": n_records,
        "messages": sent.messages,
        "rows": sent.rows,
        "seconds": round(sent.seconds, 3),
        "topic": sent.topic,
    }
    if as_json:
        print_json(facts)
    else:
        messages = "" if n_records == sent.messages else f" in {sent.messages} messages"
        out.print(f"{n_records} records sent to {sent.topic}{messages} in {sent.seconds:.1f} s")


def _tell_order(records: RecordFile) -> None:
    if records.columns is not None:
        err.print(
            f"{records.path}: columns are sent in the order of stream.feature_names",
            markup=False,
            highlight=False,
        )


def _produce_reports(
    settings: Settings,
    file: Path,
    key: str | None,
    local: _Local,
    shuffle: int | None,
    rate: float | None,
    as_json: bool,
) -> None:
    from streaming_pca.local.accountant import LocalAccountant
    from streaming_pca.service.produce_reports import arrange_vectors, mechanism_of, send_reports
    from streaming_pca.service.record_files import open_records
    from streaming_pca.settings import ConfigurationError

    radius = 1.0 if local.radius is None else local.radius
    mechanism = mechanism_of(settings.stream, local.epsilon, local.delta, radius)
    if local.accountant is None and (local.skip_spent or key is not None):
        option = "--key" if key is not None else "--local-skip-spent"
        raise ConfigurationError(
            f"{option} is about the users of --local-accountant, as reports are sent without keys: "
            f"add --local-accountant FILE, or leave out {option}"
        )
    records = arrange_vectors(open_records(file, key), settings.stream)
    _tell_order(records)
    if local.accountant is None:
        err.print("no --local-accountant: nothing keeps a row from being reported again", markup=False)
    opened = nullcontext() if local.accountant is None else LocalAccountant(local.accountant)
    with progress_bar() as progress, opened as accountant:
        task = progress.add_task("privatizing", total=len(records))
        sent = send_reports(
            settings.kafka,
            settings.stream.input,
            records,
            mechanism,
            accountant=accountant,
            skip_spent=local.skip_spent,
            shuffle=shuffle,
            rate=rate,
            progress=lambda n: progress.update(task, advance=n),
        )
    skipped = len(records) - sent.messages
    facts = {
        "records": sent.messages,
        "messages": sent.messages,
        "rows": sent.rows,
        "skipped": skipped,
        "epsilon": mechanism.epsilon,
        "delta": mechanism.delta,
        "radius": mechanism.radius,
        "sigma": mechanism.sigma,
        "accountant": None if local.accountant is None else str(local.accountant),
        "seconds": round(sent.seconds, 3),
        "topic": sent.topic,
    }
    if as_json:
        print_json(facts)
        return
    left_out = f", {skipped} rows of users who had reported left out" if skipped else ""
    out.print(
        f"{sent.messages} reports of ({mechanism.epsilon:g}, {mechanism.delta:g}) made and sent to "
        f"{sent.topic} in {sent.seconds:.1f} s{left_out}"
    )
