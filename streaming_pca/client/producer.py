"""Producer of records, for programs."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral, Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.client.encoding import ContentType, Dtype, payload_encoder, payload_headers, round_rows
from streaming_pca.client.releases import connection
from streaming_pca.client.sending import DeliveryError, Sender
from streaming_pca.config.kafka import KafkaSettings, check_topic_name
from streaming_pca.data.features.row_map import (
    field_values,
    refuse_other_columns,
    refuse_other_types,
    row_map_of,
    rows_of_table,
)
from streaming_pca.linalg.masks import as_array, numbers_or_nan, refuse_masks_and_units
from streaming_pca.text import shown

if TYPE_CHECKING:
    from streaming_pca.config.settings import Settings
    from streaming_pca.local.accountant import LocalAccountant
    from streaming_pca.local.gaussian import LocalGaussian

_OF_REPORTS = ("message", "factor", "float32", "octets")
Key = bytes | str
Records = ArrayLike | Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Producer:
    """Producer that sends records in the format that a stream expects.

    Messages go to the topic's partitions in turn, are acknowledged by all in-sync replicas, and arrive
    once: the client's retries do not cause duplicates.

    Parameters
    ----------
    topic : str
        Input topic of the stream.
    kafka : KafkaSettings or str, optional
        Broker as HOST:PORT, or all connection settings; by default localhost:9092.
    dim : int, optional
        The stream's ``dim``, which ``features`` determine; likewise for the next parameters.
    privacy_unit : {"message", "row", "user"}
    record_kind : {"factor", "matrix"}
    dtype : {"float32", "float64"}
    max_rows : int
        Most rows of a message.
    content_type : {"octets", "npy", "json", "arrow"}
        Format of the messages; octets are read fastest.
    rows_per_message : int, optional
        Records per message if each row is a record; by default ``max_rows``.
    privatize : LocalGaussian, optional
        Mechanism of the local model, for ``record_kind = "local"``: reports are sent instead of the
        records, without keys.
    accountant : LocalAccountant, optional
        Charged for each report before drawing its noise. Without an accountant a record that is passed
        twice is reported twice.
    describe : bool
        State the number type and the record kind in headers, so that a stream with other settings treats
        the records as null instead of misreading them.
    feature_names : sequence of str, optional
        The stream's feature names; a table whose columns differ in names or order is refused.
    features : FeatureMap, or sequence of Feature or dict, optional
        The stream's features; records are then mappings or tables with these fields. The producer maps them
        and sends only their rows, as numbers of type ``dtype``.

    Raises
    ------
    ValueError, TopicError, BrokerUnreachable
        If parameters are incompatible, the topic is missing or the broker cannot be reached.

    Notes
    -----
    A producer belongs to the process that created it: in a fork, it raises RuntimeError. Threads may share
    it, but not an accountant, which belongs to the thread that opened it. At most 50,000 messages and 96
    MiB wait for acknowledgement, or 200 charged reports; beyond that :meth:`send` waits.

    After a :class:`DeliveryError` the producer sends nothing further, and it is unknown which messages
    since the last :meth:`flush` have arrived: sending them again may count a record twice.

    Each report is computed once. It is charged, its noise is drawn, and the client repeats the same bytes
    until they are acknowledged. Otherwise the charge remains: a further report raises AlreadySpent.
    """

    def __init__(
        self,
        topic: str,
        kafka: KafkaSettings | str | None = None,
        *,
        dim: int | None = None,
        privacy_unit: Literal["message", "row", "user"] = "message",
        record_kind: Literal["factor", "matrix"] = "factor",
        dtype: Dtype = "float32",
        max_rows: int = 64,
        content_type: ContentType = "octets",
        rows_per_message: int | None = None,
        privatize: LocalGaussian | None = None,
        accountant: LocalAccountant | None = None,
        describe: bool = True,
        feature_names: Sequence[str] | None = None,
        features: Any = None,
    ) -> None:
        check_topic_name("topic", topic)
        _check_count("max_rows", max_rows)
        if rows_per_message is not None:
            _check_count("rows_per_message", rows_per_message)
        self._map = None if features is None else row_map_of(features)
        if dim is None:
            if self._map is None:
                raise ValueError("dim is needed, or features, which determine it")
            dim = self._map.dim
        _check_count("dim", dim)
        if self._map is not None:
            if (dim, record_kind) != (self._map.dim, "factor"):
                raise ValueError(
                    f"features make vectors of {self._map.dim} numbers: leave out dim and record_kind"
                )
            if content_type == "json":
                raise ValueError(
                    'content_type = "json" would be read as objects: features are sent as octets'
                )
            if feature_names is not None and tuple(feature_names) != self._map.names:
                raise ValueError("feature_names are those of features: leave them out")
        by_row = privacy_unit == "row"
        together = (max_rows if by_row else 1) if rows_per_message is None else rows_per_message
        if not 1 <= together <= (max_rows if by_row else 1):
            raise ValueError(
                f"rows_per_message = {together} is not from 1 to max_rows = {max_rows}"
                if by_row
                else 'rows_per_message needs privacy_unit = "row": other messages are one record each'
            )
        for name, value, known in (
            ("privacy_unit", privacy_unit, ("message", "row", "user")),
            ("record_kind", record_kind, ("factor", "matrix")),
            ("dtype", dtype, get_args(Dtype)),
            ("content_type", content_type, get_args(ContentType)),
        ):
            if value not in known:
                raise ValueError(f"{name} = {value!r} is not one of {', '.join(known)}")
        if accountant is not None and privatize is None:
            raise ValueError("accountant= charges reports: add privatize=")
        if privatize is not None and (privacy_unit, record_kind, dtype, content_type) != _OF_REPORTS:
            raise ValueError(
                "privatize= needs vectors as float32 octets: leave out privacy_unit, record_kind, dtype and "
                "content_type"
            )
        self.topic = topic
        self._dim, self._unit, self._kind, self._max_rows = dim, privacy_unit, record_kind, max_rows
        self._together = together
        self._names = None if feature_names is None else list(map(str, feature_names))
        self._mechanism, self._accountant = privatize, accountant
        self._dtype, self._encode = dtype, payload_encoder(content_type, dtype)
        if privatize is not None:
            from streaming_pca.local.headers import report_headers

            self._headers = report_headers(privatize.epsilon, privatize.delta)
        elif describe:
            self._headers = payload_headers(content_type, dtype, record_kind)
        else:
            self._headers = payload_headers(content_type)
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._rows: list[NDArray[Any]] = []
        self._count = 0
        # Otherwise many producers of few records each would all fill the first partition.
        self._sender = Sender(connection(kafka), topic, time.monotonic_ns() // 1000, accountant is not None)
        # At exit the last handler is called first: this one before the client's, which closes.
        self._at_exit = partial(Producer._close_last, weakref.proxy(self))
        atexit.register(self._at_exit)

    @classmethod
    def for_stream(
        cls,
        stream: Settings | Path | str,
        *,
        content_type: ContentType = "octets",
        rows_per_message: int | None = None,
        privatize: LocalGaussian | None = None,
        accountant: LocalAccountant | None = None,
    ) -> Self:
        """Make a producer for a stream with known settings.

        Parameters
        ----------
        stream : Settings, Path or str
            Settings, or the TOML file of one stream.
        content_type, rows_per_message, privatize, accountant
            As for :class:`Producer`.

        Raises
        ------
        ConfigurationError, TopicError, BrokerUnreachable
            If the file is wrong, the topic is missing or the broker cannot be reached.
        ValueError
            Also if the stream does not take reports and ``privatize`` or ``accountant`` is given, or if the
            epsilon or delta of ``privatize`` differs from the stream's: every report would be null.
        """
        from streaming_pca.config.loading import load_settings

        settings = load_settings(Path(stream)) if isinstance(stream, str | Path) else stream
        if not hasattr(settings, "stream"):
            raise ValueError(f"stream must be Settings or the path of a TOML file, not {shown(stream)}")
        own = settings.stream
        if privatize is None and own.record_kind == "local":
            raise ValueError(
                f'{own.name}: record_kind = "local" takes reports: '
                f"add privatize=LocalGaussian({own.epsilon!r}, {own.delta!r})"
            )
        if own.record_kind != "local" and not (privatize is None and accountant is None):
            raise ValueError(
                f'{own.name}: record_kind = "{own.record_kind}" takes records, and reports would be null: '
                'leave out privatize= and accountant=, or name a stream of record_kind = "local"'
            )
        if privatize is not None and (privatize.epsilon, privatize.delta) != (own.epsilon, own.delta):
            raise ValueError(
                f"{own.name}: reports of {privatize!r} would be null: "
                f"the stream's guarantee is ({own.epsilon!r}, {own.delta!r})"
            )
        if own.user_field is not None:
            raise ValueError(
                f"{own.name}: user_field names the user in JSON objects, which are sent as they are: "
                "use any Kafka client"
            )
        return cls(
            own.input,
            settings.kafka,
            dim=own.dim,
            privacy_unit=own.privacy_unit,
            record_kind="matrix" if own.record_kind == "matrix" else "factor",
            dtype=own.dtype,
            max_rows=own.max_rows,
            content_type=content_type,
            rows_per_message=rows_per_message,
            privatize=privatize,
            accountant=accountant,
            describe=False,
            feature_names=own.feature_names,
            features=own.features,
        )

    def send(self, records: Records, key: Key | Sequence[Key] | None = None) -> None:
        """Send records; if each row is a record, wait for a full message.

        Parameters
        ----------
        records : (d,), (m, d) or (m, r, d) numbers; a mapping, a list of them, or a table
            One vector, m vectors, or m factors of r rows; (m, d, d) of kind matrix. A record that is not
            finite as ``dtype`` counts as null. With ``features`` records have named fields; values that they
            refuse raise an error. With ``privatize`` such records, and those with missing or masked numbers,
            are reported as the zero vector: an error would reveal them.
        key : bytes, str or a sequence of m of them, optional
            Users of the records, required if the privacy unit is the user or an accountant is charged.

        Raises
        ------
        ValueError
            If the shape is wrong, a key is missing or the producer is closed; nothing was sent.
        AlreadySpent
            If a user has spent all reports. Nothing was sent, unless another process charged the users too.
        DeliveryError
            If these or earlier messages could not be delivered.
        """
        self._check_process()
        if self._sender.is_closed:
            raise ValueError("the producer is closed: make another one")
        array = self._shaped(records)
        keys = self._keys(key, len(array))
        with self._lock:
            if self._mechanism is not None:
                self._send_reports(array, keys)
            elif self._unit == "row":
                self._send_rows(array.reshape(-1, self._dim))
            else:
                for record, own in zip(array, keys, strict=True):
                    self._sender.send(self._encode(np.atleast_2d(record)), own, self._headers)

    def flush(self) -> None:
        """Send waiting rows, and wait for all acknowledgements; raise DeliveryError if messages failed."""
        self._check_process()
        with self._lock:
            if self._count:
                rows = np.concatenate(self._rows)
                self._rows, self._count = [], 0
                self._sender.send(self._encode(rows), None, self._headers)
            self._sender.flush()

    def close(self) -> None:
        """Flush and release the connection; deletion and the program's end do so too, and print errors."""
        self._check_process()
        try:
            self.flush()
        finally:
            self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, waiting for a broker that may be dead would only hide it.
        if kind is None:
            self.close()
        elif self._process == os.getpid():
            self._rows, self._count = [], 0
            self._sender.close()

    def __del__(self) -> None:
        if hasattr(self, "_at_exit"):
            atexit.unregister(self._at_exit)
            if not self._sender.is_closed and self._sender.is_in_clients_thread():
                threading.Thread(target=self._close_last).start()
            else:
                self._close_last()

    def _close_last(self) -> None:
        """Close a producer that the program left open; nothing could catch an error."""
        if self._process == os.getpid() and not self._sender.is_closed:
            try:
                self._sender.make_room()  # raises an earlier error, without another wait for the broker
                self.close()
            except DeliveryError as error:
                print(f"streaming-pca: rows or messages were lost: {error}", file=sys.stderr)
                self._sender.close()  # or the client would wait again, and print a traceback

    def _check_process(self) -> None:
        if self._process != os.getpid():
            # The client's thread does not exist in a fork, and the lock may stay held forever.
            raise RuntimeError("the producer was made in another process: make one in each, after the fork")

    def _shaped(self, records: Any) -> NDArray[Any]:
        if self._map is not None:
            table = [records] if isinstance(records, Mapping) else records
            if self._mechanism is not None:
                # A record that the features refuse becomes NaN: an error would hold its report back.
                values = field_values(table, self._map.features, "records")
                rows = self._map.rows(values, len(values[0]))
                return rows if self._map.bounds is None else np.clip(rows, *self._map.bounds)
            rows = rows_of_table(self._map, table, "records")
            # Not clamped: the worker does that, and counts the records with values beyond the bounds.
            return rows if self._map.bounds is None else round_rows(rows, self._map.bounds, self._dtype)
        if self._names is not None:
            refuse_other_columns(records, self._names, "records", "the stream's feature_names")
        if self._mechanism is not None:
            array = numbers_or_nan(records, "records")
            if array.ndim < 2 and array.size != self._dim and array.dtype == float and np.isnan(array).all():
                array = np.full((array.size, self._dim), np.nan)  # missing records alone
        else:
            refuse_masks_and_units(records, "records")
            array = as_array(records, "records")
        refuse_other_types(array.dtype, "fiu", records, "records")
        shape, last = array.shape, (self._dim,) * (2 if self._kind == "matrix" else 1)
        if array.ndim == len(last):
            array = array[None]
        wanted = (3,) if self._kind == "matrix" else (2,) if self._mechanism is not None else (2, 3)
        if array.ndim not in wanted or array.shape[-len(last) :] != last or not array.size:
            text = f"records have the shape {shape}: expected {('m', *last)}, or {last} for one record"
            raise ValueError(text.replace("'m'", "m"))
        is_factor = self._kind == "factor" and self._unit != "row" and array.ndim == 3
        if is_factor and array.shape[1] > self._max_rows:
            raise ValueError(f"factors of {array.shape[1]} rows are above max_rows = {self._max_rows}")
        return array

    def _keys(self, key: Key | Sequence[Key] | None, count: int) -> list[bytes | None]:
        if key is None:
            if self._unit == "user" or self._accountant is not None:
                raise ValueError("key= is needed: it names the user of the record")
            return [None] * count
        keys = list(key) if isinstance(key, Iterable) and not isinstance(key, bytes | str) else [key] * count
        if not all(isinstance(each, bytes | str) and each for each in keys):
            raise ValueError("a key is text or bytes, and not empty")
        if len(keys) != count:
            raise ValueError(f"{len(keys)} keys for {count} records")
        if self._unit == "row":
            raise ValueError('privacy_unit = "row" puts many records into a message, which has one key')
        return [each.encode() if isinstance(each, str) else each for each in keys]

    def _send_rows(self, rows: NDArray[Any]) -> None:
        while len(rows):
            # Copied, because the caller may write to its array before the message is full.
            taken = np.array(rows[: self._together - self._count])
            rows = rows[len(taken) :]
            self._rows.append(taken)
            self._count += len(taken)
            if self._count == self._together:
                full = np.concatenate(self._rows)
                self._rows, self._count = [], 0
                self._sender.send(self._encode(full), None, self._headers)

    def _send_reports(self, vectors: NDArray[Any], users: list[bytes | None]) -> None:
        assert self._mechanism is not None
        if self._accountant is not None:
            self._check_left(self._accountant, users)
        for vector, user in zip(vectors, users, strict=True):
            # Before the charge, because a failed producer must not spend.
            self._sender.make_room()
            report = charged_report(self._mechanism, self._accountant, self.topic, user, vector)
            self._sender.send(report, None, self._headers)

    def _check_left(self, accountant: LocalAccountant, users: list[bytes | None]) -> None:
        from streaming_pca.local.accountant import AlreadySpent

        assert self._mechanism is not None
        guarantee = self._mechanism.epsilon, self._mechanism.delta
        for user, reports in Counter(filter(None, users)).items():
            if not accountant.allows(user, self.topic, *guarantee, reports=reports):
                fault = f"{accountant.path}: a user has no report of {guarantee} left on {self.topic!r}"
                if reports > 1:
                    fault = (
                        f"key= has one key {reports} times, and {accountant.path} allows its user fewer "
                        f"reports of {guarantee} on {self.topic!r}, so pass each key once"
                    )
                raise AlreadySpent(f"{fault}: nothing of this call was sent")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        plain = value is None or isinstance(value, str | Number)
        given = repr(value) if plain else f"of type {type(value).__name__}"
        raise ValueError(f"{name} must be a whole number of at least 1, not {given}")


def charged_report(
    mechanism: LocalGaussian,
    accountant: LocalAccountant | None,
    topic: str,
    user: bytes | None,
    vector: NDArray[Any],
) -> bytes:
    """Charge a user, then compute a report's payload; raise AlreadySpent or AccountantError before."""
    if accountant is not None and user is not None:
        accountant.spend(user, topic, mechanism.epsilon, mechanism.delta)
    return mechanism.privatize(vector).astype("<f4", copy=False).tobytes()
