"""From a file of vectors to messages: what `streaming-pca produce` does."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kafka.errors import KafkaError, KafkaTimeoutError
from numpy.typing import NDArray

from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.clients import BrokerUnreachable, plain_producer
from streaming_pca.settings import KafkaSettings
from streaming_pca.wire import OCTETS

__all__ = ["Produced", "RecordFileError", "read_records", "send_records"]

_REPORT_EVERY = 1000
_MAX_UNSENT = 50_000


class RecordFileError(Exception):
    """A file of records cannot be read; one line that names file and line."""


@dataclass(frozen=True)
class Produced:
    """What was sent."""

    records: int
    seconds: float
    topic: str


def read_records(path: Path) -> NDArray[np.floating]:
    """Read vectors (m, d) or factors (m, r, d).

    Parameters
    ----------
    path : Path
        ``.npy`` (memory-mapped; never unpickled) or ``.csv`` (numbers, one
        record a line; a first line that is no numbers is a header).

    Raises
    ------
    RecordFileError
    """
    try:
        array: NDArray[Any]
        match path.suffix.lower():
            case ".npy":
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            case ".csv":
                array = _read_csv(path)
            case other:
                raise RecordFileError(f"{path}: {other or 'no ending'}: expected a .npy or .csv file")
    except OSError as error:
        raise RecordFileError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise RecordFileError(f"{path}: is no array of numbers: {error}") from None
    if array.dtype.kind not in "fiu" or array.ndim not in (2, 3) or not array.size:
        raise RecordFileError(
            f"{path}: holds {array.dtype} of shape {array.shape}; "
            "expected numbers of shape (records, features) or (records, rows, features)"
        )
    return array


def _read_csv(path: Path) -> NDArray[np.float64]:
    rows: list[NDArray[np.float64]] = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, line in enumerate(csv.reader(file), start=1):
            if not line:
                continue
            try:
                row = np.array(line, dtype=np.float64)
            except ValueError:
                if number == 1:
                    continue
                raise RecordFileError(f"{path}, line {number}: is no list of numbers") from None
            if rows and len(row) != len(rows[0]):
                raise RecordFileError(
                    f"{path}, line {number}: has {len(row)} numbers, the lines before have {len(rows[0])}"
                )
            rows.append(row)
    if not rows:
        raise RecordFileError(f"{path}: holds no records")
    return np.stack(rows)


def send_records(
    kafka: KafkaSettings,
    topic: str,
    records: NDArray[np.floating],
    *,
    dtype: str = "float32",
    shuffle: int | None = None,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Produced:
    """Send one message a record, in turn over the topic's partitions.

    Parameters
    ----------
    records : (m, d) or (m, r, d)
    dtype : {"float32", "float64"}
        Of the octet-stream payload; the stream's ``dtype``.
    shuffle : int, optional
        Public seed of the order.
    rate : float, optional
        Records a second at most.
    progress : callable, optional
        Told now and then how many records were sent since it was last told.
    """
    order = None if shuffle is None else utility_generator(shuffle).permutation(len(records))
    headers = [("content-type", OCTETS.encode())]
    wire = "<f4" if dtype == "float32" else "<f8"
    producer = plain_producer(kafka)
    started = time.monotonic()
    failures: list[BaseException] = []
    sent = 0
    try:
        partitions = producer.partitions_for(topic)
        if not partitions:
            raise RecordFileError(f"topic {topic!r} is missing: create it with `streaming-pca topics create`")
        count = len(partitions)
        with np.errstate(over="ignore"):
            for value in _payloads(records, order, wire):
                future = producer.send(topic, value=value, partition=sent % count, headers=headers)
                future.add_errback(failures.append)
                sent += 1
                if failures:
                    raise failures[0]
                if progress is not None and sent % _REPORT_EVERY == 0:
                    progress(_REPORT_EVERY)
                _keep_rate(started, sent, rate)
                # The embedded broker tells the end of a partition as one past the *first* record of
                # its last batch: a last batch of one record makes that the true end.
                if sent % _MAX_UNSENT == 0 or sent == len(records) - count:
                    producer.flush(timeout=60)
        producer.flush(timeout=60)
        if failures:
            raise failures[0]
    except (KafkaError, KafkaTimeoutError) as error:
        raise BrokerUnreachable(f"sending to {topic!r} failed after {sent} records: {error}") from None
    finally:
        producer.close(timeout=5)
    if progress is not None:
        progress(sent % _REPORT_EVERY)
    return Produced(sent, time.monotonic() - started, topic)


def _payloads(records: NDArray[Any], order: NDArray[np.int64] | None, wire: str) -> Iterator[bytes]:
    """Bytes of every record, converted a thousand at a time."""
    for first in range(0, len(records), _REPORT_EVERY):
        index = slice(first, first + _REPORT_EVERY)
        block = records[index] if order is None else records[order[index]]
        block = np.ascontiguousarray(block, dtype=wire)
        data = block.tobytes()
        size = len(data) // len(block)
        for i in range(len(block)):
            yield data[i * size : (i + 1) * size]


def _keep_rate(started: float, sent: int, rate: float | None) -> None:
    if rate is not None:
        ahead = sent / rate - (time.monotonic() - started)
        if ahead > 0.005:
            time.sleep(ahead)
