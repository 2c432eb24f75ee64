"""The command line: each command parses, calls one function and prints."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from streaming_pca import __version__

if TYPE_CHECKING:
    from streaming_pca.privacy.entries import Cap
    from streaming_pca.settings import KafkaSettings, Settings

app = typer.Typer(
    name="streaming-pca",
    help="Differentially private streaming PCA over Apache Kafka.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
ledger_app = typer.Typer(help="Read the privacy ledger of an input topic.", no_args_is_help=True)
topics_app = typer.Typer(help="Create the topics of a stream.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
app.add_typer(topics_app, name="topics")

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


def main() -> NoReturn:
    """Entry point: a user's mistake is one line on standard error and a status above 0."""
    from streaming_pca.service.errors import RecordsLost, SessionLost, StreamRefused

    try:
        app()
    except (StreamRefused, RecordsLost) as error:
        _fail(error, 2)
    except SessionLost as error:
        _fail(error, 4)
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        _fail(error, status)
    sys.exit(0)


def _status_of(error: Exception) -> int | None:
    """Exit status of an error that a user can mend; None for a bug."""
    from streaming_pca.embedded import EmbeddedBrokerUnavailable
    from streaming_pca.service.clients import BrokerUnreachable
    from streaming_pca.service.produce import RecordFileError
    from streaming_pca.service.topics import TopicError
    from streaming_pca.settings import ConfigurationError

    if isinstance(error, BrokerUnreachable):
        return 4
    if isinstance(error, ConfigurationError | TopicError | RecordFileError | EmbeddedBrokerUnavailable):
        return 2
    return None


def _fail(error: BaseException, status: int) -> NoReturn:
    line = " ".join(str(error).split())
    err.print(f"error: {line}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)


def _settings(path: Path) -> Settings:
    from streaming_pca.settings import load_settings

    return load_settings(path)


def _ledger_of(
    config: Path | None, input_topic: str | None, bootstrap: str | None
) -> tuple[KafkaSettings, str]:
    from streaming_pca.settings import ConfigurationError, KafkaSettings

    if config is not None:
        settings = _settings(config)
        return settings.kafka, settings.stream.input
    if input_topic is None:
        raise ConfigurationError("name the ledger by --config FILE, or by --input TOPIC (and --bootstrap)")
    return KafkaSettings(bootstrap_servers=bootstrap or "localhost:9092"), input_topic


def _print_json(data: Any) -> None:
    print(json.dumps(data, allow_nan=False))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"streaming-pca {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    # The client logs every reconnect; what matters of it reaches our own log.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


@app.command()
def worker(config: ConfigOption) -> None:
    """Run a worker: lead the stream, or stand by until the leader is gone.

    [dim]Example: streaming-pca worker --config stream.toml[/]
    """
    from streaming_pca.service.worker import run_worker

    status = run_worker(_settings(config))
    if status:
        sys.exit(status)


@app.command()
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

    settings = _settings(config)
    records = read_records(file)
    if records.shape[-1] != settings.stream.dim:
        raise RecordFileError(
            f"{file}: records have {records.shape[-1]} features, the stream's dim is {settings.stream.dim}: "
            "set stream.dim, or send another file"
        )
    with _progress() as progress:
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
        _print_json(facts)
    else:
        out.print(f"{sent.records} records sent to {sent.topic} in {sent.seconds:.1f} s")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )


@topics_app.command("create")
def topics_create(
    config: ConfigOption,
    cap: Annotated[
        str, typer.Option(help="EPSILON,DELTA that no record may ever pass, by all jobs together.")
    ],
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the input topic.")] = 3,
    replication: Annotated[int, typer.Option(min=1, help="Replication factor.")] = 1,
    budget_filter: Annotated[
        str, typer.Option("--filter", help="How charges on a record add up: basic or zcdp.")
    ] = "basic",
    as_json: JsonOption = False,
) -> None:
    """Create a stream's missing topics and open its ledger with a cap.

    [dim]Example: streaming-pca topics create --config stream.toml --cap 1,1e-6[/]
    """
    from streaming_pca.privacy.entries import Opened
    from streaming_pca.privacy.parameters import format_rational
    from streaming_pca.service.checkpoint import open_ledger
    from streaming_pca.service.topics import create_topics, find_topics
    from streaming_pca.settings import ConfigurationError

    settings = _settings(config)
    wanted = _cap(cap)
    if budget_filter not in ("basic", "zcdp"):
        raise ConfigurationError(f"--filter must be basic or zcdp, not {budget_filter!r}")
    created = create_topics(settings.kafka, settings.stream, partitions, replication)
    found = find_topics(settings.kafka, settings.stream)
    entry = Opened(
        topic_id=found.topic_id,
        topic=settings.stream.input,
        cap=wanted,
        filter="zcdp" if budget_filter == "zcdp" else "basic",
    )
    opened = open_ledger(settings.kafka, entry, settings.stream.ledger_topic)
    if opened.cap != wanted or opened.filter != entry.filter:
        raise ConfigurationError(
            f"--cap: ledger {settings.stream.ledger_topic!r} was opened with "
            f"{format_rational(opened.cap.epsilon)},{format_rational(opened.cap.delta)} ({opened.filter}), "
            "which can never change: use that cap, or another input topic"
        )
    if as_json:
        _print_json({"created": created, "cap": opened.cap.model_dump(mode="json"), "filter": opened.filter})
    else:
        out.print(f"created: {', '.join(created) or 'nothing, all were there'}", highlight=False)
        out.print(
            f"cap per record: epsilon {format_rational(opened.cap.epsilon)}, "
            f"delta {format_rational(opened.cap.delta)} ({opened.filter} composition)",
            highlight=False,
        )


def _cap(text: str) -> Cap:
    from pydantic import ValidationError

    from streaming_pca.privacy.entries import Cap
    from streaming_pca.settings import ConfigurationError

    parts = text.split(",")
    if len(parts) != 2:
        raise ConfigurationError(f"--cap must be EPSILON,DELTA, as in --cap 1,1e-6, not {text!r}")
    try:
        return Cap(epsilon=parts[0], delta=parts[1])
    except ValidationError as error:
        raise ConfigurationError(f"--cap: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


@ledger_app.command("show")
def ledger_show(
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the cap, the jobs and every entry.

    [dim]Example: streaming-pca ledger show --config stream.toml[/]
    """
    from streaming_pca.service.inspection import describe_ledger

    facts = describe_ledger(*_ledger_of(config, input_topic, bootstrap))
    if as_json:
        _print_json(facts)
        return
    cap = facts["cap"]
    cap_text = (
        "not open" if cap is None else f"epsilon {cap['epsilon']}, delta {cap['delta']} ({facts['filter']})"
    )
    table = Table(title=f"ledger of {facts['topic']}: cap {cap_text}")
    for name in ("offset", "entry", "job", "batch", "records", "epsilon", "delta", "void because"):
        table.add_column(name, justify="left" if name in ("entry", "job", "void because") else "right")
    for row in facts["entries"]:
        keys = ("offset", "kind", "job", "batch", "records", "epsilon", "delta", "void")
        table.add_row(*(str(row.get(key, "")) for key in keys))
    out.print(table)


@ledger_app.command("verify")
def ledger_verify(
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the whole ledger against the releases, independently of the code that wrote it.

    Exit status 1 if anything is wrong. [dim]Example: streaming-pca ledger verify --config stream.toml[/]
    """
    from streaming_pca.service.inspection import verify_ledger

    report = verify_ledger(*_ledger_of(config, input_topic, bootstrap))
    if as_json:
        _print_json(report.to_json())
    else:
        for problem in report.problems:
            err.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)
        out.print("verified" if report.ok else "NOT verified")
    if not report.ok:
        sys.exit(1)


@ledger_app.command("spent")
def ledger_spent(
    partition: Annotated[int, typer.Option(min=0, help="Partition of the record.")],
    offset: Annotated[int, typer.Option(min=0, help="Offset of the record.")],
    config: MaybeConfig = None,
    input_topic: InputOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what one record has been charged, and what is left.

    [dim]Example: streaming-pca ledger spent --config stream.toml --partition 0 --offset 41[/]
    """
    from streaming_pca.service.inspection import describe_spent

    facts = describe_spent(*_ledger_of(config, input_topic, bootstrap), partition, offset)
    if as_json:
        _print_json(facts)
        return
    table = Table(title=f"{facts['topic']}, partition {partition}, offset {offset}")
    for name in ("", "epsilon", "delta"):
        table.add_column(name)
    for job, charge in facts["jobs"].items():
        table.add_row(f"job {job}", charge["epsilon"], charge["delta"])
    for name in ("spent", "left", "cap"):
        table.add_row(name, facts[name]["epsilon"], facts[name]["delta"])
    out.print(table)


@app.command()
def estimators(as_json: JsonOption = False) -> None:
    """List the estimators.

    [dim]Example: streaming-pca estimators --json[/]
    """
    import dataclasses

    from streaming_pca.estimators.registry import ESTIMATORS

    cards = [e.card for _, e in sorted(ESTIMATORS.items())]
    if as_json:
        _print_json([dataclasses.asdict(card) for card in cards])
        return
    table = Table()
    for name in ("id", "what", "source", "private", "adjacency", "needs"):
        table.add_column(name)
    for card in cards:
        private = "yes" if card.private else "NO"
        table.add_row(card.id, card.summary, card.source, private, card.adjacency, card.needs)
    out.print(table)


@app.command()
def demo(
    rank: Annotated[int, typer.Option(min=1, max=144)] = 5,
    epsilon: Annotated[float, typer.Option(min=0.001)] = 1.0,
    delta: Annotated[float, typer.Option(min=1e-12, max=0.5)] = 1e-6,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    bootstrap: Annotated[
        str | None, typer.Option(help="Use this broker instead of the embedded one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the order of the flights.")] = 2013,
) -> None:
    """Push all flights of 2013 from New York through broker and worker, and judge the result.

    The last line of standard output is JSON. [dim]Example: streaming-pca demo --rank 3[/]
    """
    from streaming_pca.demo import DemoFailed, run_demo

    try:
        facts = run_demo(rank, epsilon, delta, plot, bootstrap, seed, out, err)
    except DemoFailed as error:
        _fail(error, 1)
    _print_json(facts)


if __name__ == "__main__":
    main()
