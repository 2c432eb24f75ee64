"""Health of a stream in plain words, from public quantities and published values only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from streaming_pca.dashboard.models import Health

Level = Literal["ok", "warning", "problem", "unknown"]

MANY_NULL = 0.5  # share of null records above which the level is "problem", as in the worker's log
SOME_NULL = 0.05  # share of null records above which the level is "warning"
_USUAL = 5  # multiple of the usual interval between releases after which a release is late
_LEAST_SECONDS = 60.0  # time a batch must be full before its release is late
_WATCHED_SECONDS = 120.0
_LEAST_SAMPLES = 8
_ORDER: Sequence[Level] = ("problem", "warning", "unknown", "ok")


@dataclass(frozen=True)
class Facts:
    """Facts that determine the verdict."""

    problem: str | None = None  # reason why topics or the ledger cannot be read
    disconnected: bool = False  # the numbers may be outdated
    loaded: bool = True  # False until the topics have been read to their ends
    unit: str = "message"  # unit of privacy
    standing: str = "active"
    reason: str | None = None  # reason why the job was paused or retired, or why its last batch was abandoned
    abandoned_last: bool = False
    refused: str | None = None  # reason why the ledger refused the stream's last entry
    cannot_charge: str | None = None  # reason why the ledger will refuse the next batch
    open_ledger: bool = True
    processed: int | None = None  # number of records, once a stream of known length has processed all of them
    group: str = ""  # group of the workers that can lead the stream
    leader: bool | None = None  # True if a process leads; None if the broker does not report it
    candidates: int = 0
    lag: int | None = None
    lag_grows: bool = False
    full_seconds: float = 0.0  # seconds since enough records wait for the next batch
    doubts: tuple[str, ...] = ()  # reasons not to rely on the last release, in words
    least_null_share: float = 0.0
    unreadable: int = 0
    seconds_since: float | None = None  # seconds since the last release
    usual_seconds: float | None = None  # usual seconds between two releases; None before there are three


def judge(facts: Facts) -> Health:
    """Return the verdict with all reasons, the worst first."""
    if facts.problem is not None:
        return Health(level="problem", reasons=[facts.problem])
    if facts.disconnected:
        return Health(level="unknown", reasons=["The numbers may be old."])
    if not facts.loaded:
        return Health(level="unknown", reasons=["The topics are still being read."])
    reasons = [(level, text) for applies, level, text in _rules(facts) if applies]
    reasons.sort(key=lambda pair: _ORDER.index(pair[0]))
    return Health(level=reasons[0][0] if reasons else "ok", reasons=[text for _, text in reasons])


def _rules(facts: Facts) -> Iterator[tuple[bool, Level, str]]:
    """Yield each reason, with its level and whether it applies."""
    retired, paused = facts.standing == "retired", facts.standing == "paused"
    reason = "" if facts.reason == "not given" else facts.reason  # the default of --reason
    because = f": {_sentence(reason)}" if reason else ", without a reason." if paused else "."
    runs = not (retired or paused or facts.processed is not None)
    closed = "The ledger is not open: operators set a cap by `streaming-pca topics create`."
    yield not facts.open_ledger, "problem", closed
    refused = f"The ledger refused this stream's last entry: {_sentence(facts.refused or '')}"
    blocked = runs and facts.cannot_charge is not None  # a reason with its own remedy
    yield facts.refused is not None, "problem", refused + " The worker's log has the remedy." * (not blocked)
    yield retired, "ok", f"Retired and no longer learning{because}"
    yield paused, "warning", f"Paused{because} `streaming-pca stream resume` lets it continue."
    processed = f"All its {facts.processed:,} records are processed." if facts.processed is not None else ""
    yield facts.processed is not None and not (retired or paused), "ok", processed
    yield blocked, "problem", f"The budget does not allow its next batch: {facts.cannot_charge}"
    lost = f"Its last batch was charged and abandoned{because} The next batch has new records."
    yield runs and facts.abandoned_last, "warning", lost

    waits = f" {facts.lag:,} offsets wait." if facts.lag else ""
    by = f" {facts.candidates} stand by: one takes over in a moment."
    start = "" if blocked else " Operators start one by `streaming-pca worker`."
    level: Level = "problem" if facts.lag else "warning"
    leaderless = f"No worker of group {facts.group!r} leads it.{waits}{by if facts.candidates else start}"
    yield runs and facts.leader is False, level, leaderless
    grows = f"It is not keeping up: the lag grows, {facts.lag or 0:,} offsets wait."
    faster = "Give the worker more cores or larger batches; aborted transactions count too."
    yield runs and facts.lag_grows, "warning", f"{grows} {faster}"
    since, usual = facts.seconds_since or 0.0, facts.usual_seconds
    # A batch that fills is not late, however long it takes.
    is_late = usual is not None and since > _USUAL * usual and facts.full_seconds >= _LEAST_SECONDS
    late = f"No release for {_duration(since)}, though the next batch is full; usually one comes every"
    yield runs and is_late, "warning", f"{late} {_duration(usual or 0.0)}. See the worker's log."

    share = f"At least {100 * facts.least_null_share:.0f}% of the last batch's records are null"
    level, why = ("problem" if facts.least_null_share > MANY_NULL else "warning"), "why"
    if facts.unit == "user":
        level, why, share = "ok", "others", f"{share}: further messages of users are null by design"
    yield facts.least_null_share > SOME_NULL, level, f"{share}: `streaming-pca payload check` shows {why}."
    for doubt in facts.doubts:
        yield True, "warning", f"The last release: {doubt}."
    unreadable = f"Messages of the releases topic that are not releases of this stream: {facts.unreadable}."
    newer = "Find out what else writes to it, or update streaming-pca if the stream's worker is newer."
    yield bool(facts.unreadable), "warning", f"{unreadable} {newer}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _duration(seconds: float) -> str:
    for length, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    if seconds >= 60:
        # Rounded, or the text would change at every update.
        seconds = 10 * (seconds // 10)
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"


class LagWatch:
    """Last two minutes of a stream's lag and of its input's end, to detect growth.

    A lag rises and falls with each batch. It grows if the minimum of the later half is above the maximum
    of the earlier half, and above the size of the largest batch.
    """

    def __init__(self, largest_batch: int) -> None:
        self._largest = largest_batch
        self._samples: list[tuple[float, int, int]] = []

    def add(self, at: float, lag: int, end: int) -> None:
        """Add a sample: seconds, lag, and sum of the end offsets of all partitions."""
        if self._samples and end < self._samples[-1][2]:
            # The topic was recreated.
            self._samples.clear()
        self._samples = [s for s in self._samples if at - _WATCHED_SECONDS <= s[0] < at]
        self._samples.append((at, lag, end))

    @property
    def seconds(self) -> float:
        return self._samples[-1][0] - self._samples[0][0] if len(self._samples) >= _LEAST_SAMPLES else 0.0

    @property
    def per_second(self) -> float | None:
        """Offsets that arrive per second, to two digits; None before a quarter of a minute."""
        if self.seconds < _WATCHED_SECONDS / 8:
            return None
        rate = (self._samples[-1][2] - self._samples[0][2]) / self.seconds
        # Two digits, or the answer would change at every sample.
        return float(f"{rate:.2g}")

    def has_paused(self, records: int) -> bool:
        """Return whether arrivals have paused for as long as ``records`` needed, or never came."""
        (begin, _, first), (end, _, last) = self._samples[0], self._samples[-1]
        arrival = next(at for at, _, offset in self._samples if offset == last)
        return (end - arrival) * (last - first) >= records * (arrival - begin)

    @property
    def grows(self) -> bool:
        if self.seconds < _WATCHED_SECONDS / 4:
            return False
        middle = (self._samples[0][0] + self._samples[-1][0]) / 2
        early = [lag for at, lag, _ in self._samples if at < middle]
        late = [lag for at, lag, _ in self._samples if at >= middle]
        return min(late) > max(max(early), self._largest)
