"""Sender of vectors as locally private reports: `produce` for `record_kind = "local"`.

Each vector is first charged to its user, then privatized, then sent. So even a killed process has charged
every report that it sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streaming_pca.admin.produce import arrange_features
from streaming_pca.client.producer import charged_report
from streaming_pca.client.sending import Outgoing, Produced, send_messages
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.files import RecordFile
from streaming_pca.data.records import RecordKind
from streaming_pca.errors import UserError
from streaming_pca.linalg.packed import packed_size
from streaming_pca.local.accountant import AlreadySpent, LocalAccountant
from streaming_pca.local.gaussian import LocalGaussian
from streaming_pca.local.headers import report_headers
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.kafka.clients import MAX_MESSAGE_BYTES

_BLOCK_ENTRIES = 2**20  # numbers of a file held in memory at a time

_OVERHEAD = 2**16  # most bytes of a message in addition to its payload


def report_mechanism(stream: StreamSettings, radius: float = 1.0) -> LocalGaussian:
    """Return the mechanism of a stream's reports; vectors up to the public norm ``radius`` stay unchanged."""
    if stream.record_kind is not RecordKind.LOCAL:
        raise ConfigurationError(
            f'{stream.name}: record_kind = "{stream.record_kind}" does not accept reports: '
            'set record_kind = "local", or leave out the --local options'
        )
    return LocalGaussian(stream.epsilon, stream.delta, radius)


def arrange_vectors(records: RecordFile, stream: StreamSettings) -> RecordFile:
    """Check vectors against a stream of reports; arrange features in the stream's order."""
    if len(records.shape) != 2:
        raise UserError(
            f"{records.path}: holds factors of {records.shape[1]} rows, and a report is of one vector"
        )
    records = arrange_features(records, stream)
    size = 4 * packed_size(stream.dim)
    if size + _OVERHEAD > MAX_MESSAGE_BYTES:
        raise ConfigurationError(
            f"stream.dim = {stream.dim} makes reports of {size / 2**20:.0f} MiB, "
            f"and a message holds {MAX_MESSAGE_BYTES // 2**20} MiB: lower stream.dim"
        )
    return records


def row_users(records: RecordFile) -> list[bytes]:
    """Return the user of each row: its key, or the row itself if the file has no keys.

    So charges from Python, or from another program with the same accountant's file, count here.
    """
    if records.row_keys is None:
        path = str(Path(records.path).resolve())
        return [f"row {row} of {path}".encode() for row in range(1, len(records) + 1)]
    users = []
    for row, key in enumerate(records.keys(), start=1):
        if key is None:
            raise UserError(f"{records.path}: row {row} has no key, so no user can be charged for its report")
        users.append(key)
    return users


def without_spent(
    users: list[bytes], accountant: LocalAccountant, topic: str, mechanism: LocalGaussian
) -> NDArray[np.int64]:
    """Return the rows whose users may still report: the first ones of each user, in order."""
    asked: Counter[bytes] = Counter()
    kept = []
    for row, user in enumerate(users):
        if accountant.allows(user, topic, mechanism.epsilon, mechanism.delta, reports=asked[user] + 1):
            asked[user] += 1
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def send_reports(
    kafka: KafkaSettings,
    topic: str,
    records: RecordFile,
    mechanism: LocalGaussian,
    *,
    accountant: LocalAccountant | None = None,
    skip_spent: bool = False,
    shuffle: int | None = None,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Produced:
    """Send a report of each vector, without its key, to the topic's partitions in turn.

    ``accountant`` is charged before drawing the noise of a report; without it a vector could be reported
    twice. ``skip_spent`` skips users who have spent all their reports, to continue an interrupted process.
    The rest are as for :func:`streaming_pca.admin.produce.send_records`; skipped rows are progress too.

    Raises AlreadySpent if a user has spent all reports. Nothing was sent, unless another process charged the
    same users at the same time.
    """
    order = None if shuffle is None else utility_generator(shuffle).permutation(len(records))
    users = None
    total = len(records)
    if accountant is not None:
        users = row_users(records)
        kept = without_spent(users, accountant, topic, mechanism)
        if len(kept) < total:
            if not skip_spent:
                raise AlreadySpent(
                    f"{records.path}: {total - len(kept)} of {total} rows are of users who have spent their "
                    f"epsilon on {topic!r}, by {accountant.path}: --local-skip-spent leaves these rows out"
                )
            order = kept if order is None else order[np.isin(order, kept)]
            if progress is not None:
                progress(total - len(kept))
            total = len(kept)

    def reports() -> Iterator[Outgoing]:
        for row, vector in _rows(records, order):
            user = None if users is None else users[row]
            report = charged_report(mechanism, accountant, topic, user, vector)
            yield Outgoing(report, not_finite=not np.isfinite(vector).all())

    headers = report_headers(mechanism.epsilon, mechanism.delta)
    return send_messages(kafka, topic, reports(), total, headers, bool(users), rate=rate, progress=progress)


def _rows(records: RecordFile, order: NDArray[np.int64] | None) -> Iterator[tuple[int, NDArray[np.floating]]]:
    """Yield (number, vector) of each row."""
    numbers = iter(range(len(records)) if order is None else order.tolist())
    for block in records.blocks(max(1, _BLOCK_ENTRIES // records.dim), order):
        for vector in block:
            yield next(numbers), vector
