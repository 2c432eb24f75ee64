"""Chooses the methods' options as 003 F.2 does: of all candidates the least mean error on a grid.

The seeds are below those of the figures. What this prints is what
:mod:`streaming_pca.experiments.methods` holds as ``tuned``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from streaming_pca.experiments.experiment import FIRST_SEED
from streaming_pca.experiments.methods import METHODS, Choice, Method
from streaming_pca.experiments.running import fit
from streaming_pca.experiments.scales import eigenvalues
from streaming_pca.experiments.settings import Draw, Family, Measure, Setting

__all__ = ["GRIDS", "main", "tune"]

_POWER_DIM, _POWER_N = 50, 200_000
_REST = 0.5 / (_POWER_DIM - 1)

GRIDS: Mapping[Family, tuple[Setting, ...]] = {
    "spiked": (
        Setting("spiked", 50_000, 100, eigenvalues(5, 5.0), 0.025),
        Setting("spiked", 50_000, 200, eigenvalues(2, 5.0), 0.5),
        Setting("spiked", 100_000, 50, eigenvalues(2, 1.0), 0.025),
    ),
    "gaussian": (
        Setting("gaussian", 50_000, 200, eigenvalues(2, 5.0), 1.0),
        Setting("gaussian", 200_000, 20, eigenvalues(2, 5.0), 0.5),
        Setting("gaussian", _POWER_N, _POWER_DIM, (0.5 - _REST,), _REST**0.5, 1.0, 1e-6),
    ),
    "coherent": tuple(
        Setting("coherent", _POWER_N, _POWER_DIM, (_POWER_N / 100,), 0.3, 1.0, 1e-6, carriers)
        for carriers in (_POWER_N // 80, _POWER_N // 4)
    ),
}
"""Settings that the errors of a candidate are averaged over, by family."""


def tune(method: Method, family: Family, seeds: Sequence[int], jobs: int = 2) -> list[tuple[float, Choice]]:
    """Mean error of each candidate, best first; infinite where one refuses a setting."""
    measure: Measure = "sine" if family == "coherent" else "subspace"

    def errors_on(work: tuple[Setting, int]) -> list[float]:
        draw = Draw(*work)
        found = [fit(_with(method, choice), draw, measure) for choice in method.candidates]
        return [float("inf") if each.error is None else each.error for each in found]

    with ThreadPoolExecutor(jobs) as pool:
        every = list(pool.map(errors_on, [(setting, seed) for seed in seeds for setting in GRIDS[family]]))
    means = [statistics.fmean(errors) for errors in zip(*every, strict=True)]
    return sorted(zip(means, method.candidates, strict=True), key=lambda pair: pair[0])


def _with(method: Method, choice: Choice) -> Method:
    return replace(method, candidates=(choice,), tuned=None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a method's candidates on a family of data, by mean error, best first."""
    parser = argparse.ArgumentParser("python -m streaming_pca.experiments.tuning", description=main.__doc__)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("family", choices=GRIDS)
    parser.add_argument("--seeds", type=int, default=2, help=f"how many, from 0; below {FIRST_SEED}")
    given = parser.parse_args(arguments)
    if not 1 <= given.seeds <= FIRST_SEED:
        parser.exit(2, f"error: --seeds must lie between 1 and {FIRST_SEED}\n")
    for mean, choice in tune(METHODS[given.method], given.family, range(given.seeds)):
        sys.stdout.write(f"{mean:.4g}  {dict(choice)}\n")


if __name__ == "__main__":
    main()
