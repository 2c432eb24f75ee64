"""Compiled kernels: exact, clipped sums of records on an integer lattice.

Importing them imports no compiler: numba is loaded when the first kernel is called.

numba keys a cached kernel on its own file, not on the files of the functions that it calls. A change there
would not take effect where the package is updated in place, so caches of other sources are emptied here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

__all__ = ["SHIPPED", "Intrinsic", "Kernel", "load_compiler", "njit"]

SHIPPED = Path(sys.prefix, "share", "streaming-pca", "kernels")
"""Cache that deploy/Dockerfile fills. numba takes a kernel from it for the same processor alone."""

F = TypeVar("F", bound=Callable[..., Any])

_making = threading.RLock()


class Kernel:
    """Function that numba compiles; numba's dispatcher is made at its first use.

    Parameters
    ----------
    function : callable
    options : dict
        Arguments of ``numba.njit``.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.py_func = function
        self._options = options
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._dispatcher: Any = None

    @property
    def dispatcher(self) -> Any:
        """The dispatcher of numba, whose attributes this object has too."""
        if self._dispatcher is None:
            # Two dispatchers of one function would both compile it.
            with _making:
                if self._dispatcher is None:
                    made = load_compiler().njit(**self._options)(self.py_func)
                    # Absent where numba is told to interpret (NUMBA_DISABLE_JIT).
                    if hasattr(made, "_cache"):
                        _keep_if_possible(made._cache)
                    self._dispatcher = made
        return self._dispatcher

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)


class Intrinsic:
    """Function that writes instructions into kernels; numba learns of it when a kernel needs it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    @property
    def made(self) -> Any:
        """The intrinsic of numba."""
        return _made(self.py_func)


@cache
def _made(function: Callable[..., Any]) -> Any:
    from numba.extending import intrinsic

    return intrinsic(function)


def njit(**options: Any) -> Callable[[F], F]:
    """Return a decorator that makes a :class:`Kernel`, with the options of ``numba.njit``."""

    def decorate(function: F) -> F:
        return cast(F, Kernel(function, options))

    return decorate


@cache
def load_compiler() -> Any:
    """Import numba, and teach it what kernels call: other kernels, and intrinsics."""
    import numba
    from numba.core.registry import cpu_target
    from numba.core.types import Dispatcher
    from numba.extending import typeof_impl

    def type_of_intrinsic(value: Intrinsic, context: Any) -> Any:
        made = value.made
        typing = cpu_target.typing_context
        typing.refresh()
        return typing.resolve_value_type(made)

    typeof_impl.register(Kernel)(lambda value, context: Dispatcher(value.dispatcher))
    typeof_impl.register(Intrinsic)(type_of_intrinsic)
    return numba


def _keep_if_possible(kernels: Any) -> None:
    """Let numba use a kernel that its cache has no room for: its first call would raise OSError."""
    save = kernels.save_overload

    def save_overload(*args: Any) -> None:
        with suppress(OSError):
            save(*args)

    kernels.save_overload = save_overload


def _drop_stale_kernels(folder: Path, *called: Path) -> None:
    """Delete cached kernels of ``folder`` older than a source of it or of ``called``."""
    newest = max(source.stat().st_mtime for place in (folder, *called) for source in place.rglob("*.py"))
    for index in folder.rglob("__pycache__/*.nbi"):
        # Another process may be doing the same.
        with suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


def _refresh_cache(cache: Path, package: Path, shipped: Path) -> None:
    """Empty ``cache``, a NUMBA_CACHE_DIR, of a package's kernels of other sources; copy shipped ones there.

    A mark in the folder names the sources. Times of files do not: an image's layers round them.
    """
    texts = {path: path.read_bytes() for path in sorted(package.rglob("*.py"))}
    sources = [path for path, text in texts.items() if "kernels" in path.parts or b"njit" in text]
    digest = hashlib.sha256(b"".join(texts[path] for path in sources)).hexdigest()
    mark = f"{package.name}-{hashlib.sha256(bytes(package)).hexdigest()[:16]}"
    if _read(cache / mark) == digest:
        return
    for folder in {source.parent for source in sources}:
        # numba's name for the folder's kernels.
        own = cache / f"{folder.name}_{hashlib.sha1(bytes(folder), usedforsecurity=False).hexdigest()}"
        for index in own.glob("*.nbi"):
            index.unlink(missing_ok=True)
    if shipped != cache and _read(shipped / mark) == digest:
        for file in shipped.rglob("*.nb?"):
            _copy_whole(file, cache / file.relative_to(shipped))
    cache.mkdir(parents=True, exist_ok=True)
    (cache / mark).write_text(digest)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _copy_whole(file: Path, to: Path) -> None:
    """Copy a file so that no other process sees a part of it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f"{to.name}.{os.getpid()}")
    shutil.copyfile(file, part)
    part.replace(to)


_here = Path(__file__).parent
_drop_stale_kernels(_here)
# Estimators have kernels of their own, which clip and round as those of this folder do.
_drop_stale_kernels(_here.parent / "estimators", _here)
if os.environ.get("NUMBA_CACHE_DIR"):
    # Where it cannot be written numba does not use it either.
    with suppress(OSError):
        _refresh_cache(Path(os.environ["NUMBA_CACHE_DIR"]), _here.parent, SHIPPED)
