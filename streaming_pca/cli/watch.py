"""Command `streaming-pca watch`."""

from __future__ import annotations

import math
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming_pca.cli.common import (
    BootstrapOption,
    JsonOption,
    MaybeConfig,
    StreamOption,
    connection_to,
    end_without_output,
    err,
    fail,
    out,
    print_json,
    record_text,
    say,
    wrapped,
)
from streaming_pca.errors import UserError
from streaming_pca.text import printable

if TYPE_CHECKING:
    from streaming_pca.admin.watch import FollowedRelease
    from streaming_pca.client.releases import NotARelease
    from streaming_pca.config.kafka import KafkaSettings
    from streaming_pca.config.settings import StreamSettings
    from streaming_pca.estimators.remedies import Advice

_HEAD = ("batch", "records", "moved", "created", "explained variance")
_INDENT = 7
_PATIENCE = 5.0  # seconds without a release before a line explains possible reasons
_REPEAT = 30.0  # seconds between later lines while the first release is awaited
_NOTHING_YET = (
    "no release yet: the first one comes when a batch is full or max_wait_seconds is over; "
    "a worker's first run on a machine compiles before that, for up to half a minute"
)
_OTHERS_ONLY = "it has messages, but no release: correct the topic's name, STREAM.releases"
_MOST_OTHERS = 10  # messages that are not releases before a line replaces them


def watch(
    config: MaybeConfig = None,
    stream: StreamOption = None,
    releases: Annotated[str | None, typer.Option(help="Releases topic, without --config.")] = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the first release, not with the latest.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Exit after this number of releases.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, help="Exit with status 1 after this number of seconds without a release."),
    ] = None,
) -> None:
    """Follow the releases of a stream: the latest one, then each new one.

    The column "moved" is the largest principal angle to the previous release. An angle with "≤" bounds the
    error: the angle to the subspace of the same records without noise. Other errors cover noise and clipping.
    Angles are in radians in JSON and in degrees in text. Shares of null and clipped records are those of the
    release's batch, if the stream has diagnostics; text limits them to 0% to 100%, JSON does not. Lines below
    a doubtful release give the reasons, and what helps where that has changed.

    [dim]Example: streaming-pca watch --config stream.toml[/]
    """
    from streaming_pca.admin.watch import follow_releases

    kafka, topic, settings = _topic_of(config, stream, releases, bootstrap)
    with (
        _signals_noted() as stopped,
        closing(follow_releases(kafka, topic, from_beginning=from_beginning, stopped=stopped)) as items,
    ):
        try:
            _show(items, as_json, count, timeout, settings)
        except BrokenPipeError as closed:
            end_without_output(closed, 0)
        except TimeoutError as late:
            fail(TimeoutError(f"{topic}: {late}"), 1)


def _show(
    items: Iterator[FollowedRelease | NotARelease | None],
    as_json: bool,
    count: int | None,
    timeout: float | None,
    settings: StreamSettings | None,
) -> None:
    """Print releases until the end; TimeoutError if the next one is late."""
    from streaming_pca.client.releases import NotARelease

    # Readers lack the permissions for it.
    ask = "operators see by `streaming-pca status --config FILE` whether a worker runs"
    reasons = f"{_NOTHING_YET}; {ask}"
    shown = others = 0
    since = time.monotonic()
    headed, due = as_json, _PATIENCE
    helps: list[str] = []
    for item in items:
        if not headed:
            # Only after the topic was read, so that an error is the only output.
            _print_line(_HEAD)
            headed = True
        if isinstance(item, NotARelease):
            others += 1
            if item.version:
                due = math.inf  # there is a release, which this version cannot read
            if not item.version and not item.topic.endswith(".releases"):
                reasons = ask = _OTHERS_ONLY
            if others <= _MOST_OTHERS:
                say(f"warning: {item.unreadable() if item.version else f'{item}: skipped'}", err)
            elif others == _MOST_OTHERS + 1:
                say(f"warning: more messages of {item.topic} are not releases: name STREAM.releases", err)
        elif item is not None:
            helps = _print_release(item, as_json, settings, helps)
            shown += 1
            since = time.monotonic()
        waited = time.monotonic() - since
        if not shown and waited >= due:
            say(reasons if due == _PATIENCE else f"no release after {waited:.0f} s", err)
            due += _REPEAT
        if shown == count or _reader_is_gone():
            break
        if timeout is not None and waited > timeout:
            within = f"release within {timeout:g} s"
            raise TimeoutError(f"no other {within}" if shown else f"no {within}: {ask}")


def _topic_of(
    config: Path | None, stream: str | None, releases: str | None, bootstrap: str | None
) -> tuple[KafkaSettings, str, StreamSettings | None]:
    from streaming_pca.config.loading import load_settings

    if config is not None:
        if releases is not None or bootstrap is not None:
            raise UserError("--releases and --bootstrap are for use without --config")
        settings = load_settings(config, stream)
        return settings.kafka, settings.stream.releases_topic, settings.stream
    if releases is None or stream is not None:
        raise UserError(
            "name the releases by --config FILE (and --stream), or by --releases TOPIC (and --bootstrap)"
        )
    return connection_to(bootstrap), releases, None


@contextmanager
def _signals_noted() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM has arrived.

    A second signal ends the process immediately.
    """
    came: list[int] = []

    def note(number: int, frame: Any) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reader_is_gone() -> bool:
    """Return whether standard output is a pipe without a reader.

    Without this check `| head` would wait for one more release.
    """
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _print_release(
    item: FollowedRelease, as_json: bool, settings: StreamSettings | None = None, helps: Sequence[str] = ()
) -> list[str]:
    """Print a release, and what helps unless the lines are ``helps``; return them."""
    from streaming_pca.admin.watch import advice_on

    advice = advice_on(item.release, settings)
    if as_json:
        print_json(_facts(item, advice))
        sys.stdout.flush()
        return []
    _print_line(_cells(item))
    if advice is None:
        return []
    first, *others = advice.reasons
    lines = [f"doubtful: {first}", *others, *(advice.helps if advice.helps != helps else ())]
    for line in lines:
        print(wrapped(line, _INDENT + 2, " " * _INDENT), flush=True)
    return advice.helps


def _facts(item: FollowedRelease, advice: Advice | None) -> dict[str, Any]:
    from streaming_pca.admin.watch import describe_release

    release = item.release
    return {
        "stream": release.stream,
        "batch": release.batch,
        "records": release.records,
        "principal_angle": item.principal_angle,
        **release.accuracy,
        **release.counts,
        **describe_release(release, advice),
    }


def _cells(item: FollowedRelease) -> tuple[str, ...]:
    from streaming_pca.cli.plan import counts_text, explained_text

    release = item.release
    angle = "-" if item.principal_angle is None else f"{math.degrees(item.principal_angle):.3f}°"
    details = explained_text(release.accuracy)
    if release.outcome is not None:
        details = f"{details}; {release.outcome}"
    if release.counts:
        details = f"{details}; {counts_text(release.counts)}"
    return str(release.batch), str(release.records), angle, printable(release.created), printable(details)


def _print_line(cells: tuple[str, ...]) -> None:
    """Print a row; in a narrow terminal, put its last cell, or all cells, on separate lines."""
    batch, records, angle, created, variances = cells
    head = f"{batch:>6} {records:>12} {angle:>9}  {created:<29}"
    # Not with rich, which ends the process with status 1 if the reader is gone.
    if len(head) + 2 + len(variances) <= out.width:
        print(f"{head}  {variances}", flush=True)
    elif len(head) <= out.width:
        print(head.rstrip(), wrapped(variances, _INDENT, " " * _INDENT), sep="\n", flush=True)
    elif cells != _HEAD:
        print(record_text(dict(zip(_HEAD, cells, strict=True))), end="\n\n", flush=True)
