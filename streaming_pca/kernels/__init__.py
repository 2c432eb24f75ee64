"""Compiled kernels: exact, clipped sums of records on an integer lattice."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def _drop_stale_kernels(folder: Path, *called: Path) -> None:
    """Delete cached kernels of ``folder`` older than a source of it or of ``called``.

    numba keys a cached kernel on its own file, not on the files of the functions it calls: a change
    there would not take effect where the package is updated in place.
    """
    newest = max(source.stat().st_mtime for place in (folder, *called) for source in place.rglob("*.py"))
    for index in folder.rglob("__pycache__/*.nbi"):
        # Another process may be doing the same.
        with suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


_here = Path(__file__).parent
_drop_stale_kernels(_here)
# Estimators have kernels of their own, which clip and round as those of this folder do.
_drop_stale_kernels(_here.parent / "estimators", _here)
