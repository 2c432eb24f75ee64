"""Tuning of the methods' options: choice of the candidate with the least mean error on a grid.

This follows [DunglerSanyal2026, appendix F.2]. The seeds are below the seeds of the figures. The results are
the ``tuned`` mappings of :mod:`experiments.methods`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from experiments.experiment import FIRST_SEED
from experiments.methods import METHODS, Choice, TunedMethod
from experiments.papers.dungler_sanyal import eigenvalues
from experiments.papers.nguyen_ene_nguyen import unit_gaussian, unit_rows
from experiments.running import fit
from experiments.settings import Draw, Family, Measure, Setting

__all__ = ["GRIDS", "main", "tune"]

_N, _DIM = 200_000, 50

GRIDS: Mapping[Family, tuple[Setting, ...]] = {
    "spiked": (
        Setting("spiked", 50_000, 100, eigenvalues(5, 5.0), 0.025),
        Setting("spiked", 50_000, 200, eigenvalues(2, 5.0), 0.5),
        Setting("spiked", 100_000, 50, eigenvalues(2, 1.0), 0.025),
    ),
    "gaussian": (
        Setting("gaussian", 50_000, 200, eigenvalues(2, 5.0), 1.0),
        Setting("gaussian", 200_000, 20, eigenvalues(2, 5.0), 0.5),
        unit_gaussian(_N, _DIM),
    ),
    "coherent": tuple(unit_rows(_N, _DIM, carriers) for carriers in (_N // 80, _N // 4)),
}
"""Settings for the mean error of a candidate, by family."""


def tune(
    method: TunedMethod, family: Family, seeds: Sequence[int], jobs: int = 2
) -> list[tuple[float, Choice]]:
    """Return the candidates' mean errors, best first; infinite if one refuses a setting."""
    measure: Measure = "sine" if family == "coherent" else "subspace"
    tried = [replace(method, candidates=(choice,), tuned=None) for choice in method.candidates]

    def errors_on(work: tuple[Setting, int]) -> list[float]:
        draw = Draw(*work)
        found = [fit(each, draw, measure).error for each in tried]
        return [float("inf") if error is None else error for error in found]

    with ThreadPoolExecutor(jobs) as pool:
        every = list(pool.map(errors_on, [(setting, seed) for seed in seeds for setting in GRIDS[family]]))
    means = [statistics.fmean(errors) for errors in zip(*every, strict=True)]
    return sorted(zip(means, method.candidates, strict=True), key=lambda pair: pair[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a method's candidates on a family of data, by mean error, best first."""
    parser = argparse.ArgumentParser("python -m experiments.tuning", description=main.__doc__)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("family", choices=GRIDS)
    parser.add_argument("--seeds", type=int, default=2, help=f"trials, from seed 0; below {FIRST_SEED}")
    given = parser.parse_args(arguments)
    if not 1 <= given.seeds <= FIRST_SEED:
        parser.exit(2, f"error: --seeds must lie between 1 and {FIRST_SEED}\n")
    for mean, choice in tune(METHODS[given.method], given.family, range(given.seeds)):
        sys.stdout.write(f"{mean:.4g}  {dict(choice)}\n")


if __name__ == "__main__":
    main()
