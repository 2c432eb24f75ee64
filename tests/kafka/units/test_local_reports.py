"""In the local model, producers turn vectors into reports, and the service learns from reports."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.admin.ledger import describe_spent
from streaming_pca.data.release import Release
from streaming_pca.linalg.packed import packed_size
from streaming_pca.linalg.subspace import principal_angles
from streaming_pca.local import LocalGaussian, noise_sigma, report_headers
from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.topics.find import create_topics
from tests.cli.command import call
from tests.kafka.conftest import Capture, Make
from tests.kafka.stream import OCTETS, Child, Stream, check_books, have_released
from tests.waiting import LIMIT

DIM = 6
PROMISE: dict[str, float] = {"epsilon": 20.0, "delta": 1e-3}
REPORTS = 1200
BATCH = 600
LOCAL: dict[str, Any] = {"record_kind": "local", "centering": "none", "rank": 1, **PROMISE}
ALONE = LOCAL | {"partitions": 1, "cap": ("0", "0"), "worker": {"stop_when_done": False}}
# The vectors are nearly always near the first feature's axis.
LEADING = np.eye(1, DIM)


def vectors(count: int, seed: int = 0) -> NDArray[np.float64]:
    x = 0.05 * np.random.default_rng(seed).standard_normal((count, DIM))
    x[:, 0] += 0.9
    return x


def two_streams(make_stream: Make) -> list[Stream]:
    """Make streams of both estimators on one topic of reports; a cap of zero suffices."""
    group = {"group": "both-of-reports", "stop_when_done": False}
    how: dict[str, Any] = {**LOCAL, "dim": DIM, "options": {"batch_size": BATCH}, "worker": group}
    first = make_stream("dense", estimator="local-gaussian", partitions=2, cap=("0", "0"), **how)
    topic = first.settings.stream.input
    second = make_stream("sparse", estimator="local-sparse", partitions=2, cap=None, input=topic, **how)
    return [first, second]


def test_reports_are_learnt_from_through_a_take_over_and_charged_nothing(
    make_stream: Make, tmp_path: Path, capfd: Capture
) -> None:
    streams = two_streams(make_stream)
    config = streams[0].write_config()
    users = tmp_path / "users.csv"
    rows = [",".join(map(str, [*x, f"u{i}"])) for i, x in enumerate(vectors(REPORTS))]
    users.write_text("\n".join([",".join([*"abcdef", "user"]), *rows]))
    how = ("--config", config, "--key", "user", "--local-accountant", tmp_path / "spent.sqlite")
    sent = call(capfd, "produce", users, *how, "--json")
    assert sent.returncode == 0, sent.stderr
    assert json.loads(sent.stdout)["messages"] == REPORTS

    settings = [s.settings for s in streams]
    first = Child(settings, tmp_path / "first")
    second = None
    try:
        first.until("releases", lambda: have_released(streams))
        assert first.status() is None, first.log
        first.signal(signal.SIGKILL)
        first.ends()
        before = [s.release_values() for s in streams]
        # Repeated reports are refused: nothing is sent, and users without a report may still send one.
        again = call(capfd, "produce", users, *how)
        assert again.returncode != 0
        assert f"{REPORTS} of {REPORTS} rows are of users who have spent their epsilon" in again.stderr
        more = tmp_path / "more.npy"
        np.save(more, vectors(BATCH, seed=1))
        assert call(capfd, "produce", more, "--config", config).returncode == 0
        # A record of a report's size, but without noise, is null.
        bare = np.full(packed_size(DIM), 1e3, "<f4").tobytes()
        streams[0].produce([bare] * BATCH, headers=OCTETS)
        second = Child(settings, tmp_path / "second")
        batches = REPORTS // BATCH + 2
        second.until("later releases", lambda: have_released(streams, batches))
        second.stop()
    finally:
        for child in filter(None, (first, second)):
            child.destroy()

    for stream, early in zip(streams, before, strict=True):
        check_books(stream)
        values = stream.release_values()
        assert values[: len(early)] == early
        releases = [Release.from_bytes(value) for value in values]
        for release in releases:
            assert (release.version, release.local, release.kind) == (6, True, "subspace")
            assert (release.epsilon, release.delta) == (PROMISE["epsilon"], PROMISE["delta"])
            # sigma/sqrt(n) is below 0.02 an entry, the gap 0.8: six times the noise's norm is far off.
            assert principal_angles(np.array(release.components), LEADING)[0] < 0.4
        # Null records do not change the components.
        assert releases[-1].records == REPORTS + 2 * BATCH
        np.testing.assert_allclose(releases[-1].components, releases[-2].components, atol=1e-3)
        charges = {e.charge for e in stream.own(Reserved)}
        promises = [e.promise for e in stream.own(Reserved)]
        assert charges == {Charge.nothing()}
        assert all(p["local"] is True and p["epsilon"] == PROMISE["epsilon"] for p in promises)
    assert releases[-1].support is not None
    assert 0 in releases[-1].support

    kafka, topic = streams[0].settings.kafka, streams[0].settings.stream.input
    assert describe_spent(kafka, topic, 0, 0)["spent"] == {"epsilon": "0", "delta": "0"}
    report = verify_ledger(kafka, topic)
    assert report.ok, report.problems
    shown = call(capfd, "watch", "--config", config, "--from-beginning", "--count", 1, "--timeout", LIMIT)
    assert shown.returncode == 0, shown.stderr
    check_topic_of_reports(streams[0])


def check_topic_of_reports(stream: Stream) -> None:
    """Check that no stream reads these reports as records, under any name."""
    settings = stream.settings
    other = settings.stream.model_dump(mode="json") | {
        "name": f"{settings.stream.name}-raw",
        "record_kind": "factor",
        "estimator": "private-oja",
        "options": {"clip_radius": 1.0},
    }
    raw = settings.model_copy(update={"stream": type(settings.stream)(**other)})
    made = Stream(raw, stream.topic_id, stream.partitions, stream.directory / "raw", stream.children)
    create_topics(raw.kafka, raw.stream, stream.partitions, 1)
    assert "holds reports, as stream" in made.start().refusal()
    assert made.own(Reserved) == []


def test_reports_of_two_thousand_features_go_through(make_stream: Make) -> None:
    """Each has 8 MB, the state has 16 MB, and memory stays within its bound."""
    dim, count = 2000, 4
    sigma = noise_sigma(PROMISE["epsilon"], PROMISE["delta"])
    # Not made by the mechanism, whose 2,001,000 draws take 22 s a report; and with a hundredth of its noise.
    truth = np.zeros(dim)
    truth[7] = 1.0
    noise = utility_generator(5)
    packed = np.outer(truth, truth)[np.triu_indices(dim)]
    noises = (sigma / 100 * noise.standard_normal(packed.size) for _ in range(count))
    reports = [(packed + each).astype("<f4").tobytes() for each in noises]
    stream = make_stream("wide", estimator="local-gaussian", dim=dim, options={"batch_size": 2}, **ALONE)
    stream.produce(reports, headers=report_headers(**PROMISE))
    worker = stream.start()
    worker.until("releases", lambda: have_released([stream], 2))
    worker.stop()
    check_books(stream)
    release = stream.releases()[-1]
    assert release.records == count
    assert abs(release.components[0][7]) > 0.9
    assert worker.peak < 2 * 2**30, f"{worker.peak / 2**20:.0f} MiB"


def test_a_report_of_the_library_is_read(make_stream: Make) -> None:
    """A producer without the command line writes it like this."""
    stream = make_stream("library", estimator="local-sparse", dim=DIM, options={"batch_size": 50}, **ALONE)
    privatizer = LocalGaussian(**PROMISE)
    sent = (privatizer.privatize(x).tobytes() for x in vectors(50))
    stream.produce(sent, headers=report_headers(**PROMISE))
    stream.run_until("batch 1 released")
    (release,) = stream.releases()
    assert release.local
    assert release.estimator == "local-sparse"
    # The trace of the mean of x x^T is 0.8; if the reports were null, it would be 0.
    assert release.total_variance is not None
    assert release.total_variance > 0.2
