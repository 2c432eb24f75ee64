"""Releases: published subspaces as messages of the releases topic."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

__all__ = ["ACCURACY", "Release"]

Finite = Annotated[float, Field(allow_inf_nan=False)]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,63}$")]
StandardError = Annotated[float, Field(ge=0, allow_inf_nan=False)]

ACCURACY = ("explained_variance_error", "total_variance", "total_variance_error", "angle_bound")
"""Optional fields on the accuracy of a release, omitted if unknown."""


class Release(BaseModel):
    """Published subspace or tensor, a JSON message of the releases topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_name: Literal["streaming-pca.release"] = "streaming-pca.release"
    version: Literal[1, 2, 3, 4, 5] = 1
    """Lowest version that has all fields of this release: 2 for accuracy, 3 for an outcome or no privacy,
    4 for a tensor, a support or reports, 5 for doubts. Readers of version 1 refuse unknown fields."""
    kind: Literal["subspace", "tensor"] = "subspace"
    """Kind of the components: orthonormal rows of a subspace, or unit rows of a tensor with weights."""
    stream: str
    batch: int
    """Number of the release's batch in the ledger."""
    records: int
    """Number of records so far, null ones included."""
    dim: int
    rank: int
    estimator: str
    components: list[list[float]]
    """k orthonormal rows of d numbers by decreasing explained variance; for a tensor, unit rows by
    decreasing weight."""
    weights: list[Finite] | None = None
    """k weights of a tensor's components."""
    support: list[Annotated[int, Field(ge=0)]] | None = None
    """Indices of the features that a sparse estimator selected, ascending."""
    explained_variance: list[float]
    explained_variance_error: list[StandardError] | None = None
    """k standard errors, from the noise alone."""
    total_variance: Finite | None = None
    """Sum of all d variances."""
    total_variance_error: StandardError | None = None
    """Standard error of the sum, from the noise alone."""
    angle_bound: Annotated[StandardError, Field(le=math.pi / 2)] | None = None
    """Bound in radians, with probability 0.95, on the largest angle to the same sums' subspace without
    noise."""
    mean: list[float] | None
    """Mean of the records; null if none was found or estimated."""
    private: bool = True
    """Omitted if true. If false, nothing is guaranteed, and epsilon and delta are null."""
    local: bool = False
    """Omitted if false. If true, epsilon and delta are the guarantee of each report since it was made."""
    epsilon: float | None
    delta: float | None
    adjacency: str
    """Relation of neighbouring inputs; "none" if nothing is guaranteed."""
    privacy_unit: str
    contributions_per_user: int | None = None
    """Most batches in which one user counts; only if the privacy unit is the user."""
    feature_names: list[str] | None = None
    """Names of the d features, if the stream has them."""
    created: str
    """Time of the release, ISO 8601 in UTC."""
    outcome: Word | None = None
    """Outcome of the batch if its estimator can learn nothing from one: "learnt", or the reason.
    Later versions may add words."""
    doubts: tuple[Word, ...] = ()
    """Reasons not to rely on the release (:class:`~streaming_pca.estimators.doubts.Doubt`), omitted if
    there are none. Later versions may add words."""

    @model_validator(mode="after")
    def _check_accuracy(self) -> Release:
        if self.version == 1 and any(getattr(self, name) is not None for name in ACCURACY):
            raise ValueError(f"version 1 has none of {', '.join(ACCURACY)}")
        if self.version < 3 and (self.outcome is not None or not self.private):
            raise ValueError(f"version {self.version} is private, and has no outcome")
        if self.version < 4 and (self.kind == "tensor" or self.local or self.support is not None):
            raise ValueError(f"version {self.version} is a subspace, not local, and has no support")
        if self.version < 5 and self.doubts:
            raise ValueError(f"version {self.version} has no doubts")
        self._check_tensor()
        if any((value is not None) != self.private for value in (self.epsilon, self.delta)):
            raise ValueError("epsilon and delta are null if it is not private, and only then")
        if self.explained_variance_error is not None and len(self.explained_variance_error) != self.rank:
            raise ValueError(f"explained_variance_error does not have {self.rank} numbers")
        return self

    def _check_tensor(self) -> None:
        if (self.weights is not None) != (self.kind == "tensor"):
            raise ValueError("a tensor has weights, a subspace has none")
        if self.weights is not None and len(self.weights) != self.rank:
            raise ValueError(f"weights does not have {self.rank} numbers")
        if self.support is not None and max(self.support, default=0) >= self.dim:
            raise ValueError(f"support names a feature above {self.dim - 1}")

    @property
    def accuracy(self) -> dict[str, Any]:
        """Explained variances and the fields of ``ACCURACY``, None if unknown.

        Weights and a support are included if the release has them.
        """
        found = {name: getattr(self, name) for name in ("explained_variance", *ACCURACY)}
        more = {name: getattr(self, name) for name in ("weights", "support")}
        return found | {name: value for name, value in more.items() if value is not None}

    def to_bytes(self) -> bytes:
        """Return the value of the message."""
        optional = ("contributions_per_user", "outcome", "weights", "support", *ACCURACY)
        unsaid = {name for name in optional if getattr(self, name) is None}
        usual = {
            name
            for name, value in (("private", True), ("local", False), ("doubts", ()))
            if getattr(self, name) == value
        }
        return self.model_dump_json(exclude=unsaid | usual).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Read the value of a message.

        Raises
        ------
        ValueError
            If it is not a release.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ValueError(f"not a release: {error.errors()[0]['msg']}") from None
