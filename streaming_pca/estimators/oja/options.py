"""Settings shared by the estimators of this folder: learning rates, and the adaptive mean."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from streaming_pca.estimators.base import Options
from streaming_pca.kernels.lattice import MAX_RECORDS


class LearningRates(Options):
    """Schedule of the learning rate eta_t, t from 1.

    ============  ==================================================================
    "inverse"     c/(t + offset), from ``decay_after`` on times
                  ((decay_after + offset)/(t + offset))**decay_power
                  ([DunglerSanyal2026, appendix F.2], family 1; there c = 1, and
                  decay_after is T/2 or T/3)
    "spectral"    c/(20 noise_level lambda_1 s + gap t/ln n), with s = 1 (there family 2;
                  [DunglerSanyal2025, appendix G.1])
    "spectral-d"  the same with s = d (there family 3)
    ============  ==================================================================
    """

    learning_rate: float = Field(default=1.0, gt=0, le=1e200)
    """c of eta_t, in inverse squared units of the records."""
    schedule: Literal["inverse", "spectral", "spectral-d"] = "inverse"
    """Decay of eta_t: with t alone, or by public guesses of the spectrum."""
    offset: float = Field(default=10.0, ge=0)
    """Added to t in eta_t ("inverse"): keeps the first steps small."""
    decay_after: int | None = Field(default=None, ge=1)
    """Step tau after which eta_t is multiplied by ``((tau + offset)/(t + offset))**decay_power``."""
    decay_power: float = Field(default=0.5, ge=0)
    """See ``decay_after``."""
    noise_level: float | None = Field(default=None, gt=0)
    """sigma of the spectral schedules: a public guess of the records' noise."""
    largest_eigenvalue: float | None = Field(default=None, gt=0)
    """lambda_1 of the spectral schedules: a public guess."""
    gap: float | None = Field(default=None, ge=0)
    """lambda_1 - lambda_2 of the spectral schedules: a public guess."""

    @model_validator(mode="after")
    def _check_schedule(self) -> LearningRates:
        self._check_guesses()
        return self

    def _check_guesses(self) -> None:
        """Check that exactly the guesses that the schedule needs are given."""
        guesses = ("noise_level", "largest_eigenvalue", "gap")
        given = [name for name in guesses if getattr(self, name) is not None]
        if self.schedule != "inverse" and len(given) < len(guesses):
            raise ValueError(f'schedule = "{self.schedule}" needs {", ".join(guesses)}: public guesses')
        if self.schedule == "inverse" and given:
            raise ValueError(f'{given[0]} is for the spectral schedules, not for schedule = "inverse"')

    def rate(self, t: int, dim: int = 1, records: int = 2) -> float:
        """Return eta_t.

        Parameters
        ----------
        t : int
            Step, from 1.
        dim, records : int
            d and n of the spectral schedules.
        """
        if self.schedule != "inverse":
            assert self.noise_level is not None
            assert self.largest_eigenvalue is not None
            assert self.gap is not None
            start = 20 * self.noise_level * self.largest_eigenvalue
            start *= dim if self.schedule == "spectral-d" else 1
            return self.learning_rate / (start + self.gap * t / math.log(max(records, 3)))
        eta = self.learning_rate / (t + self.offset)
        if self.decay_after is not None and t > self.decay_after:
            eta *= ((self.decay_after + self.offset) / (t + self.offset)) ** self.decay_power
        return eta


class AdaptiveMeanOptions(LearningRates):
    """Batches, tails and accounting of :class:`~streaming_pca.estimators.oja.truncated_mean.AdaptiveMean`."""

    n_records: int | None = Field(default=None, ge=2, le=2**40)
    """n, the total number of records of the stream, if known: batch rules, failure probabilities and
    learning rates use it."""
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
    accounting: Literal["paper", "zcdp"] = "zcdp"
    """Composition of centre and mean on one half: a histogram for each coordinate by basic composition
    ("paper"), or one query under zCDP ("zcdp")."""

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

    @property
    def clip_parameters(self) -> dict[str, Any]:
        """Parameters of the clip, for the reservation."""
        return {"tail_constant": self.tail_constant, "tail_exponent": self.tail_exponent}
