"""Base classes of estimators: state, plan, release, options."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.diagnostics import Diagnostics
from streaming_pca.linalg.subspace import stable_signs
from streaming_pca.privacy.noise import NOISE_LAW
from streaming_pca.privacy.parameters import Charge, PrivacyParameters
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.validation_errors import Table


class Outcome(StrEnum):
    """Outcome of the last batch: an output of its mechanisms, which are charged in every case."""

    LEARNT = "learnt"
    NO_SCALE = "no-scale"
    """No bin of PrivRange's histogram was full enough: nothing is learnt from the batch."""
    NO_GAP = "no-gap"
    """The private eigengap is too small to calibrate noise to, or the k-th private eigenvalue is lost
    in the noise: nothing is learnt."""
    TOO_FEW = "too-few-records"
    """The batch closed with fewer records than the algorithm's guarantee needs: nothing is learnt from it."""


Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class State:
    """Base of states: frozen dataclasses of arrays, numbers, strings, None, and of such dataclasses."""

    batch: int  # number of batches so far
    records: int  # records delivered in these batches, null ones included
    counts: NDArray[np.int64] | None = field(default=None, kw_only=True)
    """(2,) noisy numbers of null and of clipped records in the last batch; None without diagnostics."""
    mean: NDArray[np.float64] | None = field(default=None, kw_only=True)
    """(d,) running mean in units of the data, where ``centering = "auto"`` has found one."""
    mean_weight: float = field(default=0.0, kw_only=True)  # number of records averaged into the mean
    anchor: NDArray[np.float64] | None = field(default=None, kw_only=True)
    """(d,) fixed centre of all sums, where the estimator finds the centre itself. It stays while ``mean``
    moves, so the correction of the sums for a moving mean is exact."""
    mean_noise: float | None = field(default=None, kw_only=True)
    """Variance of the noise in each coordinate of the mean, in scaled units, where it is known."""
    rows: float = field(default=1.0, kw_only=True)
    """Mean number of rows of a record, where that is public; the mean is subtracted from each row."""
    components: NDArray[np.float64] | None = field(default=None, kw_only=True)
    """(k, d) rows released before the last batch: later signs follow them."""
    outcome: str | None = field(default=None, kw_only=True)
    """:class:`~streaming_pca.estimators.base.Outcome` of the last batch; None before any batch, and where
    the algorithm learns from every batch."""
    noise: str | None = field(default=None, kw_only=True)
    """Law of the last batch's Gaussian noise (:data:`~streaming_pca.privacy.noise.NOISE_LAW`); None
    before any batch, and for the discrete Gaussians of earlier versions."""


@dataclass(frozen=True)
class Plan:
    """Size, charge and mechanism parameters of the next batch: by public facts and earlier outputs only."""

    count: int  # records to take; a multiple of granularity
    least: int
    """Least number of records of a batch that closes at ``max_wait``. A multiple of ``granularity``, at most
    ``count``."""
    granularity: int  # records of one partition that must stay together
    charge: Charge
    """Cost of ``update`` for each record of the batch. Where a unit of privacy may enter several batches: the
    cost of all these batches together."""
    parameters: dict[str, Any]  # every parameter of the batch's mechanisms, as JSON


@dataclass(frozen=True)
class Subspace:
    """Release: post-processed outputs of mechanisms."""

    components: Matrix
    """(k, d) orthonormal rows, by decreasing explained variance. For a tensor: unit rows, by decreasing
    weight, each with its weight's sign."""
    explained_variance: Matrix  # (k,)
    mean: Matrix | None  # (d,) in units of the scaled features
    explained_variance_error: Matrix | None = None
    """(k,) standard errors from the noise, the clips and the mean; from the noise alone where the estimator
    counts nothing (a public radius, local reports)."""
    total_variance: float | None = None  # sum of all d variances, itself an output of a mechanism
    total_variance_error: float | None = None  # its standard error, from the same sources
    angle_bound: float | None = None
    """Radians, in [0, pi/2]. With probability 0.95 over the noise, it bounds the largest principal angle to
    the subspace of the same sums without noise. Unless a doubt is listed, it also covers clips and unsettled
    steps, as far as these are measured (with a public radius they are not). pi/2 carries no information."""
    outcome: Outcome | None = None
    """Outcome of the last batch; None before any batch, and where the algorithm learns from every batch."""
    weights: Matrix | None = None
    """(k,) for a tensor: lambda_i of lambda_1 v_1 (x) v_1 (x) v_1 + ..., decreasing."""
    support: tuple[int, ...] | None = None  # features that a sparse estimator selects, ascending
    mean_error: float | None = None
    """Expected norm of the noise in a record's mean rows, in scaled units. It is not published."""
    known_warnings: tuple[str, ...] = ()
    """Ids of doubts that the estimator itself raises, such as an angle that may exceed its bound."""
    dominant_feature: int | None = None
    """Feature with more than half of the squared norm shown by the largest records."""


@dataclass(frozen=True)
class EstimatorInfo:
    """Static description of an estimator."""

    id: str
    source: str  # paper, by its key in docs/references.md, and algorithm
    private: bool
    needs: str  # requirements on the stream or on the data
    summary: str
    local: bool = False
    """True where producers privatise: records are reports (:attr:`RecordKind.LOCAL`), and batches are charged
    nothing."""
    releases: Literal["subspace", "tensor"] = "subspace"  # kind of a release

    @property
    def adjacency(self) -> str:
        """Neighbouring relation of the privacy guarantee; "none" without a guarantee."""
        return "replace-one" if self.private else "none"


@dataclass(frozen=True)
class SuiteOptions:
    """Settings of an estimator in the tests that all estimators pass (``tests/estimators/suite.py``)."""

    options: dict[str, Any]  # options for batches of about 64 records of 5 features, with norms of about 3
    epsilon: float = 1.0  # epsilon that makes batches of a hundred records large enough
    rank: int | None = None  # largest rank, if it is limited
    variants: tuple[dict[str, Any], ...] = ()  # further options that lead to other sums or other charges
    clip: dict[str, Any] | None = None
    """Options that clip vectors with |x|^2 above 4 and no others, where k = d; None if small batches are not
    learnt from, or nothing is clipped."""
    useful: dict[str, Any] = field(default_factory=dict)
    """Options that find two strong directions of 16,000 records of 8 features, at epsilon 4."""
    mechanisms: int = 1  # largest number of mechanisms that one record reaches, if their costs compose
    nulls_count: bool = False  # True if a null record counts as zeros in a histogram, or has a message
    has_rho: bool = True
    """False if an answer may reveal everything with a probability below delta: no rho is claimed."""
    always_learns: bool = True  # False if a batch may teach nothing: then every batch has an outcome


class Options(Table):
    """Base of an estimator's own settings.

    ``sizing`` names the options that decide only the size of a batch. A
    reserved batch can be computed under other values of these options.
    """

    sizing: ClassVar[frozenset[str]] = frozenset()

    @property
    def largest_batch(self) -> int:
        """Largest number of records of any plan: ``batch_size``, unless a subclass has another rule."""
        return int(vars(self)["batch_size"])


S = TypeVar("S", bound=State)
O = TypeVar("O", bound=Options)


class Estimator(ABC, Generic[S, O]):
    """Algorithm, configured for one stream; its state is passed in and out.

    ``privacy`` is the guarantee of the stream as a whole, and ``diagnostics_share`` the share of epsilon for
    noisy counts of null and clipped records, or 0. 1 <= k <= dim.
    """

    info: ClassVar[EstimatorInfo]
    options_type: ClassVar[type[Options]]
    state_type: ClassVar[type[State]]
    suite_options: ClassVar[SuiteOptions]
    worst_cases: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Worst neighbours for the audit: trials by name (:mod:`~streaming_pca.estimators.common.worst_sums`). A
    private estimator that draws noise must have some."""
    centerings: ClassVar[tuple[str, ...]] = ("pairs", "none")
    """Supported values of ``centering``, in addition to a public vector, which every estimator supports;
    with "auto" where the estimator finds the mean, with a share of its budget."""

    kinds: ClassVar[frozenset[RecordKind]] = frozenset({RecordKind.FACTOR, RecordKind.MATRIX})
    """Kinds of records that the estimator can read."""

    splits_budget: ClassVar[bool] = False
    """True where each of a user's batches costs a part of (epsilon, delta), by basic composition. Any other
    mechanism in such a batch must not cost more than that part: with a joint bound, a mix of the two kinds
    of batches would exceed (epsilon, delta)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Take the types of states and options from a base such as ``Estimator[MyState, MyOptions]``."""
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):
            types = get_args(base)
            if len(types) == 2 and not any(isinstance(each, TypeVar) for each in types):
                cls.state_type, cls.options_type = types

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
        if preprocessing.kind not in self.kinds:
            kinds = " or ".join(f'"{kind}"' for kind in sorted(self.kinds))
            raise ValueError(
                f'{self.info.id} cannot read records of kind "{preprocessing.kind}": it reads {kinds}'
            )
        centering = preprocessing.centering
        if isinstance(centering, str) and centering not in self.centerings:
            known = ", ".join(f'"{name}"' for name in self.centerings)
            raise ValueError(f'{self.info.id} cannot use centering = "{centering}": use {known} or a vector')
        if diagnostics_share and not self.info.private:
            raise ValueError(f"{self.info.id} is not private: diagnostics need a private estimator")
        if diagnostics_share and self.info.local:
            raise ValueError(f"{self.info.id} reads reports, which are public: there is nothing to diagnose")
        self.dim, self.k = dim, k
        self.diagnostics = Diagnostics(privacy, diagnostics_share) if diagnostics_share else None
        self.privacy = privacy if self.diagnostics is None else self.diagnostics.rest
        """Bound on the cost of the estimator's own mechanisms: the guarantee less the share."""
        self.preprocessing, self.options = preprocessing, options

    @classmethod
    def resolve_centering(cls, centering: Any) -> Any:
        """Return "pairs" for "auto" where the estimator finds no mean but reads pairs."""
        finds_none = isinstance(centering, str) and centering == "auto" and "auto" not in cls.centerings
        return "pairs" if finds_none and "pairs" in cls.centerings else centering

    @property
    def norm_range(self) -> tuple[float, float]:
        """Public search range of the clip radius; (0, inf) where the estimator seeks none."""
        return 0.0, math.inf

    @property
    def _noise_law(self) -> str | None:
        """Law of its Gaussian noise; None if it draws none: not private, or producers add the noise."""
        return NOISE_LAW if self.info.private and not self.info.local else None

    @abstractmethod
    def init(self, rng: np.random.Generator) -> S:
        """Return the state before any record; ``rng`` is utility randomness."""

    def plan(self, state: S) -> Plan:
        """Return size, charge and parameters of the next batch."""
        plan = self.plan_mechanisms(state)
        if self._noise_law is not None:
            plan = replace(plan, parameters=plan.parameters | {"noise": self._noise_law})
        if self.diagnostics is None:
            return plan
        return replace(
            plan,
            charge=plan.charge + self.diagnostics.charge,
            parameters=plan.parameters | {"diagnostics": self.diagnostics.parameters},
        )

    def planned_records(self, batches: int, records: int) -> int:
        """Return the planned size of the batch that follows ``batches`` batches of ``records`` records.

        Readers without a state can compute it: no size depends on more than these public counts. An
        estimator whose sizes also depend on other fields of its state must override it.
        """
        return self.plan(replace(self.init(utility_generator(0)), batch=batches, records=records)).count

    def update(self, state: S, batch: Batch) -> S:
        """Learn from a batch: for any state, a mechanism whose cost is the plan's charge."""
        self.check(batch)
        new, clipped = self.learn_batch(state, batch)
        components = self.release(state).components if state.batch else None
        batches, records = state.batch + 1, state.records + len(batch)
        new = replace(new, batch=batches, records=records, components=components, noise=self._noise_law)
        if self.diagnostics is None:
            return new
        readable = batch.single_rows() if self.preprocessing.centering == "pairs" else batch
        return replace(new, counts=self.diagnostics.counts(readable.null_count(), clipped))

    @abstractmethod
    def plan_mechanisms(self, state: S) -> Plan:
        """Plan the estimator's own mechanisms, without diagnostics."""

    @abstractmethod
    def learn_batch(self, state: S, batch: Batch) -> tuple[S, int]:
        """Return the next state and the number of records (pairs) that the clip changed.

        The caller counts the batch and its records. The number is exact and as secret as a record: only
        :meth:`update`, and an estimator that holds this one, may read it.
        """

    def release(self, state: S) -> Subspace:
        """Return the current subspace: post-processing of the state."""
        subspace = self.learnt_subspace(state)
        rows = np.ascontiguousarray(subspace.components)
        if self.info.releases == "subspace":
            # The sign of a tensor's component carries information.
            rows = stable_signs(rows, state.components)
        subspace = replace(
            subspace, components=rows, outcome=None if state.outcome is None else Outcome(state.outcome)
        )
        if state.mean_noise is not None:
            subspace = replace(subspace, mean_error=math.sqrt(state.mean_noise * state.rows * self.dim))
        if self.preprocessing.centering != "auto" or state.mean is None:
            return subspace
        scale = self.preprocessing.scale
        return replace(subspace, mean=state.mean * (1.0 if scale is None else np.asarray(scale)))

    @abstractmethod
    def learnt_subspace(self, state: S) -> Subspace:
        """Return the learnt subspace, with any signs and without the mean."""

    def check(self, batch: Batch) -> None:
        """Check that the batch has this estimator's dimension and record kind, or raise ValueError."""
        if batch.dim != self.dim:
            raise ValueError(f"records have {batch.dim} features, expected {self.dim}")
        if batch.kind is not self.preprocessing.kind:
            raise ValueError(f"records are of kind {batch.kind}, expected {self.preprocessing.kind}")

    @property
    def largest_batch(self) -> int:
        return int(self.options.largest_batch)

    @property
    def kind(self) -> RecordKind:
        return self.preprocessing.kind


def check_private(info: EstimatorInfo, private: bool) -> None:
    """Check that the setting ``private`` agrees with the estimator, or raise ValueError."""
    if private and not info.private:
        raise ValueError(
            f"estimator {info.id!r} is not private: it runs only with private = false, "
            "and then every record is charged infinity"
        )
    if info.private and not private:
        raise ValueError(f"private = false is not for estimator {info.id!r}, which is private: remove it")


def no_guarantee() -> PrivacyParameters:
    """Return placeholder parameters for an estimator that is not private and calibrates no noise."""
    return PrivacyParameters(epsilon=1.0, delta=0.5)
