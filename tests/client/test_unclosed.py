"""Producers that a program leaves open: their rows are sent, and errors are one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

from streaming_pca.client import DeliveryError, Producer, sending
from streaming_pca.data.codec import PayloadCodec
from tests.client.conftest import NewTopic
from tests.client.test_producer import NoSender, X, sent
from tests.waiting import wait_for


def test_rows_that_wait_are_sent_by_a_deleted_producer_and_a_fork_is_refused(
    kafka_bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = Producer(topic, kafka_bootstrap, dim=3, privacy_unit="row")
    producer.send(X)
    uses = (partial(producer.send, X), producer.flush, producer.close)
    child = os.fork()
    if not child:
        refused = 0
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                refused += "was made in another process" in str(error)
        # The rows are the parent's to send.
        producer.__del__()
        # Nothing of pytest may run in the copy.
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    del uses, producer
    ((message,),) = sent(kafka_bootstrap, topic)
    np.testing.assert_array_equal(PayloadCodec(3).decode(message), X)


def test_rows_that_wait_are_sent_when_the_program_ends(kafka_bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    code = f"""
import numpy as np
from streaming_pca.client import DeliveryError, Producer, sending
producer = Producer({topic!r}, {kafka_bootstrap!r}, dim=3, privacy_unit="row")
producer.send(np.ones((5, 3)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    ((message,),) = sent(kafka_bootstrap, topic)
    np.testing.assert_array_equal(PayloadCodec(3).decode(message), np.ones((5, 3)))


def test_an_error_of_a_producer_that_was_left_open_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)

    def fail(*_: object) -> None:
        raise DeliveryError("the broker is gone")

    monkeypatch.setattr(NoSender, "send", fail)
    registered = Mock()
    monkeypatch.setattr("streaming_pca.client.producer.atexit", registered)
    producer = Producer("in", "127.0.0.1:1", dim=3, privacy_unit="row")
    producer.send(X)
    ((close,), _) = registered.register.call_args
    close()
    line = "streaming-pca: rows or messages were lost: the broker is gone\n"
    assert capsys.readouterr().err == line
    del producer
    registered.unregister.assert_called_with(close)
    assert capsys.readouterr().err == ""


def test_a_producer_that_was_closed_is_silent(kafka_bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Producer(topic, kafka_bootstrap, dim=3, privacy_unit="row") as producer:
            producer.send(X)
        del producer


def test_rows_that_wait_are_sent_where_the_clients_thread_collects_the_producer(
    kafka_bootstrap: str, new_topic: NewTopic
) -> None:
    """The last reference to a producer may be in a cycle, which any thread collects."""
    topic = new_topic()
    producer = Producer(topic, kafka_bootstrap, dim=3, privacy_unit="row")
    producer.send(X)
    began = time.monotonic()
    producer._sender._producer.send(new_topic(), b"x").add_callback(lambda _: producer.__del__())
    wait_for("another thread to close it", lambda: producer._sender.is_closed)
    assert time.monotonic() - began < sending._FLUSH_SECONDS
    ((message,),) = sent(kafka_bootstrap, topic)
    np.testing.assert_array_equal(PayloadCodec(3).decode(message), X)
