"""Releases: published subspaces as messages of the releases topic."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from streaming_pca.data.features.row_map import own_names, refuse_other_columns
from streaming_pca.data.projection import Projection, checked_rows, is_orthonormal, total_centre

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,63}$")]
StandardError = Annotated[float, Field(ge=0, allow_inf_nan=False)]

ACCURACY = ("explained_variance_error", "total_variance", "total_variance_error", "angle_bound")
"""Optional fields on the accuracy of a release, omitted if unknown."""

COUNTS = ("batch_records", "null_records", "null_records_error", "clipped_records", "clipped_records_error")
"""Optional fields on the records of a release's batch, all omitted without ``stream.diagnostics_share``."""

LONGEST_ARRAY = 1024
"""Longest array of a setting that a release holds itself: four of them take at most 100 KB."""

_MAP_VERSION = 6  # first version that states how records were centred and scaled
SINCE: dict[str, tuple[int, Any]] = {
    **dict.fromkeys(ACCURACY, (2, None)),
    "outcome": (3, None),
    "private": (3, True),
    "kind": (4, "subspace"),
    "local": (4, False),
    "support": (4, None),
    "doubts": (5, ()),
    **dict.fromkeys(("centering", "scale", "bounds", *COUNTS), (6, None)),
    "dominant_feature": (7, None),
}
"""First version that has a field or other values of it, and its value in earlier ones."""

_CENTERINGS = ("auto", "pairs", "none")


class ArrayDigest(BaseModel):
    """Stand-in for an array of more than 1,024 numbers in a release."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """SHA-256 of the numbers in their order, each as 8 octets: a little-endian IEEE 754 double."""
    size: int = Field(ge=1)
    """Number of numbers."""

    @classmethod
    def of(cls, numbers: ArrayLike) -> Self:
        array = np.ascontiguousarray(numbers, dtype="<f8")
        return cls(digest=f"sha256:{hashlib.sha256(array.tobytes()).hexdigest()}", size=array.size)


Numbers = Finite | list[Finite] | ArrayDigest


class Release(BaseModel):
    """Published subspace or tensor, a JSON message of the releases topic."""

    # Later versions only add fields. A field that changed the meaning of others would need another
    # schema_name, because readers ignore what they do not know.
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    schema_name: Literal["streaming-pca.release"] = "streaming-pca.release"
    """Name of this format."""
    version: Annotated[int, Field(ge=1)] = 1
    """Lowest version that has all fields of this release: 2 for accuracy, 3 for an outcome or no privacy,
    4 for a tensor, a support or reports, 5 for doubts, 6 for centering, scale, bounds and counts,
    7 for a dominant feature. Readers take higher versions, and ignore fields that they do not know."""
    kind: Literal["subspace", "tensor"] = "subspace"
    """Kind of the components: orthonormal rows of a subspace, or unit rows of a tensor with weights."""
    stream: str
    """Name of the stream."""
    batch: Annotated[int, Field(ge=0)]
    """Number of the release's batch in the ledger."""
    records: Annotated[int, Field(ge=0)]
    """Number of records so far, null ones included."""
    dim: Annotated[int, Field(ge=1)]
    """Number d of features."""
    rank: Annotated[int, Field(ge=1)]
    """Number k of components."""
    estimator: str
    """Id of the estimator."""
    components: list[Annotated[list[Finite], Field(min_length=1)]]
    """k orthonormal rows of d numbers by decreasing explained variance; for a tensor, unit rows by
    decreasing weight."""
    weights: list[Finite] | None = None
    """k weights of a tensor's components."""
    support: list[Annotated[int, Field(ge=0)]] | None = None
    """Indices of the features that a sparse estimator selected, ascending."""
    explained_variance: list[Finite]
    """k variances, in squared units of the scaled features; noise can make them negative."""
    explained_variance_error: list[StandardError] | None = None
    """k standard errors, from the noise, the clips and the mean, where these are known."""
    total_variance: Finite | None = None
    """Sum of all d variances."""
    total_variance_error: StandardError | None = None
    """Standard error of the sum, from the same sources."""
    angle_bound: Annotated[StandardError, Field(le=math.pi / 2)] | None = None
    """Bound in radians, with probability 0.95, on the largest angle to the same records' subspace without
    noise and clips; of the noise alone where a doubt indicates it, and with a public clip radius."""
    mean: list[Finite] | None
    """Estimated mean of the records, clamped, about the public centre and scaled; null if none was found or
    sought."""
    centering: Word | list[Finite] | ArrayDigest | None = None
    """Centring of the records: "auto" subtracted ``mean``, "pairs" and "none" nothing, d numbers are a public
    centre. Since version 6; later versions may add words."""
    scale: Positive | list[Positive] | ArrayDigest | None = None
    """Factor(s) of the features after centring; null without."""
    bounds: tuple[Numbers, Numbers] | None = None
    """Lower and upper bounds that records were clamped to first; null without."""
    private: bool = True
    """Omitted if true. If false, nothing is guaranteed, and epsilon and delta are null."""
    local: bool = False
    """Omitted if false. If true, epsilon and delta are the guarantee of each report since it was made."""
    epsilon: Positive | None
    """Guarantee of all releases of the stream together, for each unit of privacy."""
    delta: Annotated[float, Field(ge=0, lt=1)] | None
    """Guarantee, with epsilon."""
    adjacency: str
    """Relation of neighbouring inputs; "none" if nothing is guaranteed."""
    privacy_unit: str
    """Unit of privacy: message, row or user."""
    contributions_per_user: Annotated[int, Field(ge=1)] | None = None
    """Most batches that count one user; only if the privacy unit is the user."""
    feature_names: list[str] | None = None
    """Names of the d features, if the stream has them."""
    created: str
    """Time of the release, ISO 8601 in UTC."""
    outcome: Word | None = None
    """Outcome of the batch if its estimator can learn nothing from one: "learnt", or the reason.
    Later versions may add words."""
    doubts: tuple[Word, ...] = ()
    """Reasons not to rely on the release (:class:`~streaming_pca.estimators.warnings.ReleaseWarning`),
    omitted without any. Later versions may add words."""
    dominant_feature: Annotated[int, Field(ge=0)] | None = None
    """Index of the feature that the doubt "dominated" refers to. Since version 7."""
    batch_records: Annotated[int, Field(ge=0)] | None = None
    """Number of records in the release's batch, null ones included."""
    null_records: Finite | None = None
    """Number of null records among them, with noise: it can be negative, or above ``batch_records``."""
    null_records_error: StandardError | None = None
    """Its standard error, from the noise alone."""
    clipped_records: Finite | None = None
    """Number of records that the batch's clip changed, or of pairs with centering "pairs", with noise."""
    clipped_records_error: StandardError | None = None
    """Its standard error, from the noise alone."""

    @model_validator(mode="after")
    def _check_accuracy(self) -> Release:
        for name, (since, former) in SINCE.items():
            if self.version < since and getattr(self, name) != former:
                raise ValueError(f"{name} needs version {since} or later, but this is version {self.version}")
        if self.version >= _MAP_VERSION and self.centering is None:
            raise ValueError(f"version {self.version} needs a centering")
        if len(self.components) != self.rank or {len(row) for row in self.components} != {self.dim}:
            raise ValueError(f"components does not have {self.rank} rows of {self.dim} numbers")
        if self.feature_names is not None and len(self.feature_names) != self.dim:
            raise ValueError(f"feature_names does not have {self.dim} names")
        if (self.dominant_feature or 0) >= self.dim:
            raise ValueError(f"dominant_feature {self.dominant_feature} is not one of {self.dim} features")
        if len({getattr(self, name) is None for name in COUNTS}) > 1:
            raise ValueError(f"it has some of {', '.join(COUNTS)}, but not all")
        if (self.weights is not None) != (self.kind == "tensor"):
            raise ValueError("a tensor must have weights, and a subspace must not")
        for name in ("weights", "explained_variance", "explained_variance_error"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) != self.rank:
                raise ValueError(f"{name} does not have {self.rank} numbers")
        if self.support is not None and max(self.support, default=0) >= self.dim:
            raise ValueError(f"support names a feature above {self.dim - 1}")
        for name, value in self._arrays:
            size = value.size if isinstance(value, ArrayDigest) else len(value)
            if size != self.dim:
                raise ValueError(f"{name} does not have {self.dim} numbers")
        if any((value is not None) != self.private for value in (self.epsilon, self.delta)):
            raise ValueError("epsilon and delta must be null if it is not private, and only then")
        held: Any = self.bounds
        if held and not any(isinstance(each, ArrayDigest) for each in held) and np.any(np.greater(*held)):
            raise ValueError("a lower bound is above the upper one")
        return self

    @property
    def _arrays(self) -> list[tuple[str, list[float] | ArrayDigest]]:
        """Settings that are arrays or digests of arrays, by name."""
        lower, upper = self.bounds or (None, None)
        named: tuple[tuple[str, Any], ...] = (("mean", self.mean), ("centering", self.centering))
        named += (("scale", self.scale), ("bounds", lower), ("bounds", upper))
        return [(name, value) for name, value in named if isinstance(value, list | ArrayDigest)]

    def with_settings(
        self,
        *,
        centering: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Release:
        """Return this release with arrays in the place of their digests.

        ``centering`` and ``scale``, (d,), and ``bounds``, (lower, upper), are settings of the stream. Raises
        ValueError with one line that names a setting that is not the release's.
        """
        changes: dict[str, Any] = {}
        if centering is not None:
            changes["centering"] = _filled("centering", self.centering, centering)
        if scale is not None:
            changes["scale"] = _filled("scale", self.scale, scale)
        if bounds is not None:
            try:
                pair = len(bounds) == 2
            except TypeError:
                pair = False
            if not pair:
                raise ValueError("bounds must be a pair: (lower, upper)")
            held = self.bounds or (None, None)
            changes["bounds"] = tuple(
                _filled(name, own, given)
                for name, own, given in zip(("lower bounds", "upper bounds"), held, bounds, strict=True)
            )
        return self.model_copy(update=changes)

    def projection(self) -> Projection:
        """Return the map that :meth:`transform` computes; keep it for many small arrays.

        Raises ValueError as :meth:`transform`, except for faults of X.
        """
        if self.kind == "tensor":
            raise ValueError(
                "the release holds components of a tensor, not of a subspace: records cannot be projected"
            )
        if self.centering is None:
            raise ValueError(
                f"a release of version {self.version} does not contain centering and scale: "
                f"use a release of version {_MAP_VERSION} or later"
            )
        if isinstance(self.centering, str) and self.centering not in _CENTERINGS:
            raise ValueError(f'centering = "{self.centering}" is of a later version: update streaming-pca')
        for name, value in self._arrays:
            if isinstance(value, ArrayDigest):
                raise ValueError(
                    f"the release has only the digest of {name}, of {value.size} numbers: "
                    f"pass the stream's setting, release.with_settings({name}=...)"
                )
        settings: Any = (self.centering, self.scale, self.bounds)  # without a digest
        centering, scale, bounds = settings
        centre = total_centre(self.mean, centering, scale)
        scale = 1.0 if scale is None else scale
        return Projection(self._basis(), 0.0 if centre is None else centre, scale, bounds)

    def _basis(self) -> NDArray[np.float64]:
        """Return the components; raise ValueError for other lengths and angles than their kind has."""
        rows, wanted = np.array(self.components), ("orthonormal", "of length 1")[self.kind == "tensor"]
        if not all(map(is_orthonormal, [rows] if self.kind == "subspace" else rows[:, None])):
            raise ValueError(f"not a release: components are not {wanted}")
        return rows

    def transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """Project rows as ``PrivatePCA.transform``: clamp, centre, scale, project.

        The result is a function of X, and as private as X: not private, if these are raw records.

        Parameters
        ----------
        X : (m, d) vectors or (m, r, d) factors
            In the stream's units. For a local stream, the input of ``LocalGaussian``, not its reports.

        Returns
        -------
        (m, k) or (m, r, k)
            Coordinates, float32 where X is, else float64.

        Raises
        ------
        ValueError
            One line: X does not fit the release, the release is a tensor or older than
            version 6, or it has only digests of its settings (:meth:`with_settings`).
        """
        projection = self.projection()
        # Numbers are not names.
        if self.feature_names is not None and all(isinstance(name, str) for name in own_names(X) or ()):
            refuse_other_columns(X, self.feature_names, "X", "the release's feature_names")
        return projection.transform(checked_rows(X, self.dim, "features"))

    def inverse_transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return the rows of the subspace with these coordinates, in the stream's units.

        X is (m, k) or (m, r, k), the result (m, d) or (m, r, d). Raises ValueError as :meth:`transform`.
        """
        return self.projection().inverse_transform(checked_rows(X, self.rank, "components"))

    @property
    def accuracy(self) -> dict[str, Any]:
        """Explained variances and the fields of ``ACCURACY``, None if unknown.

        Weights and a support are included if the release has them.
        """
        found = {name: getattr(self, name) for name in ("explained_variance", *ACCURACY)}
        more = {name: getattr(self, name) for name in ("weights", "support")}
        return found | {name: value for name, value in more.items() if value is not None}

    @property
    def counts(self) -> dict[str, Any]:
        """Fields of ``COUNTS``, and ``clipped_of``; empty without them.

        ``clipped_of`` is the number of records, or of pairs, that the clip could change.
        """
        if self.null_records is None or self.batch_records is None:
            return {}
        of_pairs = self.centering == "pairs"
        found = {name: getattr(self, name) for name in COUNTS}
        return found | {"clipped_of": self.batch_records // 2 if of_pairs else self.batch_records}

    @property
    def least_null_share(self) -> float:
        """Share of null records in the batch less five standard errors; 0 where it is unknown.

        It is also 0 for a batch of at most as many records as five standard errors. It is 1 for a
        batch without rows, where each row is a record: no message could be read.
        """
        if self.batch_records is None or self.null_records is None or self.null_records_error is None:
            return 0.0
        if not self.batch_records:
            return 1.0
        # Laplace noise is beyond 5 of them in 1 of 2,400 batches, and beyond 3 in 1 of 140.
        noise = 5 * self.null_records_error
        if noise >= self.batch_records:
            return 0.0
        return min(max(self.null_records - noise, 0.0) / self.batch_records, 1.0)

    @property
    def dominant_name(self) -> str | None:
        """Name of the dominant feature, or its number."""
        if self.dominant_feature is None:
            return None
        names = self.feature_names or range(self.dim)
        return str(names[self.dominant_feature])

    def to_bytes(self) -> bytes:
        """Return the value of the message."""
        optional = ("contributions_per_user", "outcome", "weights", "support", "dominant_feature")
        unsaid = {name for name in (*optional, *ACCURACY, *COUNTS) if getattr(self, name) is None}
        unsaid |= {name for name in ("centering", "scale", "bounds") if self.version < SINCE[name][0]}
        usual = {
            name
            for name, value in (("private", True), ("local", False), ("doubts", ()))
            if getattr(self, name) == value
        }
        return self.model_dump_json(exclude=unsaid | usual).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Read the value of a message; ValueError if it is not a release."""
        try:
            release = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"][:1])
            raise ValueError(f"not a release: {where}{first['msg'].removeprefix('Value error, ')}") from None
        release._basis()
        return release


def stated_version(data: bytes) -> int:
    """Return the stated version of a message that looks like a release, otherwise 0."""
    try:
        stated = json.loads(data)
    except (ValueError, RecursionError):
        return 0
    if not isinstance(stated, dict) or stated.get("schema_name") != "streaming-pca.release":
        return 0
    version = stated.get("version")
    return version if isinstance(version, int) else 0


def unreadable_text(version: int, reason: str) -> str:
    """Return a line on a release that :meth:`Release.from_bytes` refused for ``reason``."""
    remedy = "find out what else than the stream's worker writes to this topic"
    if version > max(since for since, _ in SINCE.values()):
        remedy = "update streaming-pca: a later version has written it"
    why = reason.removeprefix("not a release: ")
    return f"a release of version {version} cannot be read ({why}): {remedy}"


def published_setting(value: Any) -> Any:
    """Return a setting as a release holds it: a long array by its digest."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    return ArrayDigest.of(value) if len(value) > LONGEST_ARRAY else list(value)


def _filled(name: str, held: Any, given: ArrayLike) -> Any:
    """Return the given setting; raise ValueError if it is not the release's."""
    if isinstance(given, str):
        if given != held:
            raise ValueError(f'{name}: "{given}" is not the setting of the release\'s stream')
        return given
    try:
        numbers = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        # NumPy's message quotes a value, and does not name the setting.
        raise ValueError(f"{name} must be numbers: pass the setting of the release's stream") from None
    if isinstance(held, ArrayDigest):
        same = ArrayDigest.of(numbers) == held
    else:
        same = held is not None and not isinstance(held, str) and np.array_equal(held, numbers)
    if not same:
        raise ValueError(f"{name}: these are not the numbers of the release's stream")
    return numbers.tolist()
