"""`streaming-pca produce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, out, print_json, progress_bar, settings_of


def produce(
    file: Annotated[Path, typer.Argument(help="Records: .npy (m, d) or (m, r, d), or .csv, one a line.")],
    config: ConfigOption,
    shuffle: Annotated[int | None, typer.Option(help="Public seed: send in a random order.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Records a second, at most.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Send a file of records to the stream's input topic.

    [dim]Example: streaming-pca produce records.npy --config stream.toml --shuffle 7[/]
    """
    from streaming_pca.service.produce import RecordFileError, read_records, send_records

    settings = settings_of(config)
    records = read_records(file)
    if records.shape[-1] != settings.stream.dim:
        raise RecordFileError(
            f"{file}: records have {records.shape[-1]} features, the stream's dim is {settings.stream.dim}: "
            "set stream.dim, or send another file"
        )
    with progress_bar() as progress:
        task = progress.add_task("sending", total=len(records))
        sent = send_records(
            settings.kafka,
            settings.stream.input,
            records,
            dtype=settings.stream.dtype,
            shuffle=shuffle,
            rate=rate,
            progress=lambda n: progress.update(task, advance=n),
        )
    facts = {"records": sent.records, "seconds": round(sent.seconds, 3), "topic": sent.topic}
    if as_json:
        print_json(facts)
    else:
        out.print(f"{sent.records} records sent to {sent.topic} in {sent.seconds:.1f} s")
