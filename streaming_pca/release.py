"""A release: one published subspace, as it is on the releases topic."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

__all__ = ["ACCURACY", "Release"]

Finite = Annotated[float, Field(allow_inf_nan=False)]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,63}$")]
StandardError = Annotated[float, Field(ge=0, allow_inf_nan=False)]

ACCURACY = ("explained_variance_error", "total_variance", "total_variance_error", "angle_bound")
"""What a release may say about how exact it is; each is left out where it is not known."""


class Release(BaseModel):
    """One published subspace, as JSON on the releases topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_name: Literal["streaming-pca.release"] = "streaming-pca.release"
    version: Literal[1, 2, 3] = 1
    """2 where it says how exact it is, 3 where it has an outcome or is not private: readers of
    version 1 refuse fields that they do not know."""
    kind: Literal["subspace"] = "subspace"
    stream: str
    batch: int
    """The ledger's number of the batch that it came with."""
    records: int
    """Records delivered so far, null ones included."""
    dim: int
    rank: int
    estimator: str
    components: list[list[float]]
    """k rows of d numbers, orthonormal, by decreasing explained variance."""
    explained_variance: list[float]
    explained_variance_error: list[StandardError] | None = None
    """k standard errors, from the noise alone."""
    total_variance: Finite | None = None
    """Sum of all d variances."""
    total_variance_error: StandardError | None = None
    """From the noise alone."""
    angle_bound: Annotated[StandardError, Field(le=math.pi / 2)] | None = None
    """Radians; largest angle, with probability 0.95, to the same sums' subspace without noise."""
    mean: list[float] | None
    private: bool = True
    """Left out where it is true. Not private: nothing is promised, epsilon and delta are null."""
    epsilon: float | None
    delta: float | None
    adjacency: str
    """Which inputs are neighbours; "none" where nothing is promised."""
    privacy_unit: str
    contributions_per_user: int | None = None
    """Batches that one user may count in; only where the privacy unit is the user."""
    feature_names: list[str] | None = None
    """Names of the d numbers of a component, where the stream has them."""
    created: str
    """ISO 8601, UTC."""
    outcome: Word | None = None
    """What the batch came to, where its estimator may learn nothing from one: "learnt", or why it
    did not. There may be other words in times to come."""

    @model_validator(mode="after")
    def _check_accuracy(self) -> Release:
        if self.version == 1 and any(getattr(self, name) is not None for name in ACCURACY):
            raise ValueError(f"version 1 has none of {', '.join(ACCURACY)}")
        if self.version < 3 and (self.outcome is not None or not self.private):
            raise ValueError(f"version {self.version} is private, and has no outcome")
        if any((value is not None) != self.private for value in (self.epsilon, self.delta)):
            raise ValueError("epsilon and delta are null where it is not private, and only there")
        if self.explained_variance_error is not None and len(self.explained_variance_error) != self.rank:
            raise ValueError(f"explained_variance_error does not have {self.rank} numbers")
        return self

    @property
    def accuracy(self) -> dict[str, Any]:
        """Explained variances, and what it says of its errors; None where it does not."""
        return {name: getattr(self, name) for name in ("explained_variance", *ACCURACY)}

    def to_bytes(self) -> bytes:
        """The message's value."""
        optional = ("contributions_per_user", "outcome", *ACCURACY)
        unsaid = {name for name in optional if getattr(self, name) is None}
        return self.model_dump_json(exclude=unsaid | ({"private"} if self.private else set())).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Read a message's value; ValueError if it is no release."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ValueError(f"not a release: {error.errors()[0]['msg']}") from None
