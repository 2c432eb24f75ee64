"""What a batch came to: a mechanism's answer, which may be that there is none."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Outcome"]


class Outcome(StrEnum):
    """Of the last batch; an output of its mechanisms. It is charged whatever it came to."""

    LEARNT = "learnt"
    NO_SCALE = "no-scale"
    """No bin of PrivRange's histogram was full enough: nothing is learnt from the batch."""
    NO_GAP = "no-gap"
    """The private eigengap is too small for the noise to be calibrated to it, or the k-th private
    eigenvalue is lost in the noise: nothing is learnt."""
    TOO_FEW = "too-few-records"
    """The batch closed with fewer records than the algorithm's guarantee needs: nothing is learnt from it."""
