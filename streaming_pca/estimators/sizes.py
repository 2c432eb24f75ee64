"""How large records are: a private histogram of their norms, read as a distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.mechanisms import laplace_histogram

__all__ = ["SizeDistribution", "private_sizes"]

Vector = NDArray[np.float64]

STEPS = 8
"""Bins an octave: a radius is known to 9%."""

_TAIL = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 12])
"""Octaves above the median: edges of the few bins, hence little noise, that the tail is counted in."""

_LEAST_INDEX = 1.5
"""Of the tail as a power of the radius: one of finite mean."""


@dataclass(frozen=True)
class SizeDistribution:
    """What a private histogram of sizes says of all clip radii at once.

    Attributes
    ----------
    radii : (c,) float64, increasing
    above : (c,) float64, decreasing
        Share of all records, null ones included, that are larger than each radius.
    present : float
        Share of the records that are not null (of size 0).
    doubt : float
        A share of the records that noise alone may feign.
    """

    radii: Vector
    above: Vector
    present: float
    doubt: float

    def quantile(self, q: float) -> float:
        """The least radius that holds a share q of the records that are not null."""
        return float(self.radii[self.index(q)])

    def index(self, q: float) -> int:
        """Of :meth:`quantile` in ``radii``."""
        inside = np.flatnonzero(self.above <= (1 - q) * self.present)
        return int(inside[0]) if inside.size else len(self.radii) - 1

    def share_above(self, radius: float | Vector) -> Vector:
        """Share of all records larger than each radius."""
        return np.asarray(np.interp(radius, self.radii, self.above))

    def excess(self, radius: float | Vector) -> Vector:
        """E (size - radius)+: what a clip at each radius cuts off."""
        steps = np.diff(self.radii) * (self.above[1:] + self.above[:-1]) / 2
        beyond = np.concatenate([np.cumsum(steps[::-1])[::-1], [0.0]])
        return np.asarray(np.interp(radius, self.radii, beyond))

    def mean_weight(self, radius: float) -> float:
        """E min(1, radius/size) over all records; 1 for those of size 0."""
        shares = -np.diff(np.concatenate([[self.present], self.above, [0.0]]))
        at = np.concatenate([self.radii, self.radii[-1:]])
        return float(1 - self.present + np.sum(shares * np.minimum(1.0, radius / at)))


def private_sizes(sizes: Vector, low: float, high: float, epsilon: float) -> SizeDistribution:
    """Distribution of sizes between two public numbers.

    Parameters
    ----------
    sizes : (m,) float64
        One number a record, a function of that record alone.
    low, high : float
        Public. Sizes up to ``low`` count as null, those above ``high`` as ``high``.
    epsilon : float

    Notes
    -----
    Released: two Laplace histograms, of disjoint parts of the records: replace-one,
    epsilon-DP. The first, of a quarter of them (more where they are few) over
    fixed bins of 1/8 octave, finds the bulk: the run of octaves around the fullest one that rise above the
    noise. The second counts the rest in a few bins from the median up. All else
    is post-processing: beyond the last count that rises above its noise the tail
    is continued as a power of the radius, with the index of the last part that
    was resolved (light tails have a large index there, so nearly no excess).

    Floating point: sizes are only compared with the bins' edges.
    """
    first = int(min(max(len(sizes) / 4, 400 / epsilon), len(sizes) / 2))
    radii, above, present = _bulk(sizes[:first], low, high, epsilon)
    # The last radius has nothing above it.
    middle = int(np.flatnonzero(above <= 0.5 * present)[0])
    edges = radii[middle] * 2.0**_TAIL
    tail = _tail(sizes[first:], edges, epsilon)
    far = radii[middle] * 2.0 ** (np.arange(int(_TAIL[-1]) * STEPS + 1) / STEPS)
    far = far[: max(int(np.count_nonzero(far <= high)), 1)]
    grid, shares = np.log2(edges), np.log2(np.maximum(tail, 1e-300))
    beyond = np.minimum(2.0 ** np.interp(np.log2(far), grid, shares), above[max(middle - 1, 0)])
    return SizeDistribution(
        np.concatenate([radii[:middle], far]),
        np.concatenate([above[:middle], beyond[: len(far)]]),
        present,
        6 * math.sqrt(2) / epsilon / max(len(sizes) - first, 1),
    )


def _bulk(sizes: Vector, low: float, high: float, epsilon: float) -> tuple[Vector, Vector, float]:
    """Radii, the share of records above each, and of records that are not null."""
    steps = max(math.ceil(math.log2(high / low) * STEPS), 1)
    edges = high * 2.0 ** (np.arange(-steps, 1) / STEPS)
    bins = np.minimum(np.searchsorted(edges, sizes, side="left"), steps).astype(np.int64)
    noisy = laplace_histogram(bins, steps + 1, epsilon).astype(np.float64)
    first, last = _believed(noisy, epsilon)
    inside = np.maximum(np.maximum.accumulate(np.cumsum(noisy[first : last + 1])), 0.0)
    total = float(inside[-1])
    if not total > 0:
        return edges[first : last + 1], np.zeros(len(inside)), 0.0
    present = min(total / len(sizes), 1.0) if len(sizes) else 0.0
    return edges[first : last + 1], np.clip(1 - inside / total, 0.0, 1.0) * present, present


def _believed(noisy: Vector, epsilon: float) -> tuple[int, int]:
    """First and last bin of the run of octaves that rise above the noise, around the fullest one."""
    octave = np.convolve(noisy, np.ones(STEPS))[: len(noisy)]
    # Bin 0 holds null records.
    octave[:STEPS] -= noisy[0]
    top = int(np.argmax(octave[1:])) + 1
    # Three standard deviations of an octave's noise.
    threshold = 6 * math.sqrt(2 * STEPS) / epsilon
    first = last = top
    while first - STEPS > STEPS and octave[first - STEPS] > threshold:
        first -= 1
    while last + STEPS < len(noisy) and octave[last + STEPS] > threshold:
        last += 1
    return max(first - 2 * STEPS + 1, 1), min(last + STEPS - 1, len(noisy) - 1)


def _tail(sizes: Vector, edges: Vector, epsilon: float) -> Vector:
    """Share of records above each edge, continued where the counts are lost in their noise."""
    bins = np.searchsorted(edges, sizes, side="left").astype(np.int64) - 1
    noisy = laplace_histogram(bins, len(edges), epsilon).astype(np.float64)
    # Of a bin's noise the standard deviation is 2 sqrt(2)/epsilon.
    deviation = 2 * math.sqrt(2) / epsilon
    lost = np.flatnonzero(noisy <= 3 * deviation)
    end = max(int(lost[0]) - 1, 0) if lost.size else len(edges) - 1
    # Beyond a gap a bin has to be far above the noise to be believed.
    apart = np.flatnonzero(noisy > 6 * deviation)
    end = max(end, int(apart[-1])) if apart.size else end
    beyond = min(max(float(noisy[end + 1 :].sum()), 0.0), 2 * max(float(noisy[end]), 0.0))
    counts = np.cumsum(noisy[end::-1])[::-1] + beyond
    count = max(len(sizes), 1)
    shares = np.minimum.accumulate(np.maximum(counts, 1e-3) / count)
    falls = [_LEAST_INDEX]
    if end:
        start = max(end - 2, 0)
        falls.append(math.log(shares[start] / shares[end]) / math.log(edges[end] / edges[start]))
    # Neither may the continuation pass what the lost counts can be.
    after = np.cumsum(noisy[:end:-1])[::-1]
    most = np.maximum(after, 0) + 2.5 * deviation * np.sqrt(np.arange(len(after), 0, -1))
    room = np.minimum(most / count / shares[end], 1.0)
    falls.extend(-np.log(room) / np.log(edges[end + 1 :] / edges[end]))
    tail = shares[end] * (edges[end] / edges[end + 1 :]) ** max(falls)
    return np.concatenate([shares, tail])
