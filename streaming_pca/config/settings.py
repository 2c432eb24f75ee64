"""Frozen tree of settings, which :mod:`streaming_pca.config.loading` reads from a file.

The fields' docstrings are the descriptions in the settings reference.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Set
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streaming_pca.config.features import read_schema, with_features
from streaming_pca.config.http import HttpSettings
from streaming_pca.config.kafka import ConfigurationError, KafkaSettings, Section, check_topic, checked
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.data.codec import FORMATS, OCTETS, Format, MediaType
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import SCHEMA_FORMATS, Path, PublicSchema, Subject, split_path
from streaming_pca.data.features.row_map import check_places
from streaming_pca.data.preprocessing import Numbers, Preprocessing, present_centering
from streaming_pca.data.records import RecordKind
from streaming_pca.errors import LibraryMissing
from streaming_pca.estimators.base import Estimator, check_private, no_guarantee
from streaming_pca.estimators.diagnostics import MAX_SHARE
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.local.headers import contract_header
from streaming_pca.privacy.ledger.entries import Cap
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.validation_errors import error_lines, options_lines

_LOCAL = (
    ("format", "octets", "has reports in octets"),
    ("privacy_unit", "message", "guarantees privacy for each message"),
    ("dtype", "float32", "has reports of float32 numbers"),
)
_MAX_LEDGER_ITEMS = 16
"""Longest array that the privacy contract contains; longer ones are replaced by their digests."""


class WorkerSettings(Section):
    """Operation of the worker; not part of the privacy contract."""

    group: str = Field(default="streaming-pca", pattern=r"^[A-Za-z0-9._-]{1,200}$")
    """Consumer group of the leader election, equal for all workers that may run a stream."""
    tick_seconds: float = Field(default=0.2, gt=0, le=60)
    """Interval between reads of the partitions' end offsets, in seconds; batches close on these ticks."""
    partitions_seconds: float = Field(default=10.0, gt=0)
    """Interval between checks for new partitions of the input topics, in seconds."""
    step_deadline_seconds: float = Field(default=60.0, gt=0)
    """Longest time for one exchange with the broker, in seconds."""
    give_up_seconds: float = Field(default=120.0, gt=0)
    """Longest time of broker failures without progress before a worker exits, in seconds; leading a stream
    for longer than ``step_deadline_seconds`` is progress."""
    threads: int | None = Field(default=None, ge=1, le=256)
    """Threads of the compiled kernels, in one shared pool; if not set, the number of processors available
    to this process, at most 8. Results do not depend on it."""
    read_ahead: float = Field(default=1.0, ge=0, le=1)
    """Share of the next batch to read while the current one is processed; a lower value saves memory but
    leaves more to read afterwards. Up to 16 MiB are read ahead in any case."""
    verify_seconds: float = Field(default=86_400.0, ge=0)
    """Interval between this worker's verifications of its ledgers, in seconds; the first one follows after
    at most 5 minutes; 0 disables them. Each reads a ledger from its start, in a process of low priority.
    Verifications run for at most a tenth of the time."""
    debuggable: bool = False
    """Admit debuggers of the same user, and show the messages of unexpected errors; both can reveal records
    and secrets. If not set, only root can attach a debugger."""
    stop_when_done: bool = False
    """Exit after learning ``options.n_records`` records, for a stream of known length."""


class LogSettings(Section):
    """Log of the worker, on standard error."""

    format: Literal["text", "json"] = "text"
    """Format of the log: lines for people, or JSON objects for programs."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""


def check_collector(url: str) -> None:
    """Raise ValueError if the collector's URL is invalid or contains credentials."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            "must have no password and no query: headers with secrets belong in OTEL_EXPORTER_OTLP_HEADERS"
        )


class TraceSettings(Section):
    """The worker's traces with OpenTelemetry; they need the extra `otel`."""

    enabled: bool = False
    """Send spans of each batch and take-over to a collector, by OTLP over HTTP."""
    endpoint: Annotated[str | None, checked(check_collector)] = None
    """Address of the collector, without `/v1/traces`; if not set, the address is read from the standard
    variables `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and `OTEL_EXPORTER_OTLP_ENDPOINT`, else it is
    `http://localhost:4318`."""


def _check_delta(delta: float) -> None:
    if 1 <= delta < math.inf:
        raise ValueError("must be below 1, or inf with private = false")


class StreamSettings(Section):
    """Stream: its input, its privacy guarantee, and its estimator."""

    name: Annotated[str, checked(check_topic)]
    """Name of the stream, of its job in the ledger, and of its topics NAME.state and NAME.releases."""
    input: Annotated[str, checked(check_topic)]
    """Topic to read; its ledger is the topic INPUT.ledger."""
    dim: int = Field(ge=1, le=2**13)
    """Number d of features."""
    rank: int = Field(ge=1)
    """Dimension k of the subspace."""
    epsilon: float = Field(gt=0)
    """Epsilon of the privacy guarantee for each privacy unit over all releases; `inf` if `private = false`.
    For `record_kind = "local"`: the guarantee that every report already has."""
    delta: Annotated[float, checked(_check_delta)] = Field(gt=0)
    """Delta of the privacy guarantee; `inf` if `private = false`."""
    private: bool = True
    """Require a private estimator; false gives up any guarantee: every record is charged infinity, and the
    cap of the input's ledger must be `inf,inf`."""
    privacy_unit: Literal["message", "row", "user"] = "message"
    """Unit that the guarantee protects: a message with all its rows, each row of a message, or all
    messages of a user, identified by the message key."""
    contributions_per_user: int = Field(default=1, ge=1, le=65535)
    """Most batches per user, with one message each; only for `privacy_unit = "user"`."""
    record_kind: RecordKind = RecordKind.FACTOR
    """Kind of records: vectors and factors F (A = F^T F), symmetric matrices, or reports that producers
    have already made private."""
    feature_names: tuple[str, ...] | None = None
    """Names of the d features, copied into releases."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number type of ``application/octet-stream`` payloads."""
    features: tuple[Feature, ...] | None = Field(default=None, min_length=1)
    """Named fields of records, in order, and their mapping to numbers; `dim`, `feature_names`, `bounds` and
    `scale` follow from them."""
    user_field: Annotated[
        Path | None, BeforeValidator(split_path, json_schema_input_type=str | list[str] | None)
    ] = None
    """Field of a record that contains its user, instead of the message key; only for `features` and
    `privacy_unit = "user"`."""
    format: Format = "octets"
    """Format of messages without a header ``content-type``; with `features` the default is `json`; `avro`
    and `protobuf` need `features`."""
    schema_file: FilePath | None = None
    """File of the records' schema: Avro's JSON, or the descriptors that `protoc --descriptor_set_out` writes.
    Its content is part of the privacy contract, its path is not. If not set, the schemas are read from
    `[registry]`."""
    subject: str | None = Field(default=None, pattern=r"^[^\x00-\x1f\x7f]{1,255}$")
    """Subject of the records' schemas in `[registry]`; if not set, INPUT-value."""
    message: str | None = None
    """Full name of the records' Protobuf message, such as `shop.Visit`; with `[registry]` the default is
    the schema's first message."""
    max_rows: int = Field(default=64, ge=1, le=2**16)
    """Most rows of a payload; a payload with more is a null record. With `centering = "pairs"` a payload of
    more than one row is null too."""
    max_wait_seconds: float | None = Field(default=None, gt=0)
    """Time in seconds after which a batch closes although it is not full, if it has the estimator's minimum
    number of records; if not set, only full batches close."""
    centering: Annotated[
        Literal["auto", "pairs", "none"] | tuple[float, ...], BeforeValidator(present_centering)
    ] = "auto"
    """Treatment of the mean: estimated with a small part of the budget, removed by pairs, kept, or replaced
    by a given public centre. `auto` is `pairs` with an estimator that does not estimate the mean."""
    bounds: tuple[Numbers, Numbers] | None = None
    """Public lower and upper bounds for clamping rows, each a number or one number per feature: first all
    lower bounds."""
    scale: Numbers | Literal["bounds"] | None = None
    """Public factors that multiply features after centring, a number or one per feature; `bounds` scales
    each range to width 2. If all `features` have bounds, the default is `bounds`."""
    estimator: str = "adaptive"
    """Id of the estimator; `streaming-pca estimators` lists them."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the estimator."""
    diagnostics_share: float = Field(default=0.02, ge=0, le=MAX_SHARE)
    """Share of epsilon that pays for noisy counts of null and clipped records in each batch, shown in
    releases, status and metrics; 0 disables them, as do `private = false` and `record_kind = "local"`."""
    seed: int | None = None
    """Seed of utility randomness (an initial basis), never of noise; if not set, the seed is random."""
    start: Literal["earliest", "latest"] = "earliest"
    """Beginning of a new stream: at the oldest record, or after the last record present at its first start,
    for example when another stream has spent their budget. It does not affect a stream that has begun."""
    lost_records: Literal["stop", "skip"] = "stop"
    """Reaction to records that retention deleted before they were read: stop the stream with an error, or
    continue without them."""
    cap: Cap | None = None
    """Required cap of the input's ledger; if not set, the cap is not checked."""

    _estimator: Estimator[Any, Any] = PrivateAttr()
    _schema: PublicSchema | None = PrivateAttr(default=None)

    @field_validator("options", mode="before")
    @classmethod
    def _read_lists(cls, options: Any) -> Any:
        return parse_options(options) if isinstance(options, dict) else options

    @model_validator(mode="before")
    @classmethod
    def _follow_settings(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if (kind := ESTIMATORS.get(str(values.get("estimator")))) is not None:
            values = {**values, "centering": kind.resolve_centering(values.get("centering", "auto"))}
        return with_features(values)

    def conflicts(self, given: Set[str]) -> Iterator[str]:
        if self.input in (self.state_topic, self.releases_topic):
            yield f"input = {self.input!r} is the stream's own output: name the topic of its records"
        names = self.feature_names
        if names is not None and len(names) != self.dim:
            yield f"feature_names has {len(names)} names for dim = {self.dim}"
        if names is not None and ("" in names or len(set(names)) < len(names)):
            yield "feature_names must be distinct and not empty"
        if self.rank > self.dim:
            yield f"rank = {self.rank} is above dim = {self.dim}"
        for name, needed, reason in _LOCAL if self.record_kind is RecordKind.LOCAL else ():
            if getattr(self, name) != needed:
                yield f'record_kind = "local" {reason}: set {name} = "{needed}"'
        if self.privacy_unit != "user" and self.contributions_per_user != 1:
            yield 'contributions_per_user needs privacy_unit = "user"'
        for check in (self._check_fields, self._check_guarantee, self._preprocessing):
            try:
                check()
            except ValueError as error:
                yield from error_lines(error, Preprocessing)

    @model_validator(mode="after")
    def _prepare(self) -> StreamSettings:
        self._estimator = self._make_estimator()
        if self.privacy_unit == "row":
            self._check_rows()
        return self

    def _check_fields(self) -> None:
        if self.features is not None and self.record_kind is not RecordKind.FACTOR:
            raise ValueError('features need record_kind = "factor"')
        self._schema = read_schema(self.format, self.schema_file, self.message, self.subject)
        if self.format in SCHEMA_FORMATS and self.features is None:
            raise ValueError(f'format = "{self.format}" needs features')
        if self.user_field is not None:
            if self.features is None or self.privacy_unit != "user":
                raise ValueError('user_field needs features, and privacy_unit = "user"')
            check_places([*(feature.place for feature in self.features), self.user_field])
            if self.format in ("octets", "npy"):
                raise ValueError(
                    f'user_field cannot be used with format = "{self.format}": rows do not name a user'
                )
        try:
            # Detect a schema that cannot be read or lacks a field.
            _ = self.missing_library
        except ValueError as error:
            raise ValueError(f"schema_file {str(self.schema_file)!r}: {error}") from None

    def _check_rows(self) -> None:
        if self.record_kind is not RecordKind.FACTOR:
            raise ValueError('privacy_unit = "row" needs record_kind = "factor"')
        if self.centering == "pairs":
            meaning, other = "", '"auto", '
            if self._find_estimator().resolve_centering("auto") == "pairs":
                meaning, other = f', which "auto" (the default) means for {self.estimator}', ""
            raise ValueError(
                f'privacy_unit = "row" cannot be used with centering = "pairs"{meaning}: '
                f'set {other}"none" or numbers'
            )
        rows = self.build_estimator().largest_batch * self.max_rows
        if rows > MAX_RECORDS:
            raise ValueError(
                f"a batch could hold {rows} rows, of {MAX_RECORDS} at most: lower max_rows, "
                "or the options that size batches"
            )

    def _check_guarantee(self) -> None:
        self._find_estimator()
        self._privacy()

    def _find_estimator(self) -> type[Estimator[Any, Any]]:
        kind = find(self.estimator)
        check_private(kind.info, self.private)
        return kind

    def _privacy(self) -> PrivacyParameters:
        if self.private:
            return PrivacyParameters(
                epsilon=self.epsilon, delta=self.delta, contributions=self.contributions_per_user
            )
        if not self.epsilon == self.delta == math.inf:
            raise ValueError("private = false guarantees nothing: set epsilon = inf and delta = inf")
        return no_guarantee()

    def _preprocessing(self) -> Preprocessing:
        return Preprocessing(
            dim=self.dim,
            kind=self.record_kind,
            centering=self.centering,
            bounds=self.bounds,
            # Before this check, `bounds` was already replaced by factors.
            scale=None if self.scale == "bounds" else self.scale,
        )

    def _make_estimator(self) -> Estimator[Any, Any]:
        kind = self._find_estimator()
        try:
            options = kind.options_type(**self.options)
        except ValidationError:
            lines = options_lines(kind.options_type, self.options)
            raise ValueError("\n".join(f"options of {self.estimator}: {line}" for line in lines)) from None
        share = self.diagnostics_share if self.private and not kind.info.local else 0.0
        return kind(self.dim, self.rank, self._privacy(), self._preprocessing(), options, share)

    def build_estimator(self) -> Estimator[Any, Any]:
        """Return the configured estimator, built once during the check of the settings."""
        return self._estimator

    @property
    def privacy_contract(self) -> dict[str, Any]:
        """Settings that must never change under this name, recorded in every reservation.

        Long arrays are replaced by their digests, because the ledger is kept forever.
        """
        names = {"epsilon", "delta", "privacy_unit", "dim", "rank", "estimator", "record_kind", "max_rows"}
        names |= {"dtype", "centering", "bounds", "scale"}
        if self.privacy_unit == "user":
            # Only for this unit, so that contracts of other units keep their bytes. A user's batches
            # compose, and the proof assumes that the diagnostic counts cost the same share in each of them.
            names |= {"contributions_per_user", "diagnostics_share"}
        contract = self.model_dump(mode="json", include=names)
        # Only if set, so that contracts from before these settings keep their bytes.
        if self.content_type != OCTETS:
            contract |= {"content_type": self.content_type}
        if self.features is not None:
            # Unset keys of features are omitted too, to allow for future keys.
            contract |= {"features": _digest([each.plain for each in self.features])}
        if self._schema is not None:
            contract |= {"schema": {"sha256": self._schema.digest}}
        if self.message is not None:
            contract |= {"message": self.message}
        if self.user_field is not None:
            contract |= {"user_field": list(self.user_field)}
        if not self.private:
            # JSON cannot represent infinity.
            contract |= {"epsilon": "inf", "delta": "inf", "private": False}
        if self.record_kind is RecordKind.LOCAL:
            # Producers ensure the guarantee, report by report; this stream's batches cost nothing.
            contract |= {"local": True}
        return {name: _with_digests(value) for name, value in contract.items()}

    @property
    def content_type(self) -> MediaType:
        """Media type of messages without a header ``content-type``."""
        return FORMATS[self.format]

    @property
    def registry_subject(self) -> Subject | None:
        """Subject of the records' schemas in the registry; None if they are not there."""
        if self.format not in SCHEMA_FORMATS or self.schema_file is not None:
            return None
        return Subject(subject_name(self.subject, self.input), SCHEMA_FORMATS[self.format], self.message)

    @property
    def fields(self) -> FieldReader | None:
        """Reader of records with named fields; None for records that are rows of numbers."""
        if self.registry_subject is not None:
            raise ConfigurationError(
                f'stream.format = "{self.format}": the schemas are in the registry, which is not read here: '
                "set stream.schema_file to a file of the schema"
            )
        return None if self.features is None else FieldReader(self.features, self.user_field, self._schema)

    @property
    def missing_library(self) -> str:
        """Missing library of the format, with the remedy; only a worker needs it. ValueError as `fields`."""
        try:
            _ = None if self.registry_subject is not None else self.fields
        except LibraryMissing as error:
            return str(error)
        return ""

    @property
    def mechanism_options(self) -> dict[str, Any]:
        """Options that affect the result of a batch, as recorded in a reservation."""
        chosen = self.build_estimator().options
        options: dict[str, Any] = chosen.model_dump(mode="json", exclude=set(chosen.sizing))
        return options

    @property
    def local_guarantee(self) -> bytes | None:
        """Header value of a report's local guarantee; None for other records."""
        if self.record_kind is not RecordKind.LOCAL:
            return None
        return contract_header(self.epsilon, self.delta)

    @property
    def ledger_topic(self) -> str:
        """Ledger topic, shared by all streams that read ``input``."""
        return f"{self.input}.ledger"

    @property
    def state_topic(self) -> str:
        """Internal compacted topic; the holder of its only partition leads the stream."""
        return f"{self.name}.state"

    @property
    def releases_topic(self) -> str:
        return f"{self.name}.releases"


def parse_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Parse lists and tables among options, which environment variables contain as text."""
    # Only the estimator knows their types.
    return {name: _parse_json(value) for name, value in options.items()}


def _parse_json(value: Any) -> Any:
    """Parse a list or table in JSON; return other values unchanged."""
    if not (isinstance(value, str) and value.startswith(("[", "{"))):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _with_digests(value: Any) -> Any:
    """Replace lists longer than ``_MAX_LEDGER_ITEMS`` by their length and digest."""
    if not isinstance(value, list):
        return value
    if len(value) <= _MAX_LEDGER_ITEMS:
        return [_with_digests(item) for item in value]
    return _digest(value)


def _digest(value: list[Any]) -> dict[str, Any]:
    text = json.dumps(value, separators=(",", ":"))
    return {"length": len(value), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def subject_name(subject: str | None, topic: str) -> str:
    """Return the subject of a topic's values; by default serializers name it after the topic."""
    return f"{topic}-value" if subject is None else subject


class Settings(Section):
    """Settings of a worker for one stream."""

    kafka: KafkaSettings = KafkaSettings()
    stream: StreamSettings
    worker: WorkerSettings = WorkerSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()
    spark: SparkSettings = SparkSettings()
    registry: RegistrySettings | None = Field(default=None, validate_default=True)

    @field_validator("registry")
    @classmethod
    def _check_registry(cls, registry: RegistrySettings | None, info: ValidationInfo) -> Any:
        stream = info.data.get("stream")
        if registry is None and stream is not None and stream.registry_subject is not None:
            raise ValueError(f'format = "{stream.format}" needs schema_file, or the section [registry]')
        return registry
