"""Random faults of workers, brokers and producers leave topics that another client finds correct.

``--chaos-seed`` determines the schedule, as far as processes follow it; ``--chaos-seconds`` is its
length. On a loaded machine the loop continues until there was enough work, and enough faults.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.topics.find import create_topics
from tests.kafka.faults import chaos_check
from tests.kafka.faults.chaos import Done, Slot, produce, strike_brokers
from tests.kafka.faults.chaos_check import BooksAreWrong, Counts, Facts, Raw, check, read_facts
from tests.kafka.faults.chaos_payloads import BAD, GOOD
from tests.kafka.faults.chaos_producer import Load
from tests.kafka.faults.chaos_worker import observed
from tests.kafka.faults.stored import Stored, committed_offsets, stored_batches
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.stream import Stream
from tests.kafka.three_brokers import revive
from tests.waiting import wait_for

PARTITIONS = 3
DIM = 4
CAP = ("3/2", "3e-6")
"""Cap that the two streams use up together: a record that is charged twice exceeds it."""
BATCHES = {2: 90, 3: 60}
"""Records per batch of the two streams, by rank."""
SESSION_MS = 3000
QUIET_SECONDS = 300.0
EACH = ("kill -9", "SIGSTOP", "broker kill -9", "broker SIGSTOP", "producer killed in a transaction")
"""Kinds of fault that happen in every run, however short."""


@dataclass
class Run:
    """Finished chaos run."""

    done: Done
    facts: Facts
    counts: Counts | BooksAreWrong
    seconds: float
    problems: tuple[str, ...]
    stored: dict[int, dict[int, list[Stored]]]
    """Batches of the input by partition and broker, from the files."""


def make_streams(cluster: FaultyCluster, directory: Path) -> list[Stream]:
    """Make two streams on one input, whose charges fill the cap."""
    kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap)
    promises = {2: {"epsilon": 1.0, "delta": 2e-6}, 3: {"epsilon": 0.5, "delta": 1e-6}}
    more = {2: {}, 3: {"centering": "pairs", "max_wait_seconds": 3.0}}
    streams: list[Stream] = []
    for rank, batch in BATCHES.items():
        how: dict[str, Any] = {"input": "chaos", "dim": DIM, "rank": rank, "estimator": "private-oja"}
        how |= {"centering": "none", "options": {"clip_radius": 20.0, "batch_size": batch}}
        how |= promises[rank] | more[rank]
        create_topics(kafka, StreamSettings(name=f"chaos-{rank}", **how), PARTITIONS, replication=3)
        # Otherwise a request for them may reach a broker that does not know them yet.
        cluster.wait_until_whole()
        how |= {"partitions": PARTITIONS, "cap": None if streams else CAP, "session_ms": SESSION_MS}
        worker = {"stop_when_done": False, "tick_seconds": 0.2}
        streams.append(Stream.make(cluster.bootstrap, f"chaos-{rank}", directory, worker=worker, **how))
    return streams


def in_group(streams: list[Stream], group: str) -> list[Settings]:
    return [stream.changed("worker", group=group) for stream in streams]


@pytest.fixture(scope="module")
def run(
    three_brokers: FaultyCluster,
    chaos_seconds: float,
    chaos_seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Run the loop of faults, and yield its results."""
    print(f"chaos: --chaos-seed {chaos_seed} --chaos-seconds {chaos_seconds:g}")
    directory = tmp_path_factory.mktemp("chaos")
    cluster = three_brokers
    revive(cluster)
    streams = make_streams(cluster, directory)
    done = Done()
    slots = [
        Slot(
            f"worker-{i}",
            random.Random(f"{chaos_seed} worker {i}"),
            lambda group: in_group(streams, group),
            # The third worker spends half of the time in another election: then two lead, and fence each
            # other.
            ("chaos-a", "chaos-b") if i == 2 else ("chaos-a",),
            directory,
            done,
        )
        for i in range(3)
    ]
    try:
        started = time.monotonic()
        loop(cluster, slots, streams, chaos_seed, chaos_seconds, directory, done)
        drain(cluster, slots, streams, done)
        found = observed(
            (worker.directory for slot in slots for worker in slot.workers),
            {stream.settings.stream.rank: stream.settings.stream.name for stream in streams},
        )
        granularity = {f"chaos-{rank}": 2 if rank == 3 else 1 for rank in BATCHES}
        facts = read_facts(cluster.bootstrap, "chaos", PARTITIONS, granularity, found)
        counts: Counts | BooksAreWrong
        try:
            counts = check(facts)
        except BooksAreWrong as error:
            counts = error
        seconds = time.monotonic() - started
        report = verify_ledger(streams[0].settings.kafka, "chaos")
        stored = {
            p: {n: list(stored_batches(cluster.log_directory(n, "chaos", p))) for n in cluster.nodes}
            for p in range(PARTITIONS)
        }
        yield Run(done, facts, counts, seconds, tuple(map(str, report.problems)), stored)
    finally:
        for slot in slots:
            for worker in slot.workers:
                worker.destroy()
        print("\n".join(done.story))
        print(f"chaos: --chaos-seed {chaos_seed} --chaos-seconds {chaos_seconds:g}")


def least(minutes: float) -> dict[str, float]:
    """Return how often each event must have happened for the check to mean something."""
    return {
        "batches under faults": 10 * minutes,
        "workers struck": 5 * minutes,
        "brokers struck": 2 * minutes,
        "kinds of payload": len(GOOD) + len(BAD),
        **dict.fromkeys(EACH, 1),
    }


def happened(done: Done) -> Counter[str]:
    """Return the counts, including sums."""
    counts = Counter(done.counts)
    counts["workers struck"] = counts["kill -9"] + counts["SIGSTOP"]
    counts["brokers struck"] = counts["broker kill -9"] + counts["broker SIGSTOP"]
    return counts


def loop(
    cluster: FaultyCluster,
    slots: list[Slot],
    streams: list[Stream],
    seed: int,
    seconds: float,
    directory: Path,
    done: Done,
) -> None:
    """Start everything, and strike until the time is over and each event happened enough."""
    over, struck_enough = threading.Event(), threading.Event()
    names = [stream.settings.stream.name for stream in streams]

    def is_enough() -> bool:
        each = chaos_check.progress(cluster.bootstrap, "chaos", PARTITIONS, names).values()
        done.counts["batches under faults"] = sum(found.batch for found in each)
        done.counts["kinds of payload"] = max(len(found.kinds) for found in each)
        counts = happened(done)
        return all(counts[what] >= number for what, number in least(seconds / 60).items())

    loads = [
        Load(cluster.bootstrap, "chaos", PARTITIONS, DIM, f"p{i}", 0, identity, rate)
        for i, (identity, rate) in enumerate([(None, 60.0), ("t1", 80.0), ("t2", 80.0)])
    ]
    with ThreadPoolExecutor(len(slots) + len(loads) + 1) as pool:
        try:
            futures = [
                pool.submit(produce, load, random.Random(f"{seed} {load.name}"), over, directory, done)
                for load in loads
            ]
            first = slots[0].start("chaos-a")
            # A new machine compiles kernels first, and until then nothing else is worth striking.
            for released in ("batch 1 released, 90 records", "batch 1 released, 60 records"):
                first.logs(released, 240)
            slots[1].start("chaos-a")
            slots[2].start("chaos-b")
            done.count("faults begin")
            strikes = [pool.submit(slot.torment, struck_enough) for slot in slots]
            dice = random.Random(f"{seed} brokers")
            strikes.append(pool.submit(strike_brokers, cluster, dice, struck_enough, done))
            # Within the time, a thread ends only if it failed.
            wait(strikes, seconds, FIRST_COMPLETED)
            wait_for("enough work and faults", is_enough, seen=lambda: str(happened(done)), pause=1.0)
            struck_enough.set()
            wait(strikes)
        finally:
            struck_enough.set()
            over.set()
    for future in strikes + futures:
        future.result()
    done.count("faults end")


def drain(cluster: FaultyCluster, slots: list[Slot], streams: list[Stream], done: Done) -> None:
    """Let the workers, now in one group, learn from the remaining records; then end them."""
    slots[2].end()
    slots[2].start("chaos-a")
    sizes = {s.settings.stream.name: s.settings.stream.options["batch_size"] for s in streams}

    def is_quiet() -> bool:
        found = chaos_check.progress(cluster.bootstrap, "chaos", PARTITIONS, list(sizes))
        return all(
            # Records that do not fill a batch may be left over.
            found[name].last in ("RELEASED", "ABANDONED") and found[name].left < size
            for name, size in sizes.items()
        )

    started = time.monotonic()
    while not is_quiet():
        for slot in slots:
            slot.revive()
        if time.monotonic() - started > QUIET_SECONDS:
            for slot in slots:
                slot.worker.signal(signal.SIGUSR1)
            time.sleep(1)
            reported = [slot.worker.log[-3000:] + slot.worker.stacks for slot in slots]
            raise AssertionError("the streams did not go on:\n" + "\n\n".join(reported))
        time.sleep(1)
    done.count("quiet")
    for slot in slots:
        # The status may be 4, for a stream that was given up while a broker was down.
        slot.end()


def test_nothing_is_lost_doubled_or_out_of_order(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nchaos, {run.seconds:.0f} s: {run.counts}\n{dict(run.done.counts)}")
    if isinstance(run.counts, BooksAreWrong):
        if run.counts.place is not None:
            run.counts.add_note(_story_of(run, *run.counts.place))
        raise run.counts
    assert run.problems == ()


def test_nobody_ended_in_a_way_that_no_fault_excuses(run: Run) -> None:
    assert not run.done.problems, "\n\n".join(run.done.problems)


def _story_of(run: Run, partition: int, start: int, end: int) -> str:
    """Return what the brokers store of a range, and what the check read."""
    read = [record.offset for record in run.facts.records[partition] if start <= record.offset < end]
    stored = {
        number: "; ".join(str(batch) for batch in batches if batch.first < end and batch.last >= start)
        for number, batches in run.stored[partition].items()
    }
    return f"[{start}, {end}) of partition {partition}: the check read {read}, the brokers store {stored}"


def test_the_check_reads_what_the_brokers_store(run: Run) -> None:
    for partition, of_brokers in run.stored.items():
        read = {record.offset for record in run.facts.records[partition]}
        for number, batches in of_brokers.items():
            wrong = sorted(read ^ committed_offsets(batches))
            if wrong:
                note = _story_of(run, partition, wrong[0], wrong[-1] + 1)
                raise AssertionError(f"partition {partition} on broker {number}: {wrong}\n{note}")


def test_there_was_work_and_there_were_faults(run: Run, chaos_seconds: float) -> None:
    """A run without work would also leave correct books."""
    minutes, counts, done = chaos_seconds / 60, run.counts, happened(run.done)
    assert isinstance(counts, Counts)
    assert counts.records > 2000 * minutes
    assert counts.released == counts.committed > 40 * minutes
    assert counts.records_compared >= 50 * counts.committed
    assert counts.abandoned == 0, "no record went, no setting changed"
    assert {what: done[what] for what, number in least(minutes).items() if done[what] < number} == {}
    assert done["SIGTERM"] >= 4, "three of them at the end"
    assert done["start in b"] >= 1
    assert counts.kinds == set(GOOD) | set(BAD)


# -- the check itself ------------------------------------------------------


def test_the_check_shares_no_code_with_the_package() -> None:
    names = ("chaos_check", "chaos_payloads", "chaos_producer", "stored")
    allowed = set(sys.stdlib_module_names) | {"confluent_kafka", "numpy", "pyarrow"}
    for name in names:
        tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text())
        imported = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
        imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        others = {module for module in imported if module.partition(".")[0] not in allowed}
        # It only waits, and knows nothing of the package.
        others -= {"tests.waiting"}
        assert others <= {f"tests.kafka.faults.{each}" for each in names}, others
        assert name != "chaos_check" or not others


Forgery = Callable[[Facts], None]


def entries_of(facts: Facts, kind: str) -> list[int]:
    """Return the places of a kind's entries in the ledger."""
    return [i for i, m in enumerate(facts.ledger) if json.loads(m.value or b"")["kind"] == kind]


ABORTED = chaos_check.record_key("x", "abort", "plain", None)


def put(items: list[Any], place: int, **changes: object) -> None:
    items[place] = replace(items[place], **changes)


def lose(facts: Facts, kind: str, which: int) -> None:
    del facts.ledger[entries_of(facts, kind)[which]]


def change(messages: list[Raw], place: int, **changes: object) -> None:
    put(messages, place, value=json.dumps(json.loads(messages[place].value or b"") | changes).encode())


def change_range(facts: Facts, **changes: int) -> None:
    """Add to numbers of a range."""
    place = entries_of(facts, "RESERVED")[4]
    ranges = json.loads(facts.ledger[place].value or b"")["ranges"]
    ranges[0] |= {name: ranges[0][name] + more for name, more in changes.items()}
    change(facts.ledger, place, ranges=ranges)


def swap_two(messages: list[Raw]) -> None:
    """Exchange the places of two early records that decode differently."""
    rows = [json.loads(message.key or b"")["rows"] for message in messages[:40]]
    i, j = [place for place, each in enumerate(rows) if each is not None][:2]
    a, b = messages[i], messages[j]
    messages[i], messages[j] = replace(b, offset=a.offset), replace(a, offset=b.offset)


def chain_anew(facts: Facts) -> None:
    """Recompute the hashes of a forged ledger, as a forger would."""
    heads: dict[str, str] = {}
    first = hashlib.sha256(facts.ledger[0].value or b"").hexdigest()
    for place, message in enumerate(facts.ledger[1:], 1):
        job = json.loads(message.value or b"")["job"]
        change(facts.ledger, place, previous=heads.get(job, first))
        heads[job] = hashlib.sha256(facts.ledger[place].value or b"").hexdigest()


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "a record is lost": (lambda f: f.records[1].__delitem__(40), "counts [0-9]+ of"),
    "a record is there twice": (lambda f: f.records[1].insert(40, f.records[1][40]), "is there twice"),
    "an aborted record is read": (lambda f: put(f.records[0], 5, key=ABORTED), "was aborted"),
    "two records changed places": (lambda f: swap_two(f.records[1]), "had another record at place"),
    "RESERVED is lost": (lambda f: f.ledger.__delitem__(entries_of(f, "RESERVED")[1]), "follows"),
    "COMMITTED is lost": (lambda f: f.ledger.__delitem__(entries_of(f, "COMMITTED")[-1]), "follows"),
    "RELEASED is lost": (
        lambda f: f.ledger.__delitem__(entries_of(f, "RELEASED")[-1]),
        "ends with COMMITTED",
    ),
    "RESERVED is there twice": (lambda f: f.ledger.insert(2, f.ledger[1]), "RESERVED 1 follows RESERVED"),
    "a state of other bytes": (
        lambda f: change(f.ledger, entries_of(f, "COMMITTED")[-1], state_digest="0"),
        "not the one that COMMITTED names",
    ),
    "a range overlaps": (lambda f: change_range(f, end=1), "the one before ends at|counts|is charged"),
    "a count is wrong": (lambda f: change_range(f, count=1), "counts [0-9]+ of"),
    "a lower cap": (lambda f: change(f.ledger, 0, cap={"epsilon": "149/100", "delta": "1"}), "is charged"),
    "a release is lost": (lambda f: f.releases["chaos-2"].__delitem__(3), "RELEASED without a release"),
    "a release is there twice": (
        lambda f: f.releases["chaos-2"].insert(3, f.releases["chaos-2"][3]),
        "releases of batches",
    ),
    "a release was changed": (
        lambda f: change(f.releases["chaos-2"], 3, created="then"),
        "not what RELEASED names",
    ),
    "the last state is lost": (lambda f: f.states["chaos-3"].__delitem__(-1), "COMMITTED without its state"),
    "group offsets are behind": (lambda f: f.offsets["chaos-2"].__setitem__(0, 0), "group offsets"),
    "a transaction is open": (
        lambda f: f.open_transactions.__setitem__("chaos-0", (1, 2)),
        "transactions are open",
    ),
    "a batch of other records": (
        lambda f: put(f.observed["chaos-3"], 0, rows=f.observed["chaos-3"][0].rows[::-1]),
        "had another record at place",
    ),
    "a batch that nobody reserved": (
        lambda f: f.observed["chaos-3"].append(replace(f.observed["chaos-3"][0], before=1)),
        "that no entry names",
    ),
    "a batch that nobody computed": (lambda f: f.observed["chaos-3"].clear(), "no estimator has computed"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_the_check_notices(run: Run, forgery: str) -> None:
    facts = deepcopy(run.facts)
    forge, complaint = FORGERIES[forgery]
    forge(facts)
    chain_anew(facts)
    with pytest.raises(BooksAreWrong, match=complaint):
        check(facts)


def test_the_check_notices_a_chain_that_breaks(run: Run) -> None:
    facts = deepcopy(run.facts)
    change(facts.ledger, entries_of(facts, "COMMITTED")[0], state_digest="0")
    with pytest.raises(BooksAreWrong, match="does not follow the job's entry before it"):
        check(facts)
