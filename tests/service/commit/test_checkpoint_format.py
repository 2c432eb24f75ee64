"""Checkpoints as bytes: they round-trip, and anything else is refused."""

from __future__ import annotations

from typing import Any

import pytest

from streaming_pca.service.commit.state_topic import Checkpoint, decode_checkpoint, encode_checkpoint
from streaming_pca.service.commit.user_log import MalformedState


def a_checkpoint(**changes: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "topic_id": "id",
        "stream": "s",
        "batch": 3,
        "positions": {0: 5, 2: 7},
        "salt": b"salt" * 8,
        "state": b"state bytes",
        "release": b"{}",
    }
    return Checkpoint(**(values | changes))


def test_a_checkpoint_round_trips() -> None:
    checkpoint = a_checkpoint()
    data, digest = encode_checkpoint(checkpoint)
    assert decode_checkpoint(data) == (checkpoint, digest)


def test_equal_states_have_unequal_digests_under_other_salts() -> None:
    assert encode_checkpoint(a_checkpoint())[1] != encode_checkpoint(a_checkpoint(salt=b"b" * 32))[1]


@pytest.mark.parametrize("data", [b"", b"\0\0\0\5hello", b"\0\0\0\2{}", b"\xff" * 40])
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedState):
        decode_checkpoint(data)
