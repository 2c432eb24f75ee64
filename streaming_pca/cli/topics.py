"""`streaming-pca topics`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, err, out, print_json

if TYPE_CHECKING:
    from streaming_pca.privacy.entries import Cap
    from streaming_pca.settings import Settings

app = typer.Typer(help="Create the topics of a stream, and check how they are kept.", no_args_is_help=True)


StreamOption = Annotated[
    str | None, typer.Option("--stream", help="One stream of the file; all of them when not given.")
]


@app.command("create")
def topics_create(
    config: ConfigOption,
    cap: Annotated[
        str,
        typer.Option(
            help="EPSILON,DELTA that no record may ever pass, by all jobs together; "
            "inf,inf for none, which a stream that is not private needs."
        ),
    ],
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the input topic.")] = 3,
    replication: Annotated[
        int, typer.Option(min=1, help="Replicas of each topic; with 3 or more, two must be in sync.")
    ] = 1,
    budget_filter: Annotated[
        str, typer.Option("--filter", help="How charges on a record add up: basic or zcdp.")
    ] = "basic",
    stream: StreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a stream's missing topics and open its ledger with a cap.

    Topics that exist are left as they are: run it again after adding a stream.

    [dim]Example: streaming-pca topics create --config stream.toml --cap 1,1e-6[/]
    """
    from streaming_pca.privacy.entries import Opened
    from streaming_pca.privacy.parameters import format_rational
    from streaming_pca.service.admission import check_room
    from streaming_pca.service.checkpoint import open_ledger
    from streaming_pca.service.topics import create_topics, find_topics
    from streaming_pca.settings import ConfigurationError

    wanted = _cap(cap)
    if budget_filter not in ("basic", "zcdp"):
        raise ConfigurationError(f"--filter must be basic or zcdp, not {budget_filter!r}")
    rule: Literal["basic", "zcdp"] = "zcdp" if budget_filter == "zcdp" else "basic"
    streams = streams_of(config, stream)
    for settings in streams:
        # Before anything is created: a cap can never change.
        check_room(settings.stream, wanted, rule)
    created, opened = [], None
    for settings in streams:
        created += create_topics(settings.kafka, settings.stream, partitions, replication)
        found = find_topics(settings.kafka, settings.stream)
        entry = Opened(
            topic_id=found.topic_id,
            topic=settings.stream.input,
            cap=wanted,
            filter=rule,
        )
        opened = open_ledger(settings.kafka, entry, settings.stream.ledger_topic)
        if opened.cap != wanted or opened.filter != entry.filter:
            raise ConfigurationError(
                f"--cap: ledger {settings.stream.ledger_topic!r} was opened with "
                f"{format_rational(opened.cap.epsilon)},{format_rational(opened.cap.delta)} "
                f"({opened.filter}), which can never change: use that cap, or another input topic"
            )
    assert opened is not None, "a file holds a stream, or was refused"
    if as_json:
        print_json({"created": created, "cap": opened.cap.model_dump(mode="json"), "filter": opened.filter})
    else:
        out.print(f"created: {', '.join(created) or 'nothing, all were there'}", highlight=False)
        out.print(
            f"cap per record: epsilon {format_rational(opened.cap.epsilon)}, "
            f"delta {format_rational(opened.cap.delta)} ({opened.filter} composition)",
            highlight=False,
        )
        if opened.cap.epsilon == math.inf or opened.cap.delta >= 1:
            out.print("such a cap protects no record: a job may charge it anything", highlight=False)


@app.command("check")
def topics_check(config: ConfigOption, stream: StreamOption = None, as_json: JsonOption = False) -> None:
    """Name everything that is wrong with how the topics and the broker are set, and how to mend it.

    One line each. An error keeps a worker from starting; a warning does not.
    Exit status 2 if there are errors. Changes nothing.

    [dim]Example: streaming-pca topics check --config stream.toml --json[/]
    """
    from streaming_pca.service.topics import check_topics

    found: dict[str, tuple[list[str], bool, dict[str, object]]] = {}
    for settings in streams_of(config, stream):
        for problem in check_topics(settings.kafka, settings.stream)[1]:
            # Streams share their input, its ledger and the broker.
            names, _, _ = found.setdefault(problem.line, ([], problem.fatal, problem.to_json()))
            names.append(settings.stream.name)
    ok = not any(fatal for _, fatal, _ in found.values())
    if as_json:
        print_json({"ok": ok, "problems": [facts | {"streams": names} for names, _, facts in found.values()]})
    else:
        for line, (_, fatal, _) in found.items():
            kind = "error" if fatal else "warning"
            err.print(f"{kind}: {line}", markup=False, highlight=False, soft_wrap=True)
        out.print("topics are as they must be" if ok else "NOT as they must be", highlight=False)
    if not ok:
        sys.exit(2)


def streams_of(path: Path, stream: str | None) -> tuple[Settings, ...]:
    """One stream of a file, or all of them."""
    from streaming_pca.configuration import load_settings, load_streams

    return load_streams(path) if stream is None else (load_settings(path, stream),)


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
