"""Linear algebra: exact sums on a lattice, compiled clipping kernels, subspaces."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def _drop_stale_kernels(folder: Path) -> None:
    """Forget compiled kernels that are older than any source of the folder.

    numba keys a kernel on the file that it stands in, not on those whose functions it calls: a mend
    in one of them would not take effect where the package is updated in place.
    """
    newest = max(source.stat().st_mtime for source in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        # Another process may be doing the same.
        with suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


_drop_stale_kernels(Path(__file__).parent)
