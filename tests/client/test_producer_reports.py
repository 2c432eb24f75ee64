"""Reports of the local model: whether one is sent depends on no record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.client import Producer
from streaming_pca.data.features.feature import Feature
from streaming_pca.local import LocalGaussian
from tests.client.test_producer import ONE, NoSender
from tests.config.refusals import refusal


def test_a_report_is_of_a_clamped_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    features = [Feature(name="a", bounds=(0, 1))]
    producer = Producer("in", "127.0.0.1:1", dim=1, features=features, privatize=LocalGaussian(*ONE))
    assert producer._shaped({"a": 7}).tolist() == [[1]]


def test_whether_a_report_is_sent_does_not_depend_on_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the topic counts the reports: an error for one record would name it, and hold others back."""
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    features = [Feature(name="a", bounds=(0, 1)), Feature(name="b", categories=("x", "y"))]
    named = Producer("in", "127.0.0.1:1", dim=3, features=features, privatize=LocalGaussian(*ONE))
    good = {"a": 0.5, "b": "x"}
    bad: list[Any] = [{"a": 0.5}, {}, {"a": "x", "b": "x"}, {"a": math.inf, "b": "y"}, {"a": None, "b": 3}]
    bad += [{"a": 10**400, "b": []}]
    named.send([good, *bad])
    for record in bad:
        named.send(record)
    assert len(named._sender.values) == 1 + 2 * len(bad)
    rows = named._shaped([good, *bad])
    assert np.isfinite(rows[0]).all()
    assert np.isnan(rows[1:]).all()
    plain = Producer("in", "127.0.0.1:1", dim=2, privatize=LocalGaussian(*ONE))
    for given in (
        [0.1, None],
        [[0.1, 0.2], [None, 0.3]],
        [[0.1, 0.2], None],
        [None],
        None,
        [np.ma.masked, 0.2],
        [[True, False], [True, None]],
        np.ma.masked_array([0.1, 0.2], [1, 0]),
        [0.1, math.nan],
    ):
        plain.send(given)
    assert len(plain._sender.values) == 12


BEYOND: dict[str, tuple[Any, dict[str, Any]]] = {
    # 2**62 microseconds are how Postgres writes infinity.
    "time": (pa.array([2**62, 0]).cast(pa.timestamp("us", "UTC"), safe=False), {"parts": ["hour"]}),
    "day": (pa.array([2**30, 0], pa.int32()).cast(pa.date32()), {"parts": ["day"]}),
    "word": (pa.array([b"\xff", b"x"]).view(pa.string()), {"categories": ["x", "y"]}),
    "text": (pa.array([b"\xff", b"1"]).view(pa.string()), {"parse": True, "bounds": (0, 1)}),
}


@pytest.mark.parametrize("case", BEYOND)
@pytest.mark.parametrize("library", ["pyarrow", "pandas"])
def test_an_arrow_value_that_python_cannot_hold_is_reported(
    case: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_pca.client.producer.Sender", NoSender)
    column, settings = BEYOND[case]
    table: Any = pa.table({"a": column})
    if library == "pandas":
        table = table.to_pandas(types_mapper=pd.ArrowDtype)
    features = [Feature(name="a", **settings)]
    producer = Producer("in", "127.0.0.1:1", features=features, privatize=LocalGaussian(*ONE))
    producer.send(table)
    assert len(producer._sender.values) == 2
    assert np.isfinite(producer._shaped(table)).all(axis=1).tolist() == [False, True]
    line = refusal(ValueError, lambda: PrivatePCA(1, features=features).fit(table))
    assert line.startswith("record 0 of 2: field 'a' is ")
