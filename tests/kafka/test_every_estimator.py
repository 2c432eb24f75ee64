"""Every estimator runs in the service, is charged, and survives a take-over.

All streams share a process and an input topic. Its cap is infinite, since some estimators are not private.
"""

from __future__ import annotations

import json
import math
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca.admin.broker_status import describe_status
from streaming_pca.admin.ledger import describe_ledger, describe_spent
from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Outcome
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.verification import verify_ledger
from tests.cli.command import call
from tests.estimators.suite import sized
from tests.kafka.conftest import Capture, Name
from tests.kafka.stream import Child, Stream, check_books, have_released

DIM, RANK = 6, 2
BATCH = 200
NOT_PRIVATE: dict[str, Any] = {"private": False, "epsilon": math.inf, "delta": math.inf}


def settings_of(name: str) -> dict[str, Any]:
    """Return settings of a stream whose batches all have ``BATCH`` records."""
    kind, options = ESTIMATORS[name], sized(name, BATCH)
    if "range_constant" in kind.options_type.model_fields:
        options["range_constant"] = 100.0
    settings: dict[str, Any] = {"options": options}
    if not kind.info.private:
        settings |= NOT_PRIVATE
    elif not kind.suite_options.always_learns:
        # At epsilon 1 these need batches of thousands.
        settings |= {"epsilon": 100.0, "delta": 1e-3}
    return settings | ({"rank": kind.suite_options.rank} if kind.suite_options.rank else {})


# Estimators of reports are tested in test_local_reports: a topic has only one kind of record.
TABLE = {name: settings_of(name) for name, kind in ESTIMATORS.items() if not kind.info.local}

FIRST, LATER = 2, 3
"""Numbers of batches whose records exist when the first worker leads, and arrive after its end."""


@pytest.fixture
def streams(kafka_bootstrap: str, unique_name: Name, tmp_path: Path) -> list[Stream]:
    """Make a stream for each estimator, all on the input of the first."""
    made: list[Stream] = []
    group = unique_name("workers")
    for name in TABLE:
        how: dict[str, Any] = {"centering": "none", "dim": DIM, "rank": RANK, "estimator": name}
        stream = Stream.make(
            kafka_bootstrap,
            unique_name(name),
            tmp_path,
            partitions=2,
            cap=None if made else ("inf", "inf"),
            input=made[0].settings.stream.input if made else None,
            worker={"group": group, "stop_when_done": False},
            **(how | TABLE[name]),
        )
        made.append(stream)
    return made


def test_every_estimator_runs_through_a_take_over(
    streams: list[Stream], tmp_path: Path, capfd: Capture
) -> None:
    topic = streams[0].settings.stream.input
    kafka = streams[0].settings.kafka
    streams[0].produce_vectors(streams[0].vectors(FIRST * BATCH))
    settings = [s.settings for s in streams]
    first = Child(settings, tmp_path / "first")
    second = None
    try:
        first.until("first releases", lambda: have_released(streams), pause=0.5)
        assert first.status() is None, first.log
        assert first.log.count("the stream is not private") == 2
        first.signal(signal.SIGKILL)
        first.ends()
        before = {s.settings.stream.name: s.release_values() for s in streams}
        streams[0].produce_vectors(streams[0].vectors(LATER * BATCH, seed=1))
        second = Child(settings, tmp_path / "second")
        second.until("later releases", lambda: have_released(streams, FIRST + LATER), pause=0.5)
        second.stop()
    finally:
        for child in filter(None, (first, second)):
            child.destroy()
    for log in (first.log, second.log):
        assert "Traceback" not in log, log

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check_books, streams))
    report = verify_ledger(kafka, topic)
    assert report.ok, report.problems
    assert report.jobs == tuple(sorted(s.settings.stream.name for s in streams))
    assert (report.to_json()["max_epsilon"], report.max_delta) == ("inf", math.inf)
    spent = describe_spent(kafka, topic, 0, 0)
    assert (spent["spent"], spent["left"]) == ({"epsilon": "inf", "delta": "inf"},) * 2
    for stream in streams:
        check_stream(stream, before[stream.settings.stream.name], spent["jobs"])
    check_commands(streams, tmp_path, capfd)


def check_stream(stream: Stream, before: list[bytes], spent: dict[str, dict[str, str]]) -> None:
    """Check a stream's releases and their cost; ``before`` was published before the take-over."""
    settings = stream.settings.stream
    values = stream.release_values()
    assert values[: len(before)] == before
    releases = [Release.from_bytes(value) for value in values]
    assert [r.batch for r in releases] == list(range(1, len(releases) + 1))
    for release in releases:
        assert (release.estimator, release.dim, release.rank) == (settings.estimator, DIM, settings.rank)
        components = np.array(release.components)
        gram = components @ components.T
        tensor = settings.build_estimator().info.releases == "tensor"
        # Noise decides whether a feature seems dominant; only then does a release use fields of version 7.
        version = 6 if release.dominant_feature is None else 7
        assert (release.kind, release.version) == ("tensor" if tensor else "subspace", version)
        known = (np.diagonal(gram), 1.0) if tensor else (gram, np.eye(len(gram)))
        np.testing.assert_allclose(*known, atol=1e-9)
        assert np.isfinite(release.explained_variance).all()
        assert release.outcome is None or release.outcome in set(Outcome)
        assert release.private == settings.private
    outcomes = [r.outcome for r in releases]
    if ESTIMATORS[settings.estimator].suite_options.always_learns:
        assert outcomes == [None] * len(releases)
    else:
        # Each learns from at least four of five batches; once does not depend on the noise.
        assert "learnt" in outcomes
    charges = {e.charge for e in stream.own(Reserved)}
    if not settings.private:
        assert charges == {Charge.unbounded()}
        assert spent[settings.name] == {"epsilon": "inf", "delta": "inf"}
        assert (releases[-1].epsilon, releases[-1].delta) == (None, None)
        assert json.loads(values[-1])["epsilon"] is None
        # Without noise, five batches reveal the two strong directions of six.
        if settings.estimator == "oja":
            assert np.linalg.norm(np.array(releases[-1].components)[:, :2]) > 1.3
    else:
        for charge in charges:
            assert float(charge.epsilon) <= settings.epsilon * (1 + 1e-12)
            assert float(charge.delta) <= settings.delta * (1 + 1e-12)
        assert releases[-1].epsilon == settings.epsilon


def check_commands(streams: list[Stream], directory: Path, capfd: Capture) -> None:
    """Check that commands print an infinite charge as valid JSON and as text."""
    kafka, topic = streams[0].settings.kafka, streams[0].settings.stream.input
    entries = describe_ledger(kafka, topic)["entries"]
    assert {"inf"} < {entry["epsilon"] for entry in entries if entry["kind"] == "RESERVED"}
    where = ("--bootstrap", kafka.bootstrap_servers, "--input", topic)
    shown = call(capfd, "ledger", "show", *where, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout, parse_constant=pytest.fail)["cap"] == {"epsilon": "inf", "delta": "inf"}
    spent = call(capfd, "ledger", "spent", *where, "--partition", 0, "--offset", 0)
    assert (spent.returncode, "inf" in spent.stdout) == (0, True), spent.stderr
    verified = call(capfd, "ledger", "verify", *where, "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout, parse_constant=pytest.fail)["max_epsilon"] == "inf"
    for facts in describe_status([s.settings for s in streams]):
        assert facts["problem"] is None
        json.dumps(facts, allow_nan=False)
        assert facts["left"] == {"epsilon": "inf", "delta": "inf"}
        assert facts["last_release"]["outcome"] in {None, *Outcome}


def test_a_stream_that_is_not_private_is_refused_under_a_finite_cap(
    kafka_bootstrap: str, unique_name: Name, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"centering": "none", "estimator": "oja", "options": {"batch_size": BATCH}}
    how |= {"cap": ("inf", "1"), **NOT_PRIVATE}
    stream = Stream.make(kafka_bootstrap, unique_name("capped"), tmp_path, **how)
    stream.produce_vectors(stream.vectors(BATCH))
    try:
        line = stream.start().refusal()
    finally:
        stream.destroy()
    assert "is not private (private = false) and charges infinity, which the cap" in line
    assert "--cap inf,inf" in line
    assert stream.own(Reserved) == []
    assert stream.releases() == []
