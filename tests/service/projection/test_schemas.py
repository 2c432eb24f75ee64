"""A projecting worker waits for a registry only if a record has an unknown schema."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

from streaming_pca.config.settings import StreamSettings
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.projection.encoding import FollowingCodec
from tests.data.features.registered import framed
from tests.service.registry.faults import Answer, FaultyServer, answer
from tests.service.registry.producers import record_type, settings_of

FIELDS: Any = {"rank": 1, "epsilon": 1, "delta": 1e-6, "features": [{"name": "a", "bounds": [0, 9]}]}
STREAM = StreamSettings(name="s", input="t", format="avro", **FIELDS)
TIMEOUT = 3.0
"""Seconds of a request: a registry that answers must do so within them, on a busy machine too."""


class Message(NamedTuple):
    value: bytes | None


KNOWN, UNKNOWN = Message(framed(7, b"x" * 8)), Message(framed(8, b"x" * 8))
OTHERS = Message(None), Message(b""), Message(b"\0\0\0"), Message(b"{}    ")


class Scene:
    """Registry that lists one schema, and fails from then on until it is repaired."""

    def __init__(self) -> None:
        self.fault: Answer | None = None
        self.ids = [7]

    def __call__(self, handler: Any) -> None:
        if self.fault is not None:
            self.fault(handler)
            return
        last = handler.path.partition("?")[0].rpartition("/")[2]
        schema = {"schema": repr(record_type("V", a="double")).replace("'", '"')}
        versions = list(range(1, len(self.ids) + 1))
        answer(versions if last == "versions" else schema | {"id": self.ids[int(last) - 1]})(handler)


def silence(server: list[FaultyServer]) -> Answer:
    return lambda _: server[0].over.wait(10 * TIMEOUT) and None


def test_a_silent_registry_costs_a_part_of_the_time(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    with FaultyServer(scene) as server:
        codec = FollowingCodec(STREAM, settings_of(server.url, timeout_seconds=TIMEOUT))
        scene.fault = silence([server])
        before = len(server.requests)
        for _ in range(100):
            codec.follow({0: [KNOWN, *OTHERS]})
        assert 1 <= len(server.requests) - before <= 20
        with pytest.raises(SessionLost, match="timed out"):
            codec.follow({0: [KNOWN, UNKNOWN]})
        server.over.set()
        scene.fault = None
        scene.ids.append(8)
        time.sleep(TIMEOUT)
        assert set(codec.follow({0: [UNKNOWN]}).schemas or ()) == {7, 8}
    assert caplog.text.count("continuing with the known schemas") == 1


@pytest.mark.parametrize("status", [401, 404])
def test_a_registry_that_refuses_ends_the_worker_only_at_an_unknown_schema(status: int) -> None:
    """The stream's own worker continues too, because a password may be renewed soon."""
    scene = Scene()
    with FaultyServer(scene) as server:
        codec = FollowingCodec(STREAM, settings_of(server.url))
        scene.fault = answer({"error_code": 40401}, status)
        codec.follow({0: [KNOWN]})
        with pytest.raises(StreamRefused):
            codec.follow({0: [UNKNOWN]})
