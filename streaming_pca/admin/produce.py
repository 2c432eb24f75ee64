"""Sender of a file of records as messages, or of reports of them: `streaming-pca produce`."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streaming_pca.client.encoding import ContentType, payload_encoder, payload_headers
from streaming_pca.client.producer import charged_report
from streaming_pca.client.sending import Outgoing, Produced, Sending, send_messages
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import split_path
from streaming_pca.data.files import RecordFile
from streaming_pca.data.records import RecordKind
from streaming_pca.errors import UserError
from streaming_pca.linalg.packed import packed_size
from streaming_pca.local.accountant import AlreadySpent, LocalAccountant
from streaming_pca.local.gaussian import LocalGaussian
from streaming_pca.local.headers import report_headers
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.kafka.clients import MAX_MESSAGE_BYTES
from streaming_pca.text import first_line

_NO_KEY = (
    'stream.privacy_unit = "user" makes messages without a key null: name the {} of the users with --key'
)
_BLOCK_MESSAGES = 1000
_BLOCK_ENTRIES = 2**20  # numbers of a file held in memory at a time, in addition to one message's
_OVERHEAD = 2**16  # most bytes of a report's message in addition to its payload


def arrange_features(records: RecordFile, stream: StreamSettings) -> RecordFile:
    """Arrange the records' features in the stream's order."""
    if records.dim != stream.dim:
        raise UserError(
            f"{records.path}: records of shape {records.shape[1:]} have {records.dim} features, "
            f"the stream's dim is {stream.dim}: "
            f"{_remedy(records, stream)}"
        )
    return records if stream.feature_names is None else records.with_features(stream.feature_names)


def _remedy(records: RecordFile, stream: StreamSettings) -> str:
    """Return the remedy for a wrong number of features, more precise with names."""
    own, wanted = records.feature_names, stream.feature_names
    if own is not None and wanted is not None:
        lacking = [name for name in wanted if name not in own]
        if lacking:
            return f"column {lacking[0]!r} of stream.feature_names is missing"
        others = ", ".join(repr(name) for i, name in enumerate(own) if name not in wanted or name in own[:i])
        return f"stream.feature_names does not have {others}: leave columns out with --drop"
    few = records.dim < stream.dim
    return f"{'add columns' if few else 'choose columns with --columns or --drop'}, or set stream.dim"


def check_format(path: Path | str, stream: StreamSettings, keyed: bool) -> None:
    """Refuse a file of numbers that lacks what the stream needs: fields or keys."""
    if stream.features is not None:
        # The producer refuses streams whose users are in a field.
        tables = ", or tables by streaming_pca.client.Producer.for_stream" * (stream.user_field is None)
        raise ConfigurationError(
            f"{path}: a stream with features reads records with named fields: send a .jsonl file, "
            f"of an object a line{tables}"
        )
    if stream.privacy_unit == "user" and not keyed:
        raise ConfigurationError(_NO_KEY.format("column"))


def arrange(
    records: RecordFile, stream: StreamSettings, *, rows_per_message: int = 1, factors: bool = False
) -> RecordFile:
    """Check records against a stream; arrange features, and ``factors`` of ``rows_per_message`` rows."""
    if stream.record_kind is RecordKind.LOCAL:
        raise ConfigurationError(
            f'{stream.name}: record_kind = "local" takes reports: readers of the topic would see the record'
        )
    check_format(records.path, stream, records.row_keys is not None)
    records = arrange_features(records, stream)
    if len(records.shape) == 3 and (factors or rows_per_message > 1):
        raise ConfigurationError(
            f"{records.path} holds factors of {records.shape[1]} rows, one a message: "
            "leave out --factors and --rows-per-message"
        )
    if factors and stream.privacy_unit == "row":
        raise ConfigurationError('stream.privacy_unit = "row" makes each row a record: leave out --factors')
    if rows_per_message > 1 and stream.privacy_unit != "row" and not factors:
        raise ConfigurationError(
            f'with stream.privacy_unit = "{stream.privacy_unit}" {rows_per_message} rows in a message are '
            'one record: add --factors if they are, or set stream.privacy_unit = "row"'
        )
    if records.row_keys is not None and rows_per_message > 1 and not factors:
        raise ConfigurationError(
            "--key gives each row a key, and a message has one: leave out --rows-per-message, or --key"
        )
    if factors:
        records = records.grouped(rows_per_message)
        # Checked now, because a later error would occur after the first messages were sent.
        deque(records.keys(), maxlen=0)
    if stream.record_kind is RecordKind.MATRIX:
        if records.shape[1:] != (stream.dim, stream.dim):
            raise UserError(
                f'{records.path}: stream.record_kind is "matrix": expected the shape '
                f"(records, {stream.dim}, {stream.dim})"
            )
        return records
    rows = records.shape[1] if len(records.shape) == 3 else rows_per_message
    if rows > stream.max_rows:
        raise ConfigurationError(
            f"{rows} rows a message are above stream.max_rows = {stream.max_rows}, which would make each "
            "of them null: raise it, or send fewer"
        )
    return records


def _order(to: Sending, count: int) -> NDArray[np.int64] | None:
    """Return the random order of ``count`` records; None for their own order."""
    return None if to.shuffle is None else utility_generator(to.shuffle).permutation(count)


def send_records(
    to: Sending,
    records: RecordFile | NDArray[np.floating],
    *,
    dtype: str = "float32",
    content_type: ContentType = "octets",
    rows_per_message: int = 1,
) -> Produced:
    """Send records, with their keys if any, to the topic's partitions in turn.

    A factor of an array (m, r, d) is one message; of vectors the last message may have fewer rows.
    """
    if not isinstance(records, RecordFile):
        records = RecordFile.of_array(records)
    encode, order = payload_encoder(content_type, dtype), _order(to, len(records))
    keys = records.keys(order)

    def outgoing() -> Iterator[Outgoing]:
        limit = np.finfo(dtype).max
        for rows in _messages(records, rows_per_message, order):
            key = next(keys)
            # Comparisons with NaN are false.
            not_finite = not (np.abs(rows) <= limit).all()
            yield Outgoing(encode(rows), key, len(rows), not_finite, records.row_keys is not None)

    total, headers = -(-len(records) // rows_per_message), payload_headers(content_type)
    return send_messages(to, outgoing(), total, headers)


def send_objects(to: Sending, stream: StreamSettings, path: Path, *, key: str | None = None) -> Produced:
    """Send the JSON objects of a file, one per line, unchanged.

    Objects that the stream's worker would treat as null count as not finite. ``key`` is the path of the field
    with each message's key. ConfigurationError if it is missing, and the key is the user.
    """
    try:
        numbered = [(n, line) for n, line in enumerate(path.read_bytes().splitlines(), 1) if line.strip()]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    is_object, lines = msgspec.json.Decoder(dict).decode, [line for _, line in numbered]
    for number, line in numbered:
        try:
            is_object(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: is not a JSON object ({first_line(error)})") from None
    if not lines:
        raise UserError(f"{path}: has no line with an object")
    if stream.privacy_unit == "user" and key is None and stream.user_field is None:
        raise ConfigurationError(_NO_KEY.format("field"))
    if (order := _order(to, len(lines))) is not None:
        lines = [lines[i] for i in order]
    # Workers read the objects with the same reader.
    path_of_key = None if key is None else split_path(key)
    fields = FieldReader(stream.features or (), stream.user_field or path_of_key)
    apart = stream.user_field is not None and path_of_key is not None  # then objects are read twice
    keys = FieldReader(fields.map.features, path_of_key) if apart else fields

    def read(reader: FieldReader, line: bytes) -> list[Any]:
        return reader.json_records(line, 1)

    if all(np.isnan(fields.rows(read(fields, line))).any() for line in lines):
        raise UserError(f"{path}: no object makes a record: `streaming-pca features check` shows why")
    if key is not None and not any(keys.users(read(keys, line))[0] for line in lines):
        raise UserError(f"{path}: no object has a text or a whole number at {key!r}: correct --key")

    def outgoing() -> Iterator[Outgoing]:
        for line in lines:
            records = read(fields, line)
            null = bool(np.isnan(fields.rows(records)).any())
            if stream.user_field is not None:
                null |= fields.users(records)[0] is None
            user = None if key is None else keys.users(read(keys, line) if apart else records)[0]
            yield Outgoing(line, user, 1, null, key is not None)

    return send_messages(to, outgoing(), len(lines), payload_headers("json"))


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


def check_unchanged(file: Path, accountant: LocalAccountant, topic: str, mechanism: LocalGaussian) -> None:
    """Refuse a file without keys that has changed since its rows were charged: they may be of others now.

    The accountant charges the file's name and its contents like users, before the first row.
    """
    digest = hashlib.sha256()
    for each in sorted(file.rglob("*")) if file.is_dir() else [file]:
        if each.is_file():
            with each.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    name, cost = f"file {file.resolve()}", (topic, mechanism.epsilon, mechanism.delta)
    contents = f"{name} {digest.hexdigest()}"
    if accountant.allows(contents.encode(), *cost):
        if not accountant.allows(name.encode(), *cost):
            raise AlreadySpent(
                f"{file}: has changed since its rows were charged by {accountant.path}, so a row may be of "
                "another user now: name the users by --key, or restore the file"
            )
        for charged in (name, contents):
            accountant.spend(charged.encode(), *cost)


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
    to: Sending,
    records: RecordFile,
    mechanism: LocalGaussian,
    *,
    accountant: LocalAccountant | None = None,
    skip_spent: bool = False,
) -> Produced:
    """Send a report of each vector, without its key, to the topic's partitions in turn.

    ``accountant`` is charged before drawing the noise of a report; without it a vector could be reported
    twice. ``skip_spent`` skips users who have spent all their reports, to continue an interrupted process.
    Skipped rows are progress too. Each vector is first charged to its user, then privatized, then sent: even
    a killed process has charged every report that it sent.

    Raises AlreadySpent if a user has spent all reports. Nothing was sent, unless another process charged the
    same users at the same time.
    """
    order, users, total = _order(to, len(records)), None, len(records)
    if accountant is not None:
        users = row_users(records)
        kept = without_spent(users, accountant, to.topic, mechanism)
        if len(kept) < total:
            if not skip_spent:
                raise AlreadySpent(
                    f"{records.path}: {total - len(kept)} of {total} rows are of users who have spent their "
                    f"epsilon on {to.topic!r}, by {accountant.path}: --local-skip-spent leaves these rows out"
                )
            order = kept if order is None else order[np.isin(order, kept)]
            if to.progress is not None:
                to.progress(total - len(kept))
            total = len(kept)

    def reports() -> Iterator[Outgoing]:
        rows = iter(range(len(records)) if order is None else order.tolist())
        for (vector,) in _messages(records, 1, order, _BLOCK_ENTRIES):
            row = next(rows)
            user = None if users is None else users[row]
            report = charged_report(mechanism, accountant, to.topic, user, vector)
            yield Outgoing(report, not_finite=not np.isfinite(vector).all())

    headers = report_headers(mechanism.epsilon, mechanism.delta)
    return send_messages(to, reports(), total, headers, bool(users))


def _messages(
    records: RecordFile,
    rows_per_message: int,
    order: NDArray[np.int64] | None,
    per_block: int = _BLOCK_MESSAGES,
) -> Iterator[NDArray[np.floating]]:
    """Yield the rows (r, d) of every message; read up to ``per_block`` messages of the file at a time."""
    entries = int(np.prod(records.shape[1:])) * rows_per_message
    per_block = max(1, min(per_block, _BLOCK_ENTRIES // entries))
    for block in records.blocks(per_block * rows_per_message, order):
        if block.ndim == 3:
            yield from block
        else:
            for first in range(0, len(block), rows_per_message):
                yield block[first : first + rows_per_message]
