"""Private diagnostics: noisy counts of a batch's null and clipped records."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.mechanisms import laplace_on_vector
from streaming_pca.privacy.parameters import Charge, PrivacyParameters, format_rational, parse_rational

MAX_SHARE = 0.5
"""Largest share of epsilon: more than half of it for diagnostics is a mistake."""

_SENSITIVITY = 2  # replacing a record moves each of the two counts by at most one


class Diagnostics:
    """Mechanism that counts null and clipped records, for a share of epsilon.

    ``privacy`` is the guarantee of the stream as a whole, and ``share``, in (0, 0.5], a share of epsilon; the
    rest is left to the estimator.

    Adjacency: replace-one. Released: the number of null records of a batch and the number of records that its
    clip changed, each plus discrete Laplace noise. Whether a record is null, or clipped, depends on that
    record and on public numbers alone. With ``centering = "pairs"`` every record of other than one row is
    null, also by that record alone, and a pair is clipped or not: a record is in one pair. So a replacement
    moves each count by at most 1, the two by at most 2 in L1, and noise of scale 2/epsilon makes them
    epsilon-DP. The counts read the same records as the estimator, so the charges add up. With
    ``contributions`` c each batch gets epsilon/c.
    """

    def __init__(self, privacy: PrivacyParameters, share: float) -> None:
        if not 0 < share <= MAX_SHARE:
            raise ValueError(f"diagnostics_share must lie between 0 and {MAX_SHARE}, not {share}")
        whole = privacy.charge().epsilon
        total = Fraction(parse_rational(share)) * Fraction(whole)
        self._epsilon = total / privacy.contributions
        left = float(Fraction(whole) - total)
        while parse_rational(left) + total > whole:
            left = math.nextafter(left, 0.0)
        self.rest = privacy.model_copy(update={"epsilon": left})
        """Parameters left to the estimator: epsilon less the share, the whole delta."""
        self.charge = Charge(
            epsilon=total, delta=Fraction(0), rho=privacy.contributions * self._epsilon * self._epsilon / 2
        )
        """Charge of all batches that a unit of privacy may enter, together."""
        # The float may lie an ulp below the quotient that is charged.
        self._scale = float(_SENSITIVITY / self._epsilon) * (1 + 1e-12)
        # The least t with P(|X| > t) = 2 e^-((t+1)/scale)/(1 + e^-(1/scale)) <= 0.05.
        tail = 0.05 * (1 + math.exp(-1 / self._scale)) / 2
        self.error = max(math.ceil(-self._scale * math.log(tail) - 1), 0)
        """Half of the 95% confidence interval of each count."""
        # The variance of discrete Laplace noise is 2 q/(1 - q)^2, with q = e^(-1/scale).
        self.standard_error = math.exp(-1 / (2 * self._scale)) * math.sqrt(2) / -math.expm1(-1 / self._scale)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"mechanism": "counts", "epsilon": format_rational(self._epsilon)}

    def counts(self, null: int, clipped: int) -> NDArray[np.int64]:
        """Add noise to the two counts, which leave an estimator in no other form."""
        return laplace_on_vector(np.array([null, clipped], dtype=np.int64), self._scale)

    def describe(self, counts: NDArray[np.int64], records: int) -> dict[str, float]:
        """Return noisy counts and their errors as the fields of a release.

        ``counts`` are the numbers of null and of clipped records, (2,), with their noise.
        """
        null, clipped = counts.tolist()
        return {
            "batch_records": records,
            "null_records": float(null),
            "null_records_error": self.standard_error,
            "clipped_records": float(clipped),
            "clipped_records_error": self.standard_error,
        }
