"""Settings shared by the estimators of this folder: learning rates, and the adaptive mean."""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from streaming_pca.estimators.base import Options
from streaming_pca.kernels.lattice import MAX_RECORDS


class LearningRates(Options):
    """Schedule of the learning rate eta_t, t from 1.

    It is c/(t + offset), from ``decay_after`` on times ((decay_after + offset)/(t + offset))**decay_power
    ([DunglerSanyal2026, appendix F.2], family 1; there c = 1, and decay_after is T/2 or T/3).
    """

    learning_rate: float = Field(default=1.0, gt=0, le=1e200)
    """c of eta_t, in inverse squared units of the records."""
    offset: float = Field(default=10.0, ge=0)
    """Added to t in eta_t: keeps the first steps small."""
    decay_after: int | None = Field(default=None, ge=1)
    """Step tau after which eta_t is multiplied by ``((tau + offset)/(t + offset))**decay_power``."""
    decay_power: float = Field(default=0.5, ge=0)
    """See ``decay_after``."""

    def rate(self, t: int, component: int = 0) -> float:
        """Return eta_t; a subclass may have other rates for each component, counted from 0."""
        eta = self.learning_rate / (t + self.offset)
        if self.decay_after is not None and t > self.decay_after:
            eta *= ((self.decay_after + self.offset) / (t + self.offset)) ** self.decay_power
        return eta


class AdaptiveMeanOptions(LearningRates):
    """Batches and tails of :class:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean`."""

    n_records: int | None = Field(default=None, ge=2, le=2**40)
    """n, the total number of records of the stream, if known: batch rules and failure
    probabilities use it."""
    batch_rule: str = "fixed"
    """Rule for the number of records of a batch."""
    batch_size: int = Field(default=16_384, ge=2, le=MAX_RECORDS)
    """Records B of a batch, by the rule "fixed". Nothing is learnt from a batch too small for PrivRange (four
    records for each of its blocks): see ``range_constant``."""
    tail_constant: float = Field(default=1.0, ge=1e-6, le=1e6)
    """K of the papers' Assumption A; their experiments use 1."""
    tail_exponent: float = Field(default=1.0, ge=0, le=20)
    """a of the papers' Assumption A; their experiments use 1."""
    failure_probability: float = Field(default=0.01, gt=0, lt=1)
    """zeta (tau), for all ranges and radii of a run together."""
    range_constant: float = Field(default=4.0, gt=0, le=1e6)
    """C1 of PrivRange, which the papers do not give: m = C1 ln(1/(delta zeta))/epsilon blocks. About
    2 ln(1/delta)/epsilon of them must fall in one bin; with C1 = 4, half may fall in the next bin."""

    @model_validator(mode="after")
    def _check_rule(self) -> AdaptiveMeanOptions:
        if self.batch_rule != "fixed" and self.n_records is None:
            raise ValueError(f'batch_rule = "{self.batch_rule}" needs n_records')
        return self

    @property
    def largest_batch(self) -> int:
        return self.records_a_batch(1)

    def records_a_batch(self, k: int) -> int:
        """Return B for k components that take turns."""
        wanted = self.batch_size if self.n_records is None else int(self._by_rule(self.n_records, k))
        return min(max(wanted, 2), MAX_RECORDS)

    def _by_rule(self, n: int, k: int) -> float:
        """Return B of the rule for n records, before rounding."""
        return self.batch_size

    def tail(self, scale: float, inside: float) -> float:
        """Return K sqrt(Lambda) ln^a(inside)."""
        return self.tail_constant * math.sqrt(scale) * math.pow(math.log(inside), self.tail_exponent)

    def failure(self, step: int, steps: int | None) -> float:
        """Return the failure probability of a step, counted from 1.

        It is zeta/(2 T); without T zeta/(2 t (t + 1)), which sums to zeta/2.
        """
        return self.failure_probability / (2 * (step * (step + 1) if steps is None else steps))
