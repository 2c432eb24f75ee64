"""`streaming-pca export` and `streaming-pca import`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, err, fail, out, print_json
from streaming_pca.cli.topics import streams_of

if TYPE_CHECKING:
    from streaming_pca.settings import Settings

StreamOption = Annotated[
    str | None, typer.Option("--stream", help="A stream of the file, where they read several inputs.")
]


def export_copy(
    file: Annotated[Path, typer.Argument(help="The copy, a new .zip file.", show_default=False)],
    config: ConfigOption,
    stream: StreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an input topic's ledger and its streams' states to a file.

    Of all streams that read the topic, also of those that are not in the
    configuration. Workers may run meanwhile. What is copied is verified
    first, as `ledger verify` does it, and each state is compared with what
    the ledger committed: exit status 1 and no file if anything is wrong.

    The file is as secret as the state topics: a state can hold a noisy
    result that is not published yet. Only its owner can read it (mode 0600).

    [dim]Examples:

    streaming-pca export ledger-2026-07-01.zip --config stream.toml

    streaming-pca export copy.zip --config streams.toml --stream flights --json[/]
    """
    from streaming_pca.service import backup

    settings = _one_input(config, stream)[0]
    with _problems_first():
        copy = backup.export_copy(settings.kafka, settings.stream.input, file)
    facts = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "topic": copy.topic,
        "topic_id": copy.topic_id,
        "entries": len(copy.entries),
        "states": sorted(copy.states),
        "created": copy.created,
    }
    if as_json:
        print_json(facts)
        return
    states = ", ".join(sorted(copy.states)) or "none"
    out.print(f"{len(copy.entries)} entries of {copy.topic}.ledger, states: {states}", highlight=False)
    out.print(f"verified, and written to {file}", highlight=False, soft_wrap=True)


def import_copy(
    file: Annotated[Path, typer.Argument(help="A copy that `export` made.", show_default=False)],
    config: ConfigOption,
    stream: StreamOption = None,
    replication: Annotated[
        int | None,
        typer.Option(min=1, help="Replicas of topics that are created; the input topic's when not given."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring back a lost ledger and lost states from the newest copy.

    Topics that are missing are created; what is there and is the copy's is
    kept; anything else is refused, so delete a topic that is damaged.

    Only the newest copy will do: with an older one, what came after it would
    be charged and answered a second time. A copy is refused if a release, the
    offsets that a stream has committed, or a stream that the copy does not
    know show that it is old; if it was changed; and if the input topic was
    created anew since, for then its records are other data. What `ledger
    charge` and `stream` wrote after the copy leaves no other trace: do it
    again.

    Running workers lose their sessions. All is written in one transaction,
    so an import that was cut short has written nothing: run it again. To
    import twice is to import once.

    [dim]Example: streaming-pca import ledger-2026-07-01.zip --config stream.toml[/]
    """
    from streaming_pca.service import restore

    found = _one_input(config, stream)
    with _problems_first():
        done = restore.import_copy(found[0].kafka, [s.stream for s in found], file, replication)
    facts = {
        "file": str(file),
        "topic": done.copy.topic,
        "topic_id": done.copy.topic_id,
        "created": list(done.created),
        "entries": len(done.copy.entries),
        "entries_written": done.entries,
        "states_written": list(done.states),
        "newer_entries": done.newer,
        "lost_releases": done.lost_releases,
    }
    if done.lost_releases:
        err.print(
            f"warning: {done.lost_releases} releases that the ledger names are on no topic, "
            "and `ledger verify` will name them",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if as_json:
        print_json(facts)
        return
    if done.entries or done.states:
        states = ", ".join(done.states) or "none"
        out.print(
            f"{done.entries} entries written to {done.copy.topic}.ledger, states: {states}", highlight=False
        )
        out.print("read back and verified", highlight=False)
    else:
        newer = f", and {done.newer} newer entries" if done.newer else ""
        out.print(f"nothing to do: the topics hold the whole copy{newer}", highlight=False)


def _one_input(config: Path, stream: str | None) -> list[Settings]:
    """The streams of a file that read one input topic: the named stream's, or all of them."""
    from streaming_pca.settings import ConfigurationError

    everything = streams_of(config, None)
    inputs = {s.stream.input for s in (everything if stream is None else streams_of(config, stream))}
    if len(inputs) > 1:
        raise ConfigurationError(
            f"{config}: its streams read several inputs ({', '.join(sorted(inputs))}): "
            "name a stream of one of them with --stream"
        )
    return [s for s in everything if s.stream.input in inputs]


@contextmanager
def _problems_first() -> Iterator[None]:
    """What the verifier found, a line each, then the one line of the error."""
    from streaming_pca.service.backup import CopyNotVerified

    try:
        yield
    except CopyNotVerified as error:
        for problem in error.problems:
            err.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)
        fail(error, 1)
