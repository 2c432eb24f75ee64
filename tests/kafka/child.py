"""Worker process that can strike itself at a numbered step.

Only the child is patched: production code has no hook. :class:`tests.kafka.stream.Child` forks it from
a warm server (warm_child.py), so that a child starts in milliseconds.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.privacy.randomness import replace_noise_sampler
from streaming_pca.service import session
from streaming_pca.service.commit import admission
from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.input import buffer, partition_reader
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.kafka import clients
from streaming_pca.service.worker import run_worker
from tests.privacy.noise import ScriptedSampler


@dataclass(frozen=True)
class Strike:
    """Action of the child against itself, at the ``nth`` occurrence of a step of ``CheckpointWriter``.

    ``what`` is a signal's name, or "wait": sleep until a file named ``go`` appears.
    """

    step: str
    when: Literal["before", "after"] = "after"
    nth: int = 1
    what: str = "SIGKILL"

    def hit(self, directory: Path) -> None:
        """Create the file ``struck``, then act."""
        (directory / "struck").touch()
        if self.what == "wait":
            while not (directory / "go").exists():
                time.sleep(0.02)
        else:
            # The main thread takes a signal to the process, and this thread would keep running until then.
            signal.pthread_kill(threading.get_ident(), getattr(signal, self.what))


def install(strike: Strike, directory: Path, writer: Any = CheckpointWriter, method: str = "_step") -> None:
    """Patch the method that names a writer's steps, in this process."""
    original = getattr(writer, method)
    reached = 0

    @contextmanager
    def step(self: Any, name: str) -> Iterator[None]:
        nonlocal reached
        with original(self, name):
            reached += name == strike.step
            mine = name == strike.step and reached == strike.nth
            if mine and strike.when == "before":
                strike.hit(directory)
            yield
            if mine and strike.when == "after":
                strike.hit(directory)

    replace(writer, method, step)


def replace(place: Any, name: str, value: Callable[..., Any]) -> None:
    """Replace a function of a module or class in this process; it must exist."""
    assert hasattr(place, name)
    setattr(place, name, value)


def main(
    settings: list[dict[str, Any]],
    directory: str,
    strike: Strike | None = None,
    noise: bool = True,
    fetch_bytes: int | None = None,
    telltale: str | None = None,
    ahead: bool = True,
    lost_batches: int = 0,
    collector: bool = True,
    poll_seconds: float | None = None,
) -> None:
    """Run a worker, with its log and its peak memory in files of ``directory``."""
    if not collector:
        gc.disable()
    log = os.open(Path(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Show the stacks when a test waits in vain (Child.ends).
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if strike is not None:
        install(strike, Path(directory))
    if fetch_bytes is not None:
        shrink_fetches(fetch_bytes)
    if telltale is not None:
        break_assembly(telltale)
    if lost_batches:
        lose(lost_batches)
    if poll_seconds is not None:
        look_every(poll_seconds)
    Path(directory, "started").touch()
    with nullcontext() if noise else replace_noise_sampler(ScriptedSampler()):
        reader = PartitionReader if ahead else LazyReader
        status = run_worker([Settings(**each) for each in settings], make_reader=reader)
    Path(directory, "peak").write_text(str(peak_memory()))
    sys.exit(status)


def shrink_fetches(fetch_bytes: int) -> None:
    """Limit every poll of the input to a few records."""
    original = clients.reading_consumer

    def reading_consumer(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **(kwargs | {"fetch_bytes": fetch_bytes, "max_poll_records": 7}))

    replace(partition_reader, "reading_consumer", reading_consumer)


def break_assembly(telltale: str) -> None:
    """Make the assembly of a batch fail with a text that would reveal its records."""

    def interleave(*args: Any) -> Any:
        raise MemoryError(telltale)

    replace(buffer, "interleave", interleave)


class LazyReader(PartitionReader):
    """Reader that reads only when a batch needs records."""

    ahead = False


def lose(times: int) -> None:
    """Lose the records of a batch during its computation, the first ``times`` times."""
    original, left = vars(session)["compute_batch"], [times]

    def compute_batch(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise SessionLost("an executor is gone")
        return original(*args)

    replace(session, "compute_batch", compute_batch)


def look_every(seconds: float) -> None:
    """Let a stream without records, and a standby, look at the ledger this often."""
    session._STATUS_POLL_SECONDS = admission._POLL_SECONDS = seconds


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


def warm_up() -> None:
    """Load the compiled kernels, so that forked children have them."""
    stream = StreamSettings(name="warm", input="up", dim=4, rank=1, epsilon=1, delta=1e-6)
    for dtype in (np.float32, np.float64):
        state = stream.build_estimator().init(np.random.default_rng(0))
        stream.build_estimator().update(state, ArrayBatch.of_vectors(np.ones((8, 4), dtype)))
