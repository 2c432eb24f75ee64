"""One frozen tree of settings, from a TOML file and the environment."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.registry import find
from streaming_pca.preprocessing import Numbers, Preprocessing
from streaming_pca.privacy.entries import Cap
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.records import RecordKind

__all__ = [
    "ConfigurationError",
    "KafkaSettings",
    "Settings",
    "StreamSettings",
    "WorkerSettings",
    "load_settings",
]

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class ConfigurationError(Exception):
    """A setting is wrong; the message is one line that names it."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KafkaSettings(_Section):
    """How to reach the broker, and how long to wait for it."""

    bootstrap_servers: str = "localhost:9092"
    bootstrap_timeout_ms: int = Field(default=5000, ge=100)
    request_timeout_ms: int = Field(default=10_000, ge=1000)
    session_timeout_ms: int = Field(default=6000, ge=1000)
    transaction_timeout_ms: int = Field(default=15_000, ge=1000)
    unchecked_topics: bool = False
    """Go on where the broker does not tell how topics are kept: the embedded one does not."""


class WorkerSettings(_Section):
    """How the worker runs; none of it is part of the promise."""

    tick_seconds: float = Field(default=0.2, gt=0, le=60)
    """How often the ends of the partitions are read; batches close on these ticks."""
    step_deadline_seconds: float = Field(default=60.0, gt=0)
    """The longest that any one exchange with the broker may take."""
    give_up_seconds: float = Field(default=120.0, gt=0)
    """How long a worker tries to recover from broker trouble before it exits."""
    stop_when_done: bool = False
    """Exit once ``options.n_records`` records are learnt (for a stream of known length)."""


class StreamSettings(_Section):
    """A stream: what is read, what is promised, how it is learnt."""

    name: str
    input: str
    dim: int = Field(ge=1, le=2**13)
    rank: int = Field(ge=1)
    epsilon: float
    delta: float
    privacy_unit: Literal["message"] = "message"
    record_kind: RecordKind = RecordKind.FACTOR
    dtype: Literal["float32", "float64"] = "float32"
    """Number type of ``application/octet-stream`` payloads."""
    max_rows: int = Field(default=64, ge=1, le=2**16)
    """Most rows of one payload; a payload of more is null."""
    centering: Literal["augment", "pairs", "none"] | tuple[float, ...] = "augment"
    bounds: tuple[Numbers, Numbers] | None = None
    scale: Numbers | None = None
    estimator: str = "analyze-gauss"
    options: dict[str, Any] = Field(default_factory=dict)
    """The estimator's own settings."""
    seed: int | None = None
    """Of utility randomness (an initial basis), never of noise."""
    lost_records: Literal["stop", "skip"] = "stop"
    """What to do where retention deleted records that were not read yet."""
    cap: Cap | None = None
    """The cap that the input's ledger must have; unchecked where not given."""

    _made: Estimator[Any, Any] = PrivateAttr()

    @model_validator(mode="after")
    def _check(self) -> StreamSettings:
        for field in ("name", "input"):
            if not _TOPIC_NAME.fullmatch(getattr(self, field)):
                raise ValueError(f"{field} must be 1 to 200 letters, digits, '.', '_' or '-'")
        self._made = self._make()
        return self

    def _make(self) -> Estimator[Any, Any]:
        kind = find(self.estimator)
        try:
            options = kind.options_type(**self.options)
        except ValidationError as error:
            raise ValueError(f"options of {self.estimator}: {first_problem(error)}") from None
        if self.rank > self.dim:
            raise ValueError(f"rank = {self.rank} is above dim = {self.dim}")
        return kind(
            self.dim,
            self.rank,
            PrivacyParameters(epsilon=self.epsilon, delta=self.delta),
            Preprocessing(
                dim=self.dim,
                kind=self.record_kind,
                centering=self.centering,
                bounds=self.bounds,
                scale=self.scale,
            ),
            options,
        )

    @property
    def made(self) -> Estimator[Any, Any]:
        """The configured estimator."""
        return self._made

    @property
    def promise(self) -> dict[str, Any]:
        """What may never change under this name; recorded in every reservation."""
        names = ("epsilon", "delta", "privacy_unit", "dim", "rank", "estimator", "record_kind", "max_rows")
        more = ("dtype", "centering", "bounds", "scale")
        whole = self.model_dump(mode="json")
        return {name: whole[name] for name in names + more}

    @property
    def ledger_topic(self) -> str:
        """Shared by every stream that reads ``input``."""
        return f"{self.input}.ledger"

    @property
    def state_topic(self) -> str:
        """Internal, compacted; its one partition is the leadership."""
        return f"{self.name}.state"

    @property
    def releases_topic(self) -> str:
        """Where subspaces are published."""
        return f"{self.name}.releases"


class Settings(BaseSettings):
    """Everything a worker needs."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="STREAMING_PCA_", env_nested_delimiter="__"
    )

    kafka: KafkaSettings = KafkaSettings()
    stream: StreamSettings
    worker: WorkerSettings = WorkerSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file."""
        return env_settings, init_settings


def first_problem(error: ValidationError) -> str:
    """One line for the first thing that is wrong: where, and what."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"] if not str(part).startswith("function"))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = "no such setting"
    elif problem["type"] == "missing":
        message = "must be set"
    return f"{where}: {message}" if where else message


def load_settings(path: Path) -> Settings:
    """Read a TOML file; environment variables (``STREAMING_PCA_STREAM__EPSILON``) override it.

    Raises
    ------
    ConfigurationError
        One line that names the file and the setting.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {first_problem(error)}") from None
    except ValueError as error:  # an environment variable that is no JSON
        raise ConfigurationError(f"environment: {str(error).splitlines()[0]}") from None
