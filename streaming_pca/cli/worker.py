"""Commands `streaming-pca worker` and `streaming-pca demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streaming_pca.cli.common import err, fail, out, print_json


def worker(
    config: Annotated[
        list[Path],
        typer.Option(
            "--config",
            "-c",
            help="TOML file of one stream or several; may be repeated.",
            show_default=False,
        ),
    ],
) -> None:
    """Run a worker: lead its streams, or stand by until their leaders are gone.

    All settings other than the streams' must be the same in all files. Exit
    status: 0 stopped or done, 2 refused or misconfigured, 3 the cap is reached,
    4 the broker was lost.

    [dim]Examples:

    streaming-pca worker --config stream.toml

    streaming-pca worker --config flights.toml --config visits.toml[/]
    """
    from streaming_pca.config.loading import load_together
    from streaming_pca.service.logs import configure_logging
    from streaming_pca.service.worker import run_worker

    settings = load_together(config)
    configure_logging(settings[0].log)
    status = run_worker(settings)
    if status:
        sys.exit(status)


def demo(
    rank: Annotated[int, typer.Option(min=1, max=144, help="Dimension of the subspace.")] = 5,
    epsilon: Annotated[float, typer.Option(min=0.001, help="Epsilon of the guarantee.")] = 1.0,
    delta: Annotated[float, typer.Option(min=1e-12, max=0.5, help="Delta of the guarantee.")] = 1e-6,
    plot: Annotated[Path, typer.Option(help="PNG file to write the plot to.")] = Path("demo.png"),
    bootstrap: Annotated[
        str | None, typer.Option(help="Broker as HOST:PORT to use instead of the embedded one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the order of the flights.")] = 2013,
) -> None:
    """Stream all flights of 2013 from New York through a worker, and evaluate the result.

    The last line of standard output is JSON.

    [dim]Example: streaming-pca demo --rank 3[/]
    """
    from streaming_pca.demo.demo import DemoFailed, run_demo

    try:
        facts = run_demo(rank, epsilon, delta, plot, bootstrap, seed, out, err)
    except DemoFailed as error:
        fail(error, 1)
    print_json(facts)
