"""`streaming-pca produce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, err, out, print_json, progress_bar


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
            'For privacy_unit = "user" keys are the users.',
        ),
    ] = None,
    content_type: Annotated[
        Literal["octets", "npy", "json", "arrow"],
        typer.Option(help="Of the messages; octets are the fastest to read."),
    ] = "octets",
    as_json: JsonOption = False,
) -> None:
    """Send a file of records to the stream's input topic.

    Columns that have names are put in the order of stream.feature_names.

    [dim]Examples:

    streaming-pca produce records.npy --config stream.toml --shuffle 7

    streaming-pca produce rows.parquet --config stream.toml --rows-per-message 50

    streaming-pca produce rows.csv --config stream.toml --rows-per-message 4 --factors --content-type json

    streaming-pca produce visits.csv --config stream.toml --key user_id[/]
    """
    from streaming_pca.configuration import load_settings
    from streaming_pca.service.produce import arrange, send_records
    from streaming_pca.service.record_files import open_records

    settings = load_settings(config, stream)
    found = open_records(file, key)
    records = arrange(found, settings.stream, rows_per_message=rows_per_message, factors=factors)
    if records.columns is not None:
        err.print(
            f"{file}: columns are sent in the order of stream.feature_names", markup=False, highlight=False
        )
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
