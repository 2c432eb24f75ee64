"""`streaming-pca worker`."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def worker(
    config: Annotated[
        list[Path],
        typer.Option(
            "--config",
            "-c",
            help="A TOML file of one stream or several; may be repeated.",
            show_default=False,
        ),
    ],
) -> None:
    """Run a worker: lead its streams, or stand by until their leaders are gone.

    [dim]Example: streaming-pca worker --config stream.toml[/]

    Settings other than the streams' are those of the first file, and must be the
    same in all. Exit status: 0 stopped or done, 2 refused or misconfigured, 3 the
    cap is reached, 4 the broker was lost.
    """
    from streaming_pca.configuration import load_together
    from streaming_pca.service.logs import configure_logging
    from streaming_pca.service.worker import run_worker

    settings = load_together(config)
    configure_logging(settings[0].log)
    status = run_worker(settings)
    if status:
        sys.exit(status)
