"""Kernels in NUMBA_CACHE_DIR match the sources; an image ships its own kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_pca.kernels import _refresh_cache
from streaming_pca.kernels.rounding import exponent
from tests.waiting import LIMIT


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Create a package: a called kernel, a kernel that calls it, a module without kernels."""
    texts = {"kernels/called.py": "x = 1\n", "estimators/caller.py": "njit\n", "service/other.py": "y = 1\n"}
    for name, text in texts.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "package"


def folder_of(cache: Path, folder: Path) -> Path:
    """Return numba's folder for the kernels of a source folder."""
    locator = type(exponent._cache._impl.locator)
    return cache / locator.get_suitable_cache_subpath(str(folder / "any.py"))


def kernel_of(cache: Path, folder: Path) -> Path:
    """Write an index and a kernel for a folder's module in numba's layout."""
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
    # Its sources are unknown, although it is newer than all of them.
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
    # An image's layers round times to whole seconds.
    for source in package.rglob("*.py"):
        os.utime(source, (1_600_000_000, 1_600_000_000))
    assert len(taken(tmp_path / "layers")) == 2
    (package / "kernels" / "called.py").write_text("x = 2\n")
    assert taken(tmp_path / "changed") == []


# -- a cache that is damaged, full, or nowhere -----------------------------------------


def call(cache: Path, home: Path) -> tuple[int, str, str]:
    """Call a kernel in a new process; return its status, its output, and its complaints."""
    code = (
        "import numpy as np; from streaming_pca.kernels.rounding import exponent; "
        "print(int(exponent(np.array([[8.0]]))), "
        "sum(exponent.stats.cache_hits.values()))"
    )
    environment = os.environ | {"HOME": str(home), "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment, timeout=LIMIT
    )
    return done.returncode, done.stdout, done.stderr


def flipped(data: bytes) -> bytes:
    """Return the data with a flipped bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "cut at its end": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "a bit": flipped,
    "no pickle": lambda data: b"\xff" * 100,
    "longer": lambda data: data + b"x",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with a kernel."""
    cache = tmp_path_factory.mktemp("kernels")
    assert call(cache, cache) == (0, "4 0\n", "")
    assert call(cache, cache) == (0, "4 1\n", "")
    return cache


CALLS = """
import sys
import numpy as np
from streaming_pca.kernels import Kernel
from streaming_pca.kernels.rounding import exponent
for _ in sys.stdin:
    loaded = Kernel(exponent.py_func, exponent._options)
    print(int(loaded(np.array([[8.0]]))), sum(loaded.stats.cache_hits.values()), flush=True)
"""
"""Program that loads and calls a kernel for each line of its input."""


def test_a_damaged_cache_is_compiled_anew_and_stops_nobody(filled: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(filled, cache)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CALLS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HOME": str(tmp_path), "NUMBA_CACHE_DIR": str(cache)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for kind in ("*.nbi", "*.nbc"):
            for name, damage in DAMAGE.items():
                for path in (struck := list(cache.rglob(kind))):
                    path.write_bytes(damage(path.read_bytes()))
                assert struck
                # Compiled, and then in an intact cache again.
                for expected in ("4 0\n", "4 1\n"):
                    print(file=process.stdin, flush=True)
                    assert process.stdout.readline() == expected, f"{kind}, {name}"
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert call(cache, tmp_path) == (0, "4 1\n", "")


def test_a_cache_that_everybody_may_write_is_not_read(filled: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(filled, cache)
    for folder in (path for path in cache.rglob("*") if path.is_dir()):
        folder.chmod(0o777)
    assert call(cache, tmp_path) == (0, "4 0\n", "")


def test_without_any_folder_to_write_kernels_are_kept_nowhere(tmp_path: Path) -> None:
    """A container with a read-only root has no writable folder: sources, user or temporary."""
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import numba.core.caching as caching, tempfile, streaming_pca.kernels as kernels\n"
        "def refuse(*args, **kwargs): raise OSError(30, 'Read-only file system')\n"
        "caching.os.makedirs = refuse; caching.tempfile.TemporaryFile = refuse\n"
        "scratch = {scratch}\n"
        "if not scratch: tempfile.mkdtemp = refuse\n"
        "import numpy as np\nfrom streaming_pca.kernels.rounding import exponent\n"
        "print(int(exponent(np.array([[8.0]]))))\n"
    )
    for scratch in (True, False):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code.format(scratch=scratch)],
            capture_output=True,
            text=True,
            env={name: v for name, v in os.environ.items() if name != "NUMBA_CACHE_DIR"}
            | {"TMPDIR": str(home)},
            timeout=LIMIT,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", ""), done.stderr
        # The process's temporary cache was deleted with it.
        assert list(home.iterdir()) == []


@pytest.mark.parametrize(("patience", "reported"), [(0.01, 1), (60.0, 0)])
def test_a_compile_that_takes_long_says_so_once(tmp_path: Path, patience: float, reported: int) -> None:
    code = (
        "import logging; import numpy as np; import streaming_pca.kernels as kernels\n"
        "logging.basicConfig(level=logging.INFO, format='%(name)s %(levelname)s %(message)s')\n"
        f"kernels._PATIENCE = {patience}\n"
        "from streaming_pca.kernels.rounding import exponent\n"
        "for dtype in (np.float64, np.float32): exponent(np.ones((2, 2), dtype))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("streaming_pca.kernels INFO compiling kernels") == reported
