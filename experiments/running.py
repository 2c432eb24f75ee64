"""Runs of experiments: every method on the same draws; interrupted runs can be resumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.experiment import (
    FIRST_SEED,
    Experiment,
    JointMethod,
    Method,
    Panel,
    Place,
    Row,
    Table,
    row_key,
)
from experiments.results import ResultFile
from experiments.settings import Measure
from streaming_pca.estimators.base import Estimator, Outcome
from streaming_pca.estimators.factory import configure, records_to_take

__all__ = ["Fit", "Work", "fit", "left_to_do", "released", "run"]


class Fit(NamedTuple):
    """Result of one method on one draw, with fields of :class:`~experiments.experiment.Row`."""

    error: float | None = None
    seconds: float | None = None
    learnt: float | None = None
    batches: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Work:
    """Methods still to run on one draw."""

    setting: Place
    seed: int
    methods: tuple[Method, ...]


def fit(method: Method, draw: Any, measure: Measure) -> Fit:
    """Run a method over the records of a draw in order; a joint method gets the whole draw."""
    begun = time.perf_counter()
    if isinstance(method, JointMethod):
        components, learnt, batches = method.components(draw), 1, 1
    else:
        try:
            estimator = _configured(method, draw.setting)
            state = estimator.init(draw.start())
            # The plan refuses impossible noise scales and batch sizes.
            estimator.plan(state)
        except ValueError as refusal:
            return Fit(note=" ".join(str(refusal).split()))
        components, learnt, batches = _streamed(estimator, state, draw)
    seconds = time.perf_counter() - begun
    return Fit(draw.error(measure, components), seconds, learnt / batches, batches)


def released(method: Method, draw: Any) -> NDArray[np.float64]:
    """Return the components (k, d) of an estimator after all records of a draw."""
    estimator = _configured(method, draw.setting)
    return _streamed(estimator, estimator.init(draw.start()), draw)[0]


def _streamed(estimator: Estimator[Any, Any], state: Any, draw: Any) -> tuple[NDArray[np.float64], int, int]:
    """Return components, and the numbers of learnt batches and of all batches."""
    first = batches = learnt = 0
    with np.errstate(all="ignore"):
        while first < draw.setting.n:
            count = records_to_take(estimator.plan(state).count, draw.setting.n - first)
            state = estimator.update(state, draw.batch(first, count))
            first += count
            batches += 1
            learnt += state.outcome in (None, Outcome.LEARNT.value)
        return estimator.release(state).components, learnt, batches


def _configured(method: Method, setting: Any) -> Estimator[Any, Any]:
    return configure(
        setting.dim,
        n_components=setting.k,
        epsilon=setting.epsilon,
        delta=setting.delta,
        estimator=method.variant or method.id,
        centering="none",
        bounds=None,
        scale=None,
        private=method.private,
        options=method.options_for(setting),
        n_records=setting.n,
    )


def left_to_do(experiment: Experiment, seeds: Sequence[int], rows: Sequence[Row]) -> list[Work]:
    """List the fits without a row, grouped by draw; seeds in order, settings within a seed."""
    done = {(row.key, row.seed) for row in rows if row.error is not None}
    work = []
    for seed in seeds:
        for setting in experiment.settings():
            keys = {row_key(setting, method): method for method in experiment.methods}
            missing = tuple(
                method
                for key, method in keys.items()
                if (key, seed) not in done and method.runs_on(setting, seed - FIRST_SEED)
            )
            if missing:
                work.append(Work(setting, seed, missing))
    return work


def run(
    experiment: Experiment,
    seeds: Sequence[int],
    file: ResultFile,
    jobs: int = 1,
    progress: Callable[[Place, Method], None] = lambda setting, method: None,
) -> Table:
    """Run the missing fits, add them to the file, and return the table of all.

    Parameters
    ----------
    experiment : Experiment
    seeds : sequence of int
    file : ResultFile
        Results; fits with a row are not run again, and rows of settings or options that the experiment
        no longer has are dropped at the end.
    jobs : int
        Number of concurrent draws and threads; kernels release the interpreter's lock.
    progress : callable
        Called after each fit.
    """
    places_of = {
        setting: [(panel, x) for panel in experiment.panels for x, there in panel.points if there == setting]
        for setting in experiment.settings()
    }
    stopped = threading.Event()

    def do(work: Work) -> None:
        draw = work.setting.draw(work.seed)
        for method in work.methods:
            if stopped.is_set():
                return
            found = fit(method, draw, experiment.measure)
            key = row_key(work.setting, method)
            row = Row("", 0.0, method.key, work.seed, key=key, **found._asdict())
            file.append(_at(row, panel, x) for panel, x in places_of[work.setting])
            progress(work.setting, method)

    with ThreadPoolExecutor(jobs) as pool:
        waiting: set[Future[None]] = {
            pool.submit(do, work) for work in left_to_do(experiment, seeds, file.rows)
        }
        try:
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    file.replace(_current(experiment, file.rows))
    return Table(experiment, [row for row in file.rows if row.seed in seeds])


def _at(row: Row, panel: Panel, x: float) -> Row:
    """Return the row of the same fit at a place."""
    return replace(row, panel=panel.key, x=x, paper=panel.printed.get((row.method, x)))


def _current(experiment: Experiment, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that belong to the current experiment, in its order."""
    found = {(row.key, row.seed): row for row in rows}
    seeds = sorted({row.seed for row in rows})
    return [
        _at(replace(row, method=method.key), panel, x)
        for panel in experiment.panels
        for x, setting in panel.points
        for method in experiment.methods
        for seed in seeds
        if (row := found.get((row_key(setting, method), seed))) is not None
    ]
