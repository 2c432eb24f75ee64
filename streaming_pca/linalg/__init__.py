"""Linear algebra: exact sums on a lattice, compiled clipping kernels, subspaces."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def _drop_stale_kernels(folder: Path, *called: Path) -> None:
    """Forget a folder's compiled kernels that are older than any source of it, or of folders called from it.

    numba keys a kernel on the file that it stands in, not on those whose functions it calls: a mend
    in one of them would not take effect where the package is updated in place.
    """
    newest = max(source.stat().st_mtime for place in (folder, *called) for source in place.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        # Another process may be doing the same.
        with suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


_here = Path(__file__).parent
_drop_stale_kernels(_here)
# Estimators have kernels of their own, which clip and round as those of this folder do.
_drop_stale_kernels(_here.parent / "estimators", _here)
