"""Settings that the estimators with an adaptive mean share."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from streaming_pca.estimators.learning_rates import LearningRates
from streaming_pca.linalg.lattice import MAX_RECORDS

__all__ = ["AdaptiveMeanOptions"]


class AdaptiveMeanOptions(LearningRates):
    """Batches, tails and accounting of :class:`~streaming_pca.estimators.adaptive_mean.AdaptiveMean`."""

    n_records: int | None = Field(default=None, ge=2, le=2**40)
    """n, the number of records that will ever come, where it is known: the batch rules, failure
    probabilities and learning rates count on it."""
    batch_rule: str = "fixed"
    """How many records a batch has."""
    batch_size: int = Field(default=16_384, ge=2, le=MAX_RECORDS)
    """Records B of a batch, by the rule "fixed". One that is too small for PrivRange (four for each of
    its blocks) teaches nothing: see ``range_constant``."""
    tail_constant: float = Field(default=1.0, ge=1e-6, le=1e6)
    """K of the paper's Assumption A; its experiments have 1."""
    tail_exponent: float = Field(default=1.0, ge=0, le=20)
    """a of the paper's Assumption A; its experiments have 1."""
    failure_probability: float = Field(default=0.01, gt=0, lt=1)
    """zeta (tau), for all ranges and radii of a run together."""
    range_constant: float = Field(default=4.0, gt=0, le=1e6)
    """C1 of PrivRange, which the papers do not give: m = C1 ln(1/(delta zeta))/epsilon blocks. About
    2 ln(1/delta)/epsilon of them must fall in one bin; by 4, half may fall in the next."""
    accounting: Literal["paper", "zcdp"] = "zcdp"
    """How centre and mean of one half compose: a histogram for each coordinate by basic composition,
    or one query."""

    @model_validator(mode="after")
    def _check_rule(self) -> AdaptiveMeanOptions:
        if self.batch_rule != "fixed" and self.n_records is None:
            raise ValueError(f'batch_rule = "{self.batch_rule}" needs n_records')
        return self

    @property
    def largest_batch(self) -> int:
        """The most records that any plan asks for."""
        return self.records_a_batch(1)

    def records_a_batch(self, k: int) -> int:
        """B, of k components where they take turns."""
        wanted = self.batch_size if self.n_records is None else int(self._by_rule(self.n_records, k))
        return min(max(wanted, 2), MAX_RECORDS)

    def _by_rule(self, n: int, k: int) -> float:
        """B of the rule, for n records."""
        return self.batch_size

    def tail(self, scale: float, inside: float) -> float:
        """K sqrt(Lambda) ln^a(inside)."""
        return self.tail_constant * math.sqrt(scale) * math.pow(math.log(inside), self.tail_exponent)

    def failure(self, step: int, steps: int | None) -> float:
        """zeta/(2 T) of a step, from 1; zeta/(2 t (t + 1)) where T is not known, which sums to zeta/2."""
        return self.failure_probability / (2 * (step * (step + 1) if steps is None else steps))

    @property
    def clip_parameters(self) -> dict[str, Any]:
        """What the clip depends on, as a reservation names it."""
        return {"tail_constant": self.tail_constant, "tail_exponent": self.tail_exponent}
