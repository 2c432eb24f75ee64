"""Metrics, health and log lines for operators contain only public quantities."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from streaming_pca.admin.external_charge import charge_records
from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.privacy.parameters import Charge
from tests.cli.test_app import run
from tests.kafka.conftest import Make
from tests.kafka.stream import STEADY_MS, Child, Stream, check_books
from tests.waiting import LIMIT, wait_for

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
WORKS_ON = {"stop_when_done": False}


def start(stream: Stream) -> tuple[Child, str]:
    """Start a watched worker, and return it and its address."""
    child = stream.start(stream.changed("http", enabled=True, port=0))
    child.logs("metrics and health on ")
    found = re.search(r"on (http://\S+)", child.log)
    assert found is not None
    return child, found[1]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(address: str) -> Samples:
    status, text = get(f"{address}/metrics")
    assert status == 200
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def of(found: Samples, name: str, **labels: str) -> float:
    return found[f"streaming_pca_{name}", tuple(sorted(labels.items()))]


def test_metrics_tell_what_was_delivered_charged_and_released(make_stream: Make) -> None:
    stream = make_stream(session_ms=STEADY_MS, cap=("2", "1e-5"), worker=WORKS_ON)
    stream.produce_vectors(stream.vectors(310))
    child, address = start(stream)
    child.logs("batch 3 released")
    name = stream.settings.stream.name
    found = samples(address)
    expected = {"leader": 1, "paused": 0, "records_delivered_total": 300, "releases_total": 3}
    expected |= {"batch_seconds_count": 3, "commit_seconds_count": 3, "ledger_entries": 10}
    expected |= {"charged_epsilon": 1, "charged_delta": 1e-6, "remaining_epsilon": 1}
    assert {each: of(found, each, stream=name) for each in expected} == expected
    for outcome, count in (("committed", 3), ("abandoned", 0)):
        assert of(found, "batches_total", stream=name, outcome=outcome) == count
    assert abs(of(found, "remaining_delta", stream=name) - 9e-6) < 1e-12
    assert of(found, "rebalances_total") >= 1
    assert of(found, "last_release_timestamp_seconds", stream=name) > 1.7e9
    lag = ("streaming_pca_lag_records", (("stream", name),))
    wait_for("the lag", lambda: samples(address).get(lag) == 10)
    child.stop()
    shown = ("last_release_timestamp_seconds", "angle_bound_radians", "batch_null_records")
    successor, address = start(stream)
    wait_for("the lag", lambda: samples(address).get(lag) == 10)
    later = samples(address)
    for each in shown:
        assert of(later, each, stream=name) == of(found, each, stream=name)
    assert of(later, "releases_total", stream=name) == 0
    half = Charge(epsilon="1/2", delta="1e-7")
    charge_records(stream.settings.kafka, stream.settings.stream.input, "census", half, None, "a histogram")
    wait_for("another job's charge", lambda: of(samples(address), "charged_epsilon", stream=name) == 1.5)
    assert of(samples(address), "ledger_entries", stream=name) == 11
    successor.stop()


def test_no_metric_depends_on_what_records_hold(make_stream: Make) -> None:
    how = {"session_ms": STEADY_MS, "worker": {"stop_when_done": False, "verify_seconds": 0.5}}
    good, bad = make_stream(**how), make_stream(**how)
    good.produce_vectors(good.vectors(300))
    bad.produce(b"\xff" * (i % 7) for i in range(300))
    diagnostics = good.settings.stream.build_estimator().diagnostics
    assert diagnostics is not None
    error = diagnostics.error
    seen, logs = [], []
    for stream in (good, bad):
        child, address = start(stream)
        child.logs("batch 3 released")
        name = stream.settings.stream.name
        verified = ("streaming_pca_verification_problems", (("stream", name),))
        wait_for("a verification", lambda a=address, v=verified: samples(a).get(v) == 0)
        seen.append(
            {
                (key, tuple((k, v.replace(name, "NAME")) for k, v in labels)): value
                for (key, labels), value in samples(address).items()
                # Without durations, times, counts of rebalances, and values with noise of their own.
                if not re.search(
                    r"_seconds_(bucket|sum)|broker_request|_created$|timestamp|rebalances|_(null|clipped)_|"
                    r"total_variance|explained_variance|angle_bound",
                    key,
                )
            }
        )
        assert {"ready", "refused", "planned_records", "verification_problems", "build_info"} <= {
            key.removeprefix("streaming_pca_") for key, _ in seen[-1]
        }
        assert not [key for key, _ in samples(address) if not key.startswith("streaming_pca_")]
        assert of(samples(address), "batch_counts_error", stream=name) == error
        for what in ("null", "clipped"):
            # The noise exceeds this with probability e**-30.
            assert abs(of(samples(address), f"batch_{what}_records", stream=name)) < 100 + 30 * 2 / 0.02
        # The log too, except for names, times, ports, and whether the election came first.
        lines = re.sub(r"\d{4}-\S+ \S+|:\d{4,5}\b", "", child.log).replace(name, "NAME").splitlines()
        logs.append([line for line in lines if "standing by" not in line and "leading" not in line])
        child.stop()
    assert seen[0] == seen[1]
    assert logs[0] == logs[1]


def test_an_error_before_the_reservation_tells_nothing_of_records(make_stream: Make) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(300))
    child = stream.start(telltale="cannot allocate shape (97, 5)")
    assert "reading records failed" in child.refusal()
    assert "allocate" not in child.log
    assert "(97" not in child.log
    assert stream.own(Reserved) == []


def test_health_and_readiness(make_stream: Make) -> None:
    # Long enough for one leader; the standby joins and takes over within heartbeats, a fifth of this.
    stream = make_stream(session_ms=10_000, worker=WORKS_ON)
    name = stream.settings.stream.name
    leader, at_leader = start(stream)
    leader.logs("leading stream")
    standby, at_standby = start(stream)
    assert get(f"{at_leader}/healthz")[0] == 200
    assert json.loads(get(f"{at_leader}/readyz")[1]) == {"ready": True, "streams": {name: "leading"}}

    def ready() -> bool:
        status, body = get(f"{at_standby}/readyz")
        assert status == (200 if json.loads(body)["ready"] else 503)
        return status == 200

    wait_for("the standby to join", ready)
    assert json.loads(get(f"{at_standby}/readyz")[1])["streams"] == {name: "standby"}
    assert get(f"{at_leader}/nothing")[0] == 404
    assert f"<td>{name}</td><td>leading</td>" in get(f"{at_leader}/")[1]
    leader.stop()
    standby.logs("leading stream")
    standby.stop()


def test_a_port_that_is_taken_is_one_line(make_stream: Make) -> None:
    stream = make_stream(worker=WORKS_ON)
    child, address = start(stream)
    port = int(address.rpartition(":")[2])
    other = stream.start(stream.changed("http", enabled=True, port=port))
    assert (
        f"http.port: cannot listen on 127.0.0.1:{port} (another process uses this port): " in other.refusal()
    )
    child.stop()


def test_json_log_lines_name_stream_job_and_batch(make_stream: Make) -> None:
    stream = make_stream(session_ms=STEADY_MS)
    stream.produce_vectors(stream.vectors(300))
    name, worker = (
        stream.settings.stream.name,
        stream.settings.worker.model_dump(include={"group", "stop_when_done"}),
    )
    config = stream.write_config(worker=worker, http={"port": 0}, log={"format": "json"})
    done = run("worker", "--config", config)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    released = [line for line in lines if "released" in line["message"]]
    assert [line["batch"] for line in released] == [1, 2, 3]
    assert {line["stream"] for line in released} == {line["job"] for line in released} == {name}
    assert all(line["level"] == "INFO" and line["time"] for line in lines)
    check_books(stream)
