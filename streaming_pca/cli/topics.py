"""`streaming-pca topics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, out, print_json, settings_of

if TYPE_CHECKING:
    from streaming_pca.privacy.entries import Cap


app = typer.Typer(help="Create the topics of a stream.", no_args_is_help=True)


@app.command("create")
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

    settings = settings_of(config)
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
        print_json({"created": created, "cap": opened.cap.model_dump(mode="json"), "filter": opened.filter})
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
