"""Demo of the whole service on real records, compared with the exact subspace."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from streaming_pca.admin.produce import send_records
from streaming_pca.admin.topics import create_with_cap
from streaming_pca.client.releases import ReleaseReader
from streaming_pca.client.sending import Sending
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.loading import load_settings
from streaming_pca.config.settings import Settings
from streaming_pca.data.release import Release
from streaming_pca.demo import flights
from streaming_pca.demo.broker import EmbeddedBroker
from streaming_pca.dev.processes import Child
from streaming_pca.errors import UserError
from streaming_pca.estimators.kernel_cache import COMPILING, FIRST, are_cached, compile_apart, stop
from streaming_pca.linalg.subspace import subspace_error
from streaming_pca.privacy.ledger.entries import Cap
from streaming_pca.progress import Progress
from streaming_pca.service.commit.verification import verify_ledger

# Enough batches to show a falling error, at sqrt(6) times the noise of one batch.
_N_BATCHES = 6
_GROWTH = 2.0
_DEADLINE_SECONDS = 600.0  # time limit for the last release
_WIDE = 2000  # columns, more than a row of 144 variances needs
_END_SECONDS = 30.0  # time limit for the worker to exit after the last release

_SECONDS, _FIRST_SECONDS = 20, 45  # usual durations on two cores: of a run, and of the first, which compiles

_CHECKOUT = Path(__file__).parents[2]
"""Folder of the checkout; an installed wheel has neither its pages nor its Makefile."""
_PAGES = {
    "docs/tutorial/first-stream.md": "shows how to stream your own records in ten minutes",
    "docs/tutorial/library.md": "shows how to use the same engine in a program, without Kafka",
}
_COMMANDS = {
    "streaming-pca dev kafka": "starts Apache Kafka, for a stream of your own records",
    "from streaming_pca import PrivatePCA": "uses the same engine in a program, without Kafka",
}
_AGAIN = """\
{command} repeats this and shows it in a browser
      (the embedded broker has stopped, and this stream is deleted)\
"""
_STAYS = """\
this stream stays on {bootstrap}; to show it in a browser:

cat > {name}.toml <<'END'
{config}END
streaming-pca dashboard --config {name}.toml
"""
_SHOWN = "the dashboard shows this stream until Ctrl-C; its address follows"


class DemoFailed(UserError):
    """Failure of a part of the demo, with a one-line message."""

    exit_status = 1


@dataclass(frozen=True)
class _Point:
    release: Release
    error: float
    seconds: float


def run_demo(
    rank: int,
    epsilon: float,
    delta: float,
    plot: Path | None,
    bootstrap: str | None,
    seed: int,
    out: Console,
    err: Console,
    show: Callable[[Settings, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run the demo and return its summary, or raise DemoFailed.

    Without ``bootstrap`` it starts the embedded broker. It deletes all its files but ``plot``. ``show`` is
    called at the end with the stream's settings and the summary, while the broker still runs.
    """
    # Packages or the plot's folder may be missing, which must not be noticed after topics exist.
    flights.data_folder()
    if plot is not None:
        importlib.import_module("streaming_pca.plots").check_figure_path(plot)
    with contextlib.ExitStack() as stack:
        embedded = bootstrap is None
        if embedded:
            _say("starting the embedded broker (for trials only, never for production)", err)
        with Progress(err) as progress:
            starting = progress.task("starting the stream")
            if bootstrap is None:
                bootstrap = stack.enter_context(EmbeddedBroker()).bootstrap
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streaming-pca-demo-")))
            config = folder / "demo.toml"
            text = _configuration(bootstrap, embedded, rank, epsilon, delta, flights.N_RECORDS)
            config.write_text(text)
            settings = load_settings(config)
            if not embedded:  # messages name the option
                settings = settings.model_copy(
                    update={"kafka": KafkaSettings.of_argument("--bootstrap", bootstrap)}
                )
            create_with_cap([settings], Cap(epsilon=epsilon, delta=delta), "basic", 3, 1)
            starting.finish()
            compiler = None
            if are_cached([FIRST]):
                _say(f"this takes about {_SECONDS} seconds on two cores", err)
            else:
                compiler = compile_apart([FIRST])
                stack.callback(compiler.wait)
                stack.callback(stop, compiler)
                _say(f"this takes about {_FIRST_SECONDS} seconds on two cores, including {COMPILING}", err)
            reading = progress.task("reading the flights of 2013 from New York")
            try:
                data = flights.load().shuffled(seed)
            except ValueError as error:
                raise DemoFailed(str(error)) from None
            exact = flights.exact_subspace(data.records, rank)
            reading.finish()

            def start_worker() -> Child:
                command = [sys.executable, "-m", "streaming_pca", "worker", "--config", str(config)]
                worker = Child(command, log=folder / "worker.log", cwd=Path.cwd())
                stack.callback(worker.kill)
                return worker

            points, status = _learn(settings, data.records, exact, compiler, start_worker, progress)
        report = verify_ledger(settings.kafka, settings.stream.input)
        random_error = flights.random_error(flights.N_FEATURES, rank)
        _print_table(points, random_error, out)
        if plot is not None:
            _draw(points, exact, plot, epsilon, delta)
            _say(f"picture: {plot}", out)
        if status != 0:
            raise DemoFailed(f"the worker ended with status {status}")
        if not report.ok:
            raise DemoFailed(f"the ledger failed verification: {report.problems[0]}")
        last = points[-1]
        if last.release.records != len(data.records):
            raise DemoFailed(f"only {last.release.records} of {len(data.records)} records were processed")
        facts = {
            "records": last.release.records,
            "releases": len(points),
            "error": round(last.error, 5),
            "random_error": round(random_error, 5),
            "epsilon": epsilon,
            "delta": delta,
            "ledger": "verified",
            "rows_per_second": round(len(data.records) / last.seconds),
        }
        if show is not None:
            dashboard = _SHOWN
        elif embedded:
            in_checkout = (_CHECKOUT / "Makefile").is_file()
            command = "make dashboard" if in_checkout else "streaming-pca demo --dashboard"
            dashboard = _AGAIN.format(command=command)
        else:
            dashboard = _STAYS.format(bootstrap=bootstrap, name=settings.stream.name, config=text)
        _say(_next(dashboard, plotted=plot is not None), out)
        if show is not None:
            show(settings, facts)
    return facts


def _say(text: str, console: Console) -> None:
    """Print a text unchanged, without markup, which headings of settings would be, or wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _next(dashboard: str, plotted: bool = False) -> str:
    """Return the next steps: pages if this is a checkout, otherwise commands."""
    steps = _PAGES if all((_CHECKOUT / page).is_file() for page in _PAGES) else _COMMANDS
    lines = [f"next: {dashboard}", *(f"{name} {what}" for name, what in steps.items())]
    if not plotted:
        lines.append("streaming-pca demo --plot demo.png plots angles and variances")
    return "\n      ".join(lines)


def _configuration(
    bootstrap: str, embedded: bool, rank: int, epsilon: float, delta: float, records: int
) -> str:
    name = f"flights-{int(time.time() * 1000):x}"
    return f"""\
[kafka]
bootstrap_servers = "{bootstrap}"
unchecked_topics = {str(embedded).lower()}

[stream]
name = "{name}-pca"
input = "{name}"
dim = {flights.N_FEATURES}
rank = {rank}
epsilon = {epsilon}
delta = {delta}
bounds = [-{flights.BOUND}, {flights.BOUND}]
feature_names = {json.dumps(flights.FEATURE_NAMES)}

[stream.options]
n_records = {records}
n_batches = {_N_BATCHES}
growth = {_GROWTH}

[worker]
group = "{name}"
stop_when_done = true

[http]
enabled = false
"""


def _learn(
    settings: Settings,
    records: NDArray[np.float32],
    exact: NDArray[np.float64],
    compiler: subprocess.Popen[bytes] | None,
    start_worker: Callable[[], Child],
    progress: Progress,
) -> tuple[list[_Point], int]:
    """Send the records in another thread; return all releases, and the worker's exit status."""
    failures: list[BaseException] = []
    compiling = None if compiler is None else progress.task(COMPILING)
    sending = progress.task("records sent", len(records))

    def produce() -> None:
        try:
            send_records(Sending(settings.kafka, settings.stream.input, progress=sending.advance), records)
        except BaseException as error:
            failures.append(error)

    threading.Thread(target=produce, name="producer", daemon=True).start()
    # Started early, to join its group while the kernels, which it also needs, are compiled.
    worker = start_worker()
    if compiler is not None and compiling is not None:
        compiler.wait()
        compiling.finish()
    learning = progress.task("records processed", len(records))
    started = time.monotonic()
    points: list[_Point] = []
    for release in _releases(settings, worker, failures):
        error = subspace_error(np.array(release.components), exact)
        points.append(_Point(release, error, time.monotonic() - started))
        learning.complete(release.records)
        if release.records >= len(records):
            break
    deadline = time.monotonic() + _END_SECONDS
    while worker.returncode is None:
        if time.monotonic() > deadline:
            raise DemoFailed(f"the worker does not exit; its last log line: {worker.log_tail(1)}")
        time.sleep(0.05)
    return points, worker.returncode


def _releases(settings: Settings, worker: Child, failures: list[BaseException]) -> Iterator[Release]:
    with contextlib.closing(ReleaseReader(settings.kafka, settings.stream.releases_topic)) as reader:
        reader.seek(reader.first)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            yield from (item for item in reader.poll() if isinstance(item, Release))
            if failures:
                raise DemoFailed(f"the producer failed: {failures[0]}")
            if worker.returncode not in (None, 0):
                raise DemoFailed(f"the worker ended with status {worker.returncode}: {worker.log_tail(1)}")
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"not done after {_DEADLINE_SECONDS:g} s; worker's last log line: {worker.log_tail(1)}"
                )


def _print_table(points: list[_Point], random_error: float, out: Console) -> None:
    table = Table(title="private releases against the exact centred PCA of the same records")
    for name in ("batch", "records", "seconds", "error", "error / random", "explained variance (private)"):
        table.add_column(name, justify="right")
    for p in points:
        table.add_row(
            str(p.release.batch),
            f"{p.release.records:,}",
            f"{p.seconds:.1f}",
            f"{p.error:.3f}",
            f"{p.error / random_error:.3f}",
            " ".join(f"{v:.2f}" for v in p.release.explained_variance),
        )
    # A file or a pipe has no width: rich would wrap at 80 columns.
    (out if out.is_terminal else Console(file=out.file, width=_WIDE)).print(table)
    _say(
        "The error is the distance |UU^T - VV^T|_F of the released subspace U from the exact one V of all "
        f"records: 0 for the same subspace, {random_error:.2f} for a random one.",
        out,
    )


def _draw(points: list[_Point], exact: NDArray[np.float64], path: Path, epsilon: float, delta: float) -> None:
    from matplotlib.figure import Figure

    from streaming_pca import plots

    releases = [p.release for p in points]
    last = releases[-1]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    plots.angles(releases, reference=exact, ax=left).set_title("angles to the exact centred PCA")
    plots.scree(last, ax=right)
    figure.suptitle(f"{last.records:,} flights, rank {last.rank}, epsilon = {epsilon:g}, delta = {delta:g}")
    plots.save_figure(figure, path)
