"""This side of the process that draws noise ahead: its pipes, and the thread that reads them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Protocol

from streaming_pca.privacy.noise_source import ANSWER, COMMAND, Kind, read_into

__all__ = ["Receiver", "Supply"]

# -P: nothing is imported from whatever folder this process was started in.
_SOURCE = [sys.executable, "-P", "-m", "streaming_pca.privacy.noise_source"]


class Receiver(Protocol):
    """Who ordered; called from the thread that reads."""

    def place_of(self, supply: Supply, number: int, size: int) -> memoryview | None:
        """Where the values of a command belong, as bytes; None if it was never given."""

    def arrived(self, supply: Supply, number: int) -> None:
        """The values of this command are in their place; for number 0, the process is there."""

    def ended(self, supply: Supply) -> None:
        """The process is gone; nothing is written to any place from here on."""


class Supply:
    """A process of :mod:`~streaming_pca.privacy.noise_source`.

    It is a new program, not a fork of this one: it has none of this one's memory.

    Parameters
    ----------
    receiver : Receiver

    Raises
    ------
    OSError
        The process could not be made.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._process = subprocess.Popen(
            _SOURCE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # a terminal's Ctrl-C is not for it
            # It multiplies no matrices: their threads would only cost memory.
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self._answers = self._process.stdin, self._process.stdout
        self._thread = threading.Thread(target=self._read, name="noise", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def order(self, number: int, kind: Kind, size: int, scale: float) -> None:
        """Ask for ``size`` draws, under a number that is not 0."""
        # A few commands fit any pipe, so this does not wait. An error says that the process has ended:
        # the thread notices.
        with contextlib.suppress(OSError, ValueError):
            self._commands.write(COMMAND.pack(number, kind, size, scale))

    def kill(self) -> None:
        """End the process; the receiver is told by the thread that reads."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and wait until nothing more is read from it."""
        self.kill()
        self._thread.join()

    def leave_to_parent(self) -> None:
        """Let go of it in the child of a fork: pipes that stay open would keep the process alive."""
        with contextlib.suppress(OSError):
            self._commands.close()
        with contextlib.suppress(OSError):
            self._answers.close()
        self._process.returncode = 0  # it is not ours to wait for

    def _read(self) -> None:
        answers = self._answers.fileno()
        header = bytearray(ANSWER.size)
        with contextlib.suppress(OSError):
            while read_into(answers, memoryview(header)):
                number, size = ANSWER.unpack(header)
                if number:
                    place = self._receiver.place_of(self, number, size)
                    # Half an answer is none.
                    if place is None or not read_into(answers, place):
                        break
                self._receiver.arrived(self, number)
        self._process.kill()
        self._process.wait()
        for pipe in (self._commands, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._receiver.ended(self)
