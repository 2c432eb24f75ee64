"""Checkpoints as bytes: they round-trip, and anything else is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streaming_pca.service.commit.state_topic import Checkpoint, decode_checkpoint, encode_checkpoint
from streaming_pca.service.commit.user_log import MalformedState

CHECKPOINT = Checkpoint("id", "s", 3, {0: 5, 2: 7}, b"salt" * 8, b"state bytes", b"{}")


def test_a_checkpoint_round_trips_and_its_digest_depends_on_its_salt() -> None:
    data, digest = encode_checkpoint(CHECKPOINT)
    assert decode_checkpoint(data) == (CHECKPOINT, digest)
    assert encode_checkpoint(replace(CHECKPOINT, salt=b"b" * 32))[1] != digest


@pytest.mark.parametrize("data", [b"", b"\0\0\0\5hello", b"\0\0\0\2{}", b"\xff" * 40])
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedState):
        decode_checkpoint(data)
