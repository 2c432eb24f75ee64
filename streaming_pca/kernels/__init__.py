"""Compiled kernels: exact, clipped sums of records on an integer lattice.

Importing them imports no compiler: numba is loaded when the first kernel is called.

numba keys a cached kernel on its own file, not on the files of the functions that it calls. A change there
would have no effect if the package is updated in place, so caches of other sources are emptied here.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import pickle  # nosec B403  # numba's own format of its cache
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

SHIPPED = Path(sys.prefix, "share", "streaming-pca", "kernels")
"""Cache that deploy/Dockerfile fills. numba takes a kernel from it for the same processor alone."""

F = TypeVar("F", bound=Callable[..., Any])

_making = threading.RLock()
_DIGEST = hashlib.sha256().digest_size


class Kernel:
    """Function that numba compiles, with these options of ``numba.njit``, at its first use."""

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
                    self._dispatcher = _new_dispatcher(self.py_func, self._options)
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

    @cached_property
    def made(self) -> Any:
        from numba.extending import intrinsic

        return intrinsic(self.py_func)


def njit(**options: Any) -> Callable[[F], F]:
    """Return a decorator that makes a :class:`Kernel`, with the options of ``numba.njit``."""
    return cast(Callable[[F], F], partial(Kernel, options=options))


@cache
def load_compiler() -> Any:
    """Import numba, and register the other kernels and the intrinsics that kernels call."""
    # SVML's roots differ from the processor's, and a record's scale must not depend on its neighbours.
    os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")
    import numba
    from numba.core.event import Listener, register
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
    register("numba:compile", type("Listening", (_SlowCompile, Listener), {})())  # type: ignore[no-untyped-call]
    return numba


class _SlowCompile:
    """Listener of numba that logs, after two seconds, why a caller waits; once in a process."""

    _told = False

    def on_start(self, event: Any) -> None:
        if not _SlowCompile._told and getattr(_timers, "depth", 0) == 0:
            _timers.timer = threading.Timer(_PATIENCE, self._tell)
            _timers.timer.daemon = True
            _timers.timer.start()
        _timers.depth = getattr(_timers, "depth", 0) + 1

    def on_end(self, event: Any) -> None:
        _timers.depth -= 1
        if not _timers.depth and (timer := getattr(_timers, "timer", None)) is not None:
            timer.cancel()

    def _tell(self) -> None:
        if not _SlowCompile._told:
            _SlowCompile._told = True
            _log.info("compiling kernels for their first use on this machine: this may take half a minute")


_timers = threading.local()
_log = logging.getLogger(__name__)
_PATIENCE = 2.0


def _new_dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Make numba's dispatcher; its cache must not stop a caller, whose batch is already charged."""
    numba = load_compiler()
    try:
        made = numba.njit(**options)(function)
    except RuntimeError:
        # No folder can be written: not the sources', not the user's, and not NUMBA_CACHE_DIR.
        if not options.get("cache"):
            raise
        _use_scratch(numba)
        try:
            made = numba.njit(**options)(function)
        except RuntimeError:
            made = numba.njit(**{name: value for name, value in options.items() if name != "cache"})(function)
    # Absent if numba interprets (NUMBA_DISABLE_JIT), or keeps no cache.
    if hasattr(getattr(made, "_cache", None), "_cache_file"):
        _distrust(made._cache)
    return made


def _use_scratch(numba: Any) -> None:
    """Keep kernels in a folder of this process and its helpers."""
    with suppress(OSError):
        folder = tempfile.mkdtemp(prefix="streaming-pca-kernels-")
        owner = os.getpid()
        numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = folder
        atexit.register(lambda: shutil.rmtree(folder, True) if os.getpid() == owner else None)


def _distrust(kernels: Any) -> None:
    """Compile a kernel whose cache is damaged, cut short, full or open to everybody.

    Each file ends with the digest of its content. Files changed since are not read: numba would end
    the process, or compute something else.
    """
    file, save, dump = kernels._cache_file, kernels.save_overload, kernels._cache_file._dump

    def save_overload(*args: Any) -> None:
        with suppress(OSError):
            save(*args)

    def dump_signed(value: Any) -> bytes:
        data: bytes = dump(value)
        return data + hashlib.sha256(data).digest()

    def load_index() -> dict[Any, str]:
        try:
            if os.stat(os.path.dirname(file._index_path)).st_mode & stat.S_IWOTH:
                return {}
            with open(file._index_path, "rb") as opened:
                version, data = pickle.load(opened), opened.read()  # nosec B301  # numba's own
            stamp, names = pickle.loads(_unchanged(data))  # nosec B301  # as we wrote it
        except Exception:
            # A damaged pickle may raise anything.
            return {}
        return dict(names) if version == file._version and stamp == file._source_stamp else {}

    def load_data(name: str) -> Any:
        data = Path(file._data_path(name)).read_bytes()
        return pickle.loads(_unchanged(data))  # nosec B301  # as we wrote it

    kernels.save_overload = save_overload
    file._dump, file._load_index, file._load_data = dump_signed, load_index, load_data


def _unchanged(data: bytes) -> bytes:
    """Return the data without its digest; raises OSError, which numba takes for a missing file."""
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise OSError("a cached kernel was changed")
    return body


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

    A mark in the folder names the sources. Times of files are not used: an image's layers round them.
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
            to = cache / file.relative_to(shipped)
            to.parent.mkdir(parents=True, exist_ok=True)
            # Renamed, so that no other process sees a part of it.
            part = to.with_name(f"{to.name}.{os.getpid()}")
            shutil.copyfile(file, part)
            part.replace(to)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / mark).write_text(digest)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


_here = Path(__file__).parent
_drop_stale_kernels(_here)
# Estimators have kernels too, which clip and round like the kernels of this folder.
_drop_stale_kernels(_here.parent / "estimators", _here)
if os.environ.get("NUMBA_CACHE_DIR"):
    # If it cannot be written, numba does not use it either.
    with suppress(OSError):
        _refresh_cache(Path(os.environ["NUMBA_CACHE_DIR"]), _here.parent, SHIPPED)
