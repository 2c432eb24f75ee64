"""`streaming-pca demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streaming_pca.cli.common import err, fail, out, print_json


def demo(
    rank: Annotated[int, typer.Option(min=1, max=144)] = 5,
    epsilon: Annotated[float, typer.Option(min=0.001)] = 1.0,
    delta: Annotated[float, typer.Option(min=1e-12, max=0.5)] = 1e-6,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    bootstrap: Annotated[
        str | None, typer.Option(help="Use this broker instead of the embedded one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the order of the flights.")] = 2013,
) -> None:
    """Push all flights of 2013 from New York through broker and worker, and judge the result.

    The last line of standard output is JSON. [dim]Example: streaming-pca demo --rank 3[/]
    """
    from streaming_pca.demo import DemoFailed, run_demo

    try:
        facts = run_demo(rank, epsilon, delta, plot, bootstrap, seed, out, err)
    except DemoFailed as error:
        fail(error, 1)
    print_json(facts)
