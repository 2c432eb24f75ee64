"""Observed streams without a broker: a test hands the observer the messages and the broker's answers.

offline = Offline(made_offline("flights"), made_offline("rides"))
offline.publish("flights", 3)
offline.stand(at=0.0, waiting={"flights": 4200})
offline.observer.stream("flights").next_batch
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kafka import TopicPartition

from streaming_pca.admin.broker_status import BrokerSnapshot
from streaming_pca.dashboard.observing.logs import Message
from streaming_pca.dashboard.observing.observer import Observer
from streaming_pca.privacy.ledger.entries import Cap, LedgerEntry, Opened, encode_entry, entry_hash
from tests.dashboard.streams import MadeStream, make_stream


def made_offline(name: str, cap: tuple[str, str] = ("1", "1e-6"), **stream: Any) -> MadeStream:
    """Make a stream whose ledger an :class:`Offline` opens with this cap."""
    made = make_stream("127.0.0.1:1", name, topics=False, **stream)
    made.topic_id, made.cap = f"id-{made.settings.stream.input}", cap
    return made


class Offline:
    """Observer that is not started, and the streams that it shows."""

    def __init__(self, *streams: MadeStream) -> None:
        self.streams = {made.name: made for made in streams}
        self.observer = Observer([made.settings for made in streams])
        self._watched = self.observer._watched
        self._next: Counter[str] = Counter()
        opened: set[str] = set()
        for made in streams:
            stream = made.settings.stream
            self._watched.streams[made.name].releases.begin(("releases",), 0, 0)
            entry = Opened(
                topic_id=made.topic_id, topic=stream.input, cap=Cap(epsilon=made.cap[0], delta=made.cap[1])
            )
            made.head = entry_hash(entry)
            if stream.input not in opened:
                opened.add(stream.input)
                self._watched.views[stream.input].begin((made.topic_id, "ledger"), 0, 0)
                self.take([(stream.ledger_topic, encode_entry(entry))])
        self._watched.load()

    def take(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Show the observer messages (topic, value) that a broker has committed."""
        numbered = []
        for topic, value in messages:
            numbered.append(Message(topic, self._next[topic], value))
            self._next[topic] += 1
        self._watched.take(numbered)

    def publish(self, name: str, batches: int = 1, **changes: Any) -> None:
        """Learn and release batches, as :meth:`MadeStream.publish` does."""
        self.take(self.streams[name].made_messages(batches, **changes))

    def append(self, name: str, *entries: LedgerEntry) -> None:
        """Write further entries of a job; their ``previous`` is its ``head``."""
        made = self.streams[name]
        self.take([(made.settings.stream.ledger_topic, encode_entry(entry)) for entry in entries])
        made.head = entry_hash(entries[-1])

    def stand(
        self,
        at: float,
        waiting: Mapping[str, int],
        *,
        led: bool = True,
        read: int | None = None,
        first: int = 0,
    ) -> None:
        """Answer for the broker at a time in seconds.

        Parameters
        ----------
        waiting : mapping of stream to records
            Records of the input that no batch has read; 0 by default.
        led : bool
            Whether a process leads the streams.
        read : int, optional
            Committed offset of the streams' groups; by default the broker has none.
        first : int
            First offset of the inputs: retention has deleted those before it.
        """
        tps = {name: TopicPartition(made.settings.stream.input, 0) for name, made in self.streams.items()}
        end: Counter[TopicPartition] = Counter()
        for name, tp in tps.items():
            begin = self._watched.views[tp.topic].ledger.job(name).ends.get(0, 0)
            end[tp] = max(end[tp], begin + waiting.get(name, 0))
        members = {}
        for made in self.streams.values():
            assigned = {"assigned_partitions": [{"topic": made.settings.stream.state_topic}]}
            member = {"client_host": "/10.0.0.7", "member_assignment": assigned, "member_metadata": assigned}
            members[made.settings.worker.group] = [member] if led else []
        snapshot = BrokerSnapshot(
            members=members,
            partitions={tp.topic: [tp] for tp in tps.values()},
            first=dict.fromkeys(end, first),
            end=end,
            high=end,
            committed={} if read is None else {name: {tp: read} for name, tp in tps.items()},
        )
        with self._watched.lock:
            for state in self._watched.streams.values():
                state.stand(snapshot, self._watched.views[state.input], at, loaded=True)
        self._watched.refresh()
