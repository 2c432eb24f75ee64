"""Kernels in NUMBA_CACHE_DIR are of these sources, and an image brings its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streaming_pca.kernels import _refresh_cache
from streaming_pca.kernels.rounding import exponent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a kernel that is called, one that calls it, and a module without any."""
    texts = {"kernels/called.py": "x = 1\n", "estimators/caller.py": "njit\n", "service/other.py": "y = 1\n"}
    for name, text in texts.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "package"


def folder_of(cache: Path, folder: Path) -> Path:
    """numba's own folder for the kernels of a folder."""
    locator = type(exponent._cache._impl.locator)
    return cache / locator.get_suitable_cache_subpath(str(folder / "any.py"))


def kernel_of(cache: Path, folder: Path) -> Path:
    """An index and a kernel of a module of a folder, as numba lays them down."""
    index = folder_of(cache, folder) / "caller.f-1.py311.nbi"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_bytes(b"index")
    index.with_suffix(".1.nbc").write_bytes(b"kernel")
    return index


def test_a_change_of_a_called_function_empties_the_cache_of_its_callers(
    tmp_path: Path, package: Path
) -> None:
    cache, none = tmp_path / "cache", tmp_path / "none"
    before = kernel_of(cache, package / "estimators")
    strange = kernel_of(cache, tmp_path / "elsewhere" / "estimators")
    _refresh_cache(cache, package, none)
    # Of unknown sources, though newer than all of them.
    assert not before.exists()
    of_these = kernel_of(cache, package / "estimators")
    (package / "service" / "other.py").write_text("y = 2\n")
    _refresh_cache(cache, package, none)
    assert of_these.exists()
    source = package / "kernels" / "called.py"
    times = (source.stat().st_atime_ns, source.stat().st_mtime_ns)
    source.write_text("x = 2\n")
    os.utime(source, ns=times)
    _refresh_cache(cache, package, none)
    assert not of_these.exists()
    assert strange.exists()


def test_shipped_kernels_of_these_sources_are_taken_and_of_others_not(tmp_path: Path, package: Path) -> None:
    shipped = tmp_path / "shipped"
    _refresh_cache(shipped, package, shipped)
    index = kernel_of(shipped, package / "estimators")
    _refresh_cache(shipped, package, shipped)
    assert index.exists()

    def taken(cache: Path) -> list[str]:
        _refresh_cache(cache, package, shipped)
        assert not list(cache.rglob("*.[0-9]*[0-9]")), "a part of a file is left"
        return sorted(path.name for path in cache.rglob("*.nb?"))

    assert taken(tmp_path / "new") == ["caller.f-1.py311.1.nbc", "caller.f-1.py311.nbi"]
    assert (tmp_path / "new" / index.relative_to(shipped)).read_bytes() == b"index"
    # An image's layers keep whole seconds.
    for source in package.rglob("*.py"):
        os.utime(source, (1_600_000_000, 1_600_000_000))
    assert len(taken(tmp_path / "layers")) == 2
    (package / "kernels" / "called.py").write_text("x = 2\n")
    assert taken(tmp_path / "changed") == []
