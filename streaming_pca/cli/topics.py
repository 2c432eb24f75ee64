"""Commands `streaming-pca topics`."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streaming_pca.cli.common import (
    ConfigOption,
    JsonOption,
    charge_text,
    chosen_streams,
    err,
    print_json,
    say,
    step,
)
from streaming_pca.errors import UserError

if TYPE_CHECKING:
    from streaming_pca.privacy.ledger.entries import Cap

app = typer.Typer(help="Create the topics of streams, and check their settings.", no_args_is_help=True)

StreamOption = Annotated[
    str | None, typer.Option("--stream", help="One stream of the file; by default all of them.")
]


@app.command("create")
def topics_create(
    config: ConfigOption,
    cap: Annotated[
        str,
        typer.Option(
            metavar="EPSILON,DELTA",
            help="Cap on each record's charges by all jobs together; inf,inf for no cap, as a stream "
            "that is not private needs.",
        ),
    ],
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions of the input topic.")] = 3,
    replication: Annotated[
        int, typer.Option(min=1, help="Replicas of each topic; with 3 or more, two must be in sync.")
    ] = 1,
    budget_filter: Annotated[
        Literal["basic", "zcdp"],
        typer.Option("--filter", help="Composition that adds up the charges on a record."),
    ] = "basic",
    stream: StreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create streams' missing topics and open their ledgers with a cap.

    Existing topics are not changed, so run the command again after adding a stream.

    [dim]Example: streaming-pca topics create --config stream.toml --cap 1,1e-6[/]
    """
    from streaming_pca.admin.topics import create_with_cap

    streams, chosen_cap = chosen_streams(config, stream), _cap(cap)
    with step("creating topics"):
        how = (budget_filter, partitions, replication)
        created, opened, warnings = create_with_cap(streams, chosen_cap, *how)
    for line in warnings:
        say(f"warning: {line}", err)
    if as_json:
        print_json({"created": created, "cap": opened.cap.model_dump(mode="json"), "filter": opened.filter})
    else:
        found = opened.cap.model_dump(mode="json")
        say(f"created: {', '.join(created) or 'nothing, all topics existed'}")
        say(
            f"cap per record: epsilon {charge_text(found['epsilon'])}, "
            f"delta {charge_text(found['delta'])} ({opened.filter} composition)"
        )
        if opened.cap.epsilon == math.inf or opened.cap.delta >= 1:
            say("this cap does not protect any record: jobs may charge any amount")


@app.command("check")
def topics_check(config: ConfigOption, stream: StreamOption = None, as_json: JsonOption = False) -> None:
    """Check the settings of the topics and the broker, and name each correction.

    An error keeps a worker from starting; a warning does not. The exit status is 2 if there are errors.
    The command also shows the input topic's configuration and its meaning for the stream.

    [dim]Example: streaming-pca topics check --config stream.toml --json[/]
    """
    from streaming_pca.service.topics.find import check_topics, describe_input

    found: dict[str, tuple[list[str], bool, dict[str, object]]] = {}
    facts_of_inputs: dict[str, dict[str, str]] = {}
    streams = chosen_streams(config, stream)
    with step("checking topics of streams", len(streams)) as checking:
        for settings in streams:
            found_facts = describe_input(settings.kafka, settings.stream)
            facts_of_inputs |= {each.line: asdict(each) for each in found_facts}
            for problem in check_topics(settings.kafka, settings.stream)[1]:
                # Streams may share their input, its ledger and the broker.
                names, _, _ = found.setdefault(problem.line, ([], problem.fatal, problem.to_json()))
                names.append(settings.stream.name)
            checking.advance()
    ok = not any(fatal for _, fatal, _ in found.values())
    if as_json:
        problems = [facts | {"streams": names} for names, _, facts in found.values()]
        print_json({"ok": ok, "problems": problems, "input": list(facts_of_inputs.values())})
    else:
        for line, (_, fatal, _) in found.items():
            say(f"{'error' if fatal else 'warning'}: {line}", err)
        for line in facts_of_inputs:
            say(line)
        say("topics are configured correctly" if ok else "topics are NOT configured correctly")
    if not ok:
        sys.exit(2)


@app.command("acls")
def topics_acls(
    config: ConfigOption,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE", help="producer, reader, dashboard, auditor, projector, worker or operator."
        ),
    ],
    principal: Annotated[
        str | None, typer.Option(metavar="User:NAME", help="User to permit; by default kafka.sasl_username.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Topic of a projector's projections.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Grant them, with the settings' own user, and print nothing.")
    ] = False,
    stream: StreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the permissions that a role needs, as options of kafka-acls.sh --add.

    Each line is one call of that program. Permissions are never revoked. A worker's permissions contain the
    ids of its input topics, which the command reads from the broker: grant them after the topics are created,
    and again after one was recreated. For other roles it connects only with --apply.

    [dim]Example: streaming-pca topics acls --config stream.toml --role worker --principal User:pca[/]
    """
    from streaming_pca.admin import access

    streams = chosen_streams(config, stream)
    wanted = access.permissions(role, streams, output, access.topic_ids(role, streams))
    user = access.choose_principal(principal, streams[0].kafka)
    if apply:
        access.apply_permissions(streams[0].kafka, wanted, user)
    elif as_json:
        print_json({"principal": user, "permissions": [asdict(each) for each in wanted]})
    else:
        for line in access.as_options(wanted, user):
            print(line)


def _cap(text: str) -> Cap:
    from pydantic import ValidationError

    from streaming_pca.privacy.ledger.entries import Cap

    parts = text.split(",")
    if len(parts) != 2:
        raise UserError(f"--cap must be EPSILON,DELTA, as in --cap 1,1e-6, not {text!r}")
    try:
        return Cap(epsilon=parts[0], delta=parts[1])
    except ValidationError as error:
        raise UserError(f"--cap: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
