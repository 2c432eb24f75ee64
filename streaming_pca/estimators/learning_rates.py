"""Learning rates of Oja's family: those of 003, appendix F.2."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from streaming_pca.estimators.base import Options

__all__ = ["LearningRates"]


class LearningRates(Options):
    """Which step eta_t an update takes, t from 1.

    ============  ==================================================================
    "inverse"     c/(t + offset), from ``decay_after`` on times
                  ((decay_after + offset)/(t + offset))**decay_power (003, family 1;
                  there c = 1, and decay_after is T/2 or T/3)
    "spectral"    c/(20 noise_level lambda_1 s + gap t/ln n), with s = 1 (003, family 2;
                  004, appendix G.1)
    "spectral-d"  the same with s = d (003, family 3)
    ============  ==================================================================
    """

    learning_rate: float = Field(default=1.0, gt=0, le=1e200)
    """c of eta_t, in inverse squared units of the records."""
    schedule: Literal["inverse", "spectral", "spectral-d"] = "inverse"
    """How eta_t falls: with t alone, or by public guesses of the spectrum."""
    offset: float = Field(default=10.0, ge=0)
    """Of the steps t in eta_t: keeps the first ones small ("inverse")."""
    decay_after: int | None = Field(default=None, ge=1)
    """From step tau = ``decay_after`` on, eta_t is multiplied by
    ``((tau + offset)/(t + offset))**decay_power``."""
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
        """Raise ValueError unless the guesses are there that the schedule needs, and no others."""
        guesses = ("noise_level", "largest_eigenvalue", "gap")
        given = [name for name in guesses if getattr(self, name) is not None]
        if self.schedule != "inverse" and len(given) < len(guesses):
            raise ValueError(f'schedule = "{self.schedule}" needs {", ".join(guesses)}: public guesses')
        if self.schedule == "inverse" and given:
            raise ValueError(f'{given[0]} is for the spectral schedules, not for schedule = "inverse"')

    def rate(self, t: int, dim: int = 1, records: int = 2) -> float:
        """eta_t.

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
