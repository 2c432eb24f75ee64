"""Commands `streaming-pca export` and `streaming-pca import`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming_pca.cli.common import ConfigOption, JsonOption, chosen_streams, err, log_step, print_json, say
from streaming_pca.errors import UserError

if TYPE_CHECKING:
    from streaming_pca.config.settings import Settings

OneInput = Annotated[
    str | None,
    typer.Option(
        "--stream", help="Stream that reads the input topic; needed if the file has several inputs."
    ),
]


def export_backup(
    file: Annotated[Path, typer.Argument(help="New .zip file to write the backup to.", show_default=False)],
    config: ConfigOption,
    stream: OneInput = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an input topic's ledger and its streams' states to a file.

    The backup contains the states of all streams that read the topic, including streams outside the
    configuration. Workers may run at the same time. The backup is verified first, as by `ledger verify`, and
    each state is compared with the ledger's last commit; if anything is wrong, no file is written (status 1).

    The file is as secret as the state topics, because a state can contain a noisy result that is not
    published yet. Only the file's owner can read it (mode 0600).

    [dim]Examples:

    streaming-pca export ledger-2026-07-01.zip --config stream.toml

    streaming-pca export backup.zip --config streams.toml --stream flights --json[/]
    """
    from streaming_pca.admin import backup

    settings = _one_input(config, stream)[0]
    with _problems_first(), log_step(f"exporting the ledger of {settings.stream.input}"):
        written = backup.export_backup(settings.kafka, settings.stream.input, file)
    facts = {
        "file": str(file),
        "topic": written.topic,
        "topic_id": written.topic_id,
        "entries": len(written.entries),
        "states": sorted(written.states),
        "created": written.created,
    }
    if as_json:
        print_json(facts)
        return
    states = ", ".join(sorted(written.states)) or "none"
    say(f"{len(written.entries)} entries of {written.topic}.ledger, states: {states}")
    say(f"verified, and written to {file}")


def import_backup(
    file: Annotated[Path, typer.Argument(help="Backup that `export` wrote.", show_default=False)],
    config: ConfigOption,
    stream: OneInput = None,
    replication: Annotated[
        int | None,
        typer.Option(min=1, help="Replicas of new topics; by default as many as the input topic has."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a lost ledger and lost states from the newest backup.

    Missing topics are created, and contents that agree with the backup are kept.
    Anything else is refused, so delete a damaged topic first.

    Use only the newest backup: with an older one, later batches would be charged and released a second time.
    A backup is refused if a release, committed offsets, or a stream unknown to the backup show that it is
    old; if it was changed; and if the input topic was recreated since, because its records are then other
    data. It is also refused if `ledger charge` or `stream` has written an entry since. If it is the newest
    backup all the same: stop the workers, delete the offsets of the group that the error names, and repeat.

    Running workers lose their sessions. Everything is written in one transaction, so an interrupted import
    has written nothing and can be run again. A second import does not change anything.

    [dim]Example: streaming-pca import ledger-2026-07-01.zip --config stream.toml[/]
    """
    from streaming_pca.admin import restore

    found = _one_input(config, stream)
    with _problems_first(), log_step(f"importing {file}"):
        done = restore.import_backup(found[0].kafka, [s.stream for s in found], file, replication)
    facts = {
        "file": str(file),
        "topic": done.backup.topic,
        "topic_id": done.backup.topic_id,
        "created": list(done.created),
        "entries": len(done.backup.entries),
        "entries_written": done.entries,
        "states_written": list(done.states),
        "newer_entries": done.newer,
        "lost_releases": done.lost_releases,
    }
    if done.lost_releases:
        say(
            f"warning: {done.lost_releases} releases recorded in the ledger are missing from the releases "
            "topics; `ledger verify` will report them",
            err,
        )
    if as_json:
        print_json(facts)
        return
    if done.entries or done.states:
        states = ", ".join(done.states) or "none"
        say(f"{done.entries} entries written to {done.backup.topic}.ledger, states: {states}")
        say("read back and verified")
    else:
        newer = f", and {done.newer} newer entries" if done.newer else ""
        say(f"nothing to do: the topics hold the whole backup{newer}")


def _one_input(config: Path, stream: str | None) -> list[Settings]:
    """Load the streams with one input topic: the named stream's, or the file's only one."""
    everything = chosen_streams(config, None)
    inputs = {s.stream.input for s in (everything if stream is None else chosen_streams(config, stream))}
    if len(inputs) > 1:
        raise UserError(
            f"{config}: its streams read several inputs ({', '.join(sorted(inputs))}): "
            "name a stream of one of them with --stream"
        )
    return [s for s in everything if s.stream.input in inputs]


@contextmanager
def _problems_first() -> Iterator[None]:
    """Print each problem of a failed verification before its error line."""
    from streaming_pca.admin.backup import BackupNotVerified

    try:
        yield
    except BackupNotVerified as error:
        for problem in error.problems:
            say(f"problem: {problem}", err)
        raise
