"""Progress of a command: bars on a terminal, otherwise a line on standard error every ten seconds.

Standard output remains free for results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

_SECONDS = 10.0  # interval of the lines


class Task:
    def __init__(self, description: str, total: int | None, show: Callable[[Task], None]) -> None:
        self.description, self.total = description, total
        self.completed = 0
        self.finished = False
        self.bar: Any = None  # id of its bar
        self._show = show
        self._since = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self.complete(self.completed + amount)

    def complete(self, amount: int) -> None:
        """Set the completed amount; the step is finished at the total."""
        self.completed = amount
        self.finished = self.finished or amount == self.total
        self._show(self)

    def describe(self, description: str) -> None:
        self.description = description
        self._show(self)

    def finish(self) -> None:
        self.finished = True
        self._show(self)

    @property
    def line(self) -> str:
        amount = f": {self.completed:,}" if self.completed or self.total else ""
        if self.total:
            amount += f" of {self.total:,} ({self.completed / self.total:.0%})"
        return f"{self.description}{amount}, {time.monotonic() - self._since:.0f} s"


class Progress:
    """Display of a command's steps while a block runs; its bars disappear at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: list[Task] = []
        self._bars: Bars | None = _bars(console) if _is_terminal(console) else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print_lines, name="progress", daemon=True)

    def task(self, description: str, total: int | None = None) -> Task:
        made = Task(description, total, self._show)
        if self._bars is not None:
            made.bar = self._bars.add_task(description, total=total)
        self._tasks.append(made)
        return made

    def _show(self, task: Task) -> None:
        if self._bars is None:
            return
        # A bar without a total moves until its step is finished.
        total = task.total if task.total is not None or not task.finished else 1
        completed = total if task.finished and total is not None else task.completed
        self._bars.update(task.bar, description=task.description, completed=completed, total=total)

    def _print_lines(self) -> None:
        while not self._ended.wait(_SECONDS):
            for task in [each for each in self._tasks if not each.finished]:
                self._console.print(task.line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bars is None:
            self._thread.start()
        else:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            return
        self._ended.set()
        self._thread.join()


def _is_terminal(console: Console) -> bool:
    # Rich alone also takes a pipe for a terminal if FORCE_COLOR is set, as many CI systems do.
    isatty = getattr(console.file, "isatty", None)
    return console.is_terminal and not console.is_dumb_terminal and isatty is not None and isatty()


def _bars(console: Console) -> Bars:
    # Imported here, because most commands end before they would show a bar.
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.progress import Task as Bar
    from rich.text import Text

    class Amount(MofNCompleteColumn):
        def render(self, task: Bar) -> Text:
            return Text() if task.total in (None, 1) else super().render(task)

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), Amount(), TimeElapsedColumn())
    # Redirected, text for standard output would go to this console, which is standard error.
    return Bars(*columns, console=console, transient=True, redirect_stdout=False)
