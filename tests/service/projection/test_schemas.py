"""A projecting worker waits for a registry, whatever schemas its records name."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from streaming_pca.config.settings import StreamSettings
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.projection.encoding import FollowingCodec
from tests.data.features.registered import framed
from tests.service.registry.faults import Answer, FaultyServer, answer
from tests.service.registry.producers import record_type, settings_of

FIELDS: Any = {"rank": 1, "epsilon": 1, "delta": 1e-6, "features": [{"name": "a", "bounds": [0, 9]}]}
STREAM = StreamSettings(name="s", input="t", format="avro", **FIELDS)


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


@pytest.mark.parametrize("polled", [[KNOWN, *OTHERS], [UNKNOWN], [KNOWN, UNKNOWN]])
@pytest.mark.parametrize("status", [401, 404, 503])
def test_records_wait_for_the_registry_whatever_schema_they_name(polled: list[Message], status: int) -> None:
    """Otherwise lag, log and exit status would show whether a record has an unknown schema.

    A refusal passes too, because a password may be renewed soon.
    """
    scene = Scene()
    with FaultyServer(scene) as server:
        codec = FollowingCodec(STREAM, settings_of(server.url))
        scene.fault = answer({"error_code": 40401}, status)
        assert set(codec.follow({0: []}).schemas or ()) == {7}
        with pytest.raises(SessionLost, match=r"registry\.url|the registry has no subject"):
            codec.follow({0: polled})
        scene.fault = None
        scene.ids.append(8)
        assert set(codec.follow({0: polled}).schemas or ()) == {7, 8}
