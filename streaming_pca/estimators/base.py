"""What every estimator is, and where to find one by its id."""

from __future__ import annotations

import dataclasses
import io
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from streaming_pca.estimators.diagnostics import Diagnostics
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy.parameters import Charge, PrivacyParameters
from streaming_pca.records import Batch, RecordKind

__all__ = ["Card", "Estimator", "Options", "Plan", "State", "Subspace", "decode_state", "encode_state"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class State:
    """Base of estimator states: frozen dataclasses of arrays, numbers and None."""

    batch: int
    """Batches learnt from."""
    records: int
    """Records delivered in them, null ones included."""
    counts: NDArray[np.int64] | None = field(default=None, kw_only=True)
    """(2,) noisy numbers of null and of clipped records in the last batch, if a share pays for them."""


@dataclass(frozen=True)
class Plan:
    """What the next batch will be and cost; from public quantities and earlier outputs only.

    Attributes
    ----------
    count : int
        Records to take; a multiple of ``granularity``.
    least : int
        The fewest records that are of use: what a batch must have to close at
        ``max_wait``. A multiple of ``granularity``, at most ``count``.
    granularity : int
        Records of one partition that must stay together.
    charge : Charge
        What ``update`` costs each record of the batch. Where a unit of privacy
        may enter several batches: what they cost it together.
    parameters : dict
        Every parameter of its mechanisms, as JSON.
    """

    count: int
    least: int
    granularity: int
    charge: Charge
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Subspace:
    """A release: outputs of mechanisms, post-processed.

    Attributes
    ----------
    components : (k, d) float64
        Orthonormal rows, by decreasing explained variance.
    explained_variance : (k,) float64
    mean : (d,) float64 or None
    explained_variance_error : (k,) float64 or None
        Standard errors, from the noise alone.
    total_variance : float or None
        Sum of all d variances, itself the output of a mechanism.
    total_variance_error : float or None
        Its standard error, from the noise alone.
    angle_bound : float or None
        Radians, in [0, pi/2]: with probability 0.95 over the noise, the largest
        principal angle to the subspace that the same clipped sums would have
        given without noise is at most this. pi/2 says nothing.
    """

    components: Matrix
    explained_variance: Matrix
    mean: Matrix | None
    explained_variance_error: Matrix | None = None
    total_variance: float | None = None
    total_variance_error: float | None = None
    angle_bound: float | None = None


@dataclass(frozen=True)
class Card:
    """How an estimator introduces itself."""

    id: str
    name: str
    source: str
    adjacency: str
    private: bool
    needs: str
    summary: str


class Options(BaseModel):
    """Base of an estimator's own settings.

    ``sizing`` names those that decide how large a batch is and nothing else: a
    batch that is reserved can be answered under others.
    """

    # Attribute docstrings are the fields' descriptions in the settings reference.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sizing: ClassVar[frozenset[str]] = frozenset()

    @property
    def largest_batch(self) -> int:
        """The most records that any plan asks for."""
        raise NotImplementedError


S = TypeVar("S", bound=State)
O = TypeVar("O", bound=Options)


class Estimator(ABC, Generic[S, O]):
    """An algorithm, configured for one stream. It holds settings; the state is passed in and out.

    Parameters
    ----------
    dim, k : int
        Features, and the rank of the subspace; 1 <= k <= dim.
    privacy : PrivacyParameters
        The whole promise.
    preprocessing : Preprocessing
    options : Options
    diagnostics_share : float
        Share of the promise's epsilon for noisy counts of null and clipped
        records; 0 for none.

    Attributes
    ----------
    privacy : PrivacyParameters
        What the estimator's own mechanisms may cost: the promise without the share.
    diagnostics : Diagnostics or None
    """

    card: ClassVar[Card]
    options_type: ClassVar[type[Options]]
    state_type: ClassVar[type[State]]

    def __init__(
        self,
        dim: int,
        k: int,
        privacy: PrivacyParameters,
        preprocessing: Preprocessing,
        options: O,
        diagnostics_share: float = 0.0,
    ) -> None:
        if not 1 <= k <= dim:
            raise ValueError(f"rank must lie between 1 and dim = {dim}, not {k}")
        self.dim, self.k = dim, k
        self.diagnostics = Diagnostics(privacy, diagnostics_share) if diagnostics_share else None
        self.privacy = privacy if self.diagnostics is None else self.diagnostics.rest
        self.preprocessing, self.options = preprocessing, options

    @abstractmethod
    def init(self, rng: np.random.Generator) -> S:
        """The state before any record; ``rng`` is utility randomness."""

    def plan(self, state: S) -> Plan:
        """Size, charge and parameters of the next batch."""
        plan = self._plan(state)
        if self.diagnostics is None:
            return plan
        return replace(
            plan,
            charge=plan.charge + self.diagnostics.charge,
            parameters=plan.parameters | {"diagnostics": self.diagnostics.parameters},
        )

    def update(self, state: S, batch: Batch) -> S:
        """Learn from a batch: for any state, a mechanism that costs the plan's charge."""
        self.check(batch)
        new, clipped = self._update(state, batch)
        if self.diagnostics is None:
            return new
        null = int(np.count_nonzero(np.diff(batch.starts) == 0))
        return replace(new, counts=self.diagnostics.counts(null, clipped))

    @abstractmethod
    def _plan(self, state: S) -> Plan:
        """The plan of what the estimator learns, without diagnostics."""

    @abstractmethod
    def _update(self, state: S, batch: Batch) -> tuple[S, int]:
        """The next state, and how many records (pairs) the clip changed.

        That number is exact, and as secret as a record: it goes to no other place.
        """

    @abstractmethod
    def release(self, state: S) -> Subspace:
        """The current subspace: post-processing of the state."""

    def check(self, batch: Batch) -> None:
        """Raise ValueError unless the batch has this estimator's dimension and record kind."""
        if batch.dim != self.dim:
            raise ValueError(f"records have {batch.dim} features, expected {self.dim}")
        if batch.kind is not self.preprocessing.kind:
            raise ValueError(f"records are of kind {batch.kind}, expected {self.preprocessing.kind}")

    @property
    def kind(self) -> RecordKind:
        """The kind of records it reads."""
        return self.preprocessing.kind


def encode_state(state: State) -> bytes:
    """Exact bytes of a state: numbers as JSON, arrays as .npy, in one .npz; no pickle."""
    arrays: dict[str, NDArray[Any]] = {}
    plain: dict[str, Any] = {}
    for f in dataclasses.fields(state):
        value = getattr(state, f.name)
        if isinstance(value, np.ndarray):
            arrays[f.name] = value
        else:
            plain[f.name] = value.hex() if isinstance(value, float) else value
    header = json.dumps(plain, sort_keys=True).encode()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, __plain__=np.frombuffer(header, dtype=np.uint8), **arrays)
    return buffer.getvalue()


def decode_state(state_type: type[S], data: bytes) -> S:
    """Read what :func:`encode_state` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        values: dict[str, Any] = {name: archive[name] for name in archive.files if name != "__plain__"}
        plain = json.loads(archive["__plain__"].tobytes())
    floats = {f.name for f in dataclasses.fields(state_type) if "float" in str(f.type)}
    for name, value in plain.items():
        is_hex = name in floats and isinstance(value, str)
        values[name] = float.fromhex(value) if is_hex else value
    return state_type(**values)
