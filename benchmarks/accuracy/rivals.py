"""Rivals in other libraries, and Oja's algorithm without privacy.

diffprivlib 0.6.6 cannot be imported with scikit-learn 1.9 (only up to 1.6), and OpenDP's PCA needs
``opendp[scikit-learn]``. Therefore each runs in a separate process, possibly with another Python, and is
killed after a time limit. To create such a Python::

    python -m venv rivals
    rivals/bin/pip install diffprivlib 'scikit-learn<1.7' 'opendp[scikit-learn]==0.16.0'
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.subspace import orthonormalise

__all__ = ["LARGEST_DIM", "LIBRARIES", "OJA_RATES", "TIME_LIMIT", "Skipped", "library_pca", "oja"]

Matrix = NDArray[np.float64]

OJA_RATES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Values of c in Oja's learning rates c/(trace (t + c)), where trace is the mean squared norm of a record."""

LARGEST_DIM = 10
"""Largest number of features for the libraries' PCA.

Both draw eigenvectors by rejection, and the acceptance rate falls with d. At k = 2, for any n, diffprivlib
takes 7 to 17 s at d = 8, 80 s at d = 10, and did not finish within 290 s at d = 16; OpenDP takes 3 to 6 s at
d = 8, and did not finish within 240 s at d = 16."""

TIME_LIMIT = 120.0
"""Time limit in seconds for one fit by a library."""

_OJA_STREAM = 2
_BLOCK = 2**12
_GROWTH = 1e6
_TRACE_RECORDS = 1000


class Skipped(Exception):
    """A rival has no result; the message is the reason."""


def oja(
    records: NDArray[np.float32], k: int, seed: int, rates: Sequence[float] = OJA_RATES, centred: bool = False
) -> dict[float, Matrix]:
    """Run Oja's algorithm [DunglerSanyal2026, Alg. 7] at all rates, in one pass.

    The QR of line 4 is postponed until columns may have grown by 1e6: QR does not change the span that
    later steps produce.

    Parameters
    ----------
    records : (n, d) or (n, r, d)
    k : int
    seed : int
        Seed of line 1.
    rates : sequence of float
    centred : bool
        If True, subtract the exact mean first.

    Returns
    -------
    dict
        Components (k, d) with orthonormal rows, by rate.
    """
    factors = records[:, None, :] if records.ndim == 2 else records
    centre = factors.mean(axis=(0, 1), dtype=np.float64) if centred else np.zeros(factors.shape[-1])
    first = factors[:_TRACE_RECORDS] - centre
    trace = float(np.square(first).sum() / len(first)) or 1.0
    rng = np.random.default_rng([seed, _OJA_STREAM])
    start = orthonormalise(rng.standard_normal((factors.shape[-1], k)))
    # The columns of all rates are in one matrix, so that a step is two products.
    bases = np.tile(start, len(rates))
    numbers = np.repeat(np.asarray(rates, dtype=np.float64), k)
    growth = 1.0
    for begin in range(0, len(factors), _BLOCK):
        block = factors[begin : begin + _BLOCK] - centre
        squared = np.square(block).sum(axis=(1, 2))
        for i, (rows, size) in enumerate(zip(block, squared.tolist(), strict=True)):
            etas = numbers / (trace * (begin + i + 1 + numbers))
            growth *= 1.0 + float(etas.max()) * size
            bases += rows.T @ ((rows @ bases) * etas)
            if growth > _GROWTH:
                bases = _orthonormal_each(bases, k)
                growth = 1.0
    bases = _orthonormal_each(bases, k)
    return {rate: np.ascontiguousarray(bases[:, i * k : (i + 1) * k].T) for i, rate in enumerate(rates)}


def _orthonormal_each(bases: Matrix, k: int) -> Matrix:
    """Orthonormalise every k columns of (d, g k)."""
    dim = len(bases)
    q = np.linalg.qr(bases.reshape(dim, -1, k).transpose(1, 0, 2))[0]
    return np.ascontiguousarray(q.transpose(1, 0, 2)).reshape(dim, -1)


_DIFFPRIVLIB = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from diffprivlib.models import PCA
records, k, epsilon, norm, seed = np.load(sys.argv[1]), *map(float, sys.argv[3:])
pca = PCA(int(k), epsilon=epsilon, data_norm=norm, centered=True, random_state=int(seed)).fit(records)
np.save(sys.argv[2], pca.components_)
"""

# Replacing one record has symmetric distance 2.
_OPENDP = """
import sys
import numpy as np
import opendp.prelude as dp
from opendp.extras.sklearn.decomposition import make_private_pca
dp.enable_features("contrib", "idealized-numerics")
records, k, epsilon, norm, seed = np.load(sys.argv[1]), *map(float, sys.argv[3:])
n, d = records.shape
domain = dp.numpy.array2_domain(norm=norm, p=2, origin=np.zeros(d), size=n, num_columns=d, T=float)
pca = make_private_pca(domain, dp.symmetric_distance(), epsilon, norm=norm, num_components=int(k))
assert pca.map(2) <= epsilon
np.save(sys.argv[2], pca(records).Vt[:int(k)])
"""

LIBRARIES = {"diffprivlib": _DIFFPRIVLIB, "opendp": _OPENDP}
"""Script of each library, run as ``python -c SCRIPT IN.npy OUT.npy k epsilon norm seed``."""


def library_pca(
    library: str,
    records: NDArray[np.float32],
    k: int,
    epsilon: float,
    seed: int,
    python: str = sys.executable,
    time_limit: float = TIME_LIMIT,
) -> Matrix:
    """Return components (k, d) of another library's PCA, at pure epsilon, without centring.

    It clips at the exact median of the records' norms, which a private algorithm cannot know, and which is
    the best choice for light tails.

    Raises
    ------
    Skipped
        If it cannot run, or exceeds the time limit.
    """
    if records.ndim != 2:
        raise Skipped("takes vectors only, and these records are factors")
    dim = records.shape[1]
    if dim > LARGEST_DIM:
        raise Skipped(f"d = {dim} > {LARGEST_DIM}: it draws by rejection, not in minutes at d = 16")
    norm = float(np.median(np.linalg.norm(records, axis=1)))
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "records.npy", Path(folder) / "components.npy"
        np.save(source, records.astype(np.float64))
        numbers = [repr(float(number)) for number in (k, epsilon, norm, seed)]
        command = [python, "-c", LIBRARIES[library], str(source), str(result), *numbers]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=time_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Skipped(f"did not finish within {time_limit:g} s") from None
        except OSError as error:
            raise Skipped(f"{python}: {error.strerror}") from None
        if done.returncode != 0:
            problem = _last_error(done.stderr)
            raise Skipped(f"does not run under {python} ({problem}): see --rivals-python")
        components: Matrix = np.load(result)
    # The library's rows are orthonormal only up to rounding; this module needs all digits.
    return np.ascontiguousarray(orthonormalise(np.ascontiguousarray(components.T)).T)


def _last_error(text: str) -> str:
    """Return the line of a traceback that contains the error."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line and not line.startswith(" ")]
    return (lines or text.splitlines() or ["no message"])[-1].strip()
