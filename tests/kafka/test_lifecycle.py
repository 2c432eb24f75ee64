"""Pausing, resuming and retiring a stream beside its workers; and verifying what that leaves."""

from __future__ import annotations

import ast
import inspect
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from typer.testing import CliRunner

from streaming_pca.cli import ledger as ledger_command
from streaming_pca.cli import stream as stream_command
from streaming_pca.estimators.base import encode_state
from streaming_pca.privacy.entries import (
    Abandoned,
    Committed,
    OffsetRange,
    Paused,
    Released,
    Reserved,
    Resumed,
    Retired,
)
from streaming_pca.privacy.ledger import Standing
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service import lifecycle
from streaming_pca.service.checkpoint import CheckpointWriter
from streaming_pca.service.clients import plain_producer
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.inspection import verify_ledger
from streaming_pca.service.lifecycle import Change, LifecycleWriter, pause, resume, retire
from streaming_pca.settings import ConfigurationError, Settings
from tests.kafka.child import Strike, install
from tests.kafka.stream import Stream, check_books, wait_for

pytestmark = pytest.mark.kafka

MakeStream = Callable[..., Stream]
CHARGE = Charge(epsilon="1/2", delta="1e-7")
ENDLESS: dict[str, Any] = {
    "partitions": 2,
    "estimator": "private-oja",
    "centering": "none",
    "options": {"clip_radius": 20.0, "batch_size": 40},
}


def change(stream: Stream, what: Callable[..., Change], reason: str = "a test") -> Change:
    return what(stream.settings.kafka, stream.settings.stream, reason)


def kinds(stream: Stream) -> list[str]:
    """The stream's own entries, in order."""
    return [e.kind for e in stream.own(object)]  # type: ignore[attr-defined]


class Leader:
    """A session as leader, step by step, without a worker around it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.writer = CheckpointWriter(stream.settings.kafka, stream.settings.stream, stream.topic_id)
        self.found = self.writer.take_over()

    def reserve(self, start: int = 0, end: int = 5) -> Reserved:
        ranges = [OffsetRange(partition=0, start=start, end=end, count=end - start)]
        return self.writer.reserve(ranges, {}, CHARGE)

    def commit(self, reserved: Reserved) -> None:
        self.writer.commit(reserved, {0: reserved.ranges[0].end}, b"state", release(self.stream, reserved.batch))

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()
