"""Batches and the ledger count messages while releases count rows, if rows are records."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from streaming_pca.data.arrow import stream_of_rows
from streaming_pca.data.codec import NPY, OCTETS
from streaming_pca.data.features.records import ARROW, JSON
from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.privacy.ledger.verify import verify_log
from tests.data.test_codec import npy
from tests.kafka.child import Strike
from tests.kafka.conftest import Make
from tests.kafka.stream import Stream, run_together

BY_ROW: dict[str, Any] = {
    "privacy_unit": "row",
    "max_rows": 8,
    "bounds": (-20, 20),
    "options": {"n_records": 120, "n_batches": 3},
}


def check_ledger(stream: Stream) -> list[int]:
    """Check that the ledger verifies, and return the number of messages in each batch."""
    messages = stream.messages(stream.settings.stream.ledger_topic)
    log = [(m.offset, m.value) for m in messages]
    report = verify_log(log, stream.release_values(), topic_id=stream.topic_id)
    assert report.ok, report.problems
    return [entry.count for entry in stream.own(Reserved)]


def send(stream: Stream, payloads: list[tuple[bytes, str]]) -> None:
    stream.send((value, [("content-type", kind.encode())]) for value, kind in payloads)


def test_batches_count_messages_and_releases_count_rows(make_stream: Make) -> None:
    stream = make_stream(**BY_ROW)
    sizes = [1 + i % 8 for i in range(120)]
    rows = np.split(stream.vectors(sum(sizes)), np.cumsum(sizes)[:-1])
    stream.produce(part.tobytes() for part in rows)
    stream.run()
    assert check_ledger(stream) == [40, 40, 40]
    # Message i is at offset i // 3 of partition i % 3.
    rows_of = [
        sum(sizes[3 * offset + r.partition] for r in entry.ranges for offset in range(r.start, r.end))
        for entry in stream.own(Reserved)
    ]
    releases = stream.releases()
    assert [r.records for r in releases] == np.cumsum(rows_of).tolist()
    assert releases[-1].records == sum(sizes)
    assert {r.privacy_unit for r in releases} == {"row"}


def test_rows_in_messages_teach_what_rows_alone_teach(make_stream: Make) -> None:
    """Without noise, a row is the same record in any message."""
    how = BY_ROW | {"options": {"n_records": 30, "n_batches": 1, "clip_radius": 400.0}}
    together = make_stream(**how)
    of_messages = {"privacy_unit": "message", "options": how["options"] | {"n_records": 240}}
    alone = make_stream(**how | of_messages)
    x = together.vectors(240)
    together.produce(part.tobytes() for part in np.split(x, 30))
    alone.produce_vectors(x)
    run_together(together, alone, noise=False)
    found, expected = (np.array(stream.releases()[-1].components) for stream in (together, alone))
    assert together.releases()[-1].records == alone.releases()[-1].records == 240
    np.testing.assert_allclose(found.T @ found, expected.T @ expected, atol=1e-9)


def test_all_content_types_carry_rows(make_stream: Make) -> None:
    how = BY_ROW | {"options": {"n_records": 40, "n_batches": 1, "clip_radius": 400.0}, "partitions": 1}
    plain, mixed = make_stream(**how), make_stream(**how)
    parts = np.split(plain.vectors(160), 40)
    encoders: list[tuple[Callable[[Any], bytes], str]] = [
        (lambda rows: bytes(rows.tobytes()), OCTETS),
        (npy, NPY),
        (lambda rows: json.dumps({"rows": rows.astype(float).tolist()}).encode(), JSON),
        (lambda rows: stream_of_rows(pa, rows), ARROW),
    ]
    send(plain, [(part.tobytes(), OCTETS) for part in parts])
    send(mixed, [(encode(p), kind) for p, (encode, kind) in zip(parts, encoders * 10, strict=True)])
    run_together(plain, mixed, noise=False)
    assert plain.releases()[0].components == mixed.releases()[0].components
    assert plain.releases()[0].records == mixed.releases()[0].records == 160


def test_null_rows_are_counted_and_messages_without_rows_are_not_rows(make_stream: Make) -> None:
    stream = make_stream(**BY_ROW | {"partitions": 1})
    x = stream.vectors(4 * 60).reshape(60, 4, 5)
    x[::3, 1, 2] = np.nan
    good = [(part.tobytes(), OCTETS) for part in x]
    bad = [(b"{", JSON), (b"\0" * 7, OCTETS), (np.zeros((9, 5), "<f4").tobytes(), OCTETS)] * 20
    send(stream, [payload for pair in zip(good, bad, strict=True) for payload in pair])
    # A batch of messages without rows is a batch, and the names of the features are in every release.
    names = ("a", "b", "c", "d", "größe")
    empty = make_stream(**BY_ROW | {"feature_names": names})
    send(empty, [(b"{", JSON)] * 40)
    empty.produce(part.tobytes() for part in np.split(empty.vectors(320), 80))
    run_together(stream, empty)
    assert check_ledger(stream) == check_ledger(empty) == [40, 40, 40]
    assert [r.records for r in stream.releases()] == [80, 160, 240]
    assert [r.records for r in empty.releases()] == [0, 160, 320]
    assert [r.feature_names for r in empty.releases()] == [list(names)] * 3
    assert "nan" not in stream.children[0].log.lower()


def test_a_batch_is_finished_by_the_next_leader_with_the_same_rows(make_stream: Make) -> None:
    how = BY_ROW | {"partitions": 2}
    whole, broken = make_stream(**how), make_stream(**how)
    parts = np.split(whole.vectors(480), 120)
    for stream in (whole, broken):
        stream.produce(part.tobytes() for part in parts)
    whole.run(noise=False)
    broken.crash(Strike("reserve.5 read back", "after", nth=2), noise=False)
    assert len(broken.releases()) == 1
    broken.run(noise=False)
    assert check_ledger(broken) == check_ledger(whole) == [40, 40, 40]
    assert broken.results() == whole.results()
