"""Commands `streaming-pca worker`, `streaming-pca project` and `streaming-pca demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streaming_pca.cli.common import ConfigOption, StreamOption, err, fail, out, print_json


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


def project(
    config: ConfigOption,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="TOPIC", help="Topic to write to.", show_default=False)
    ],
    stream: StreamOption = None,
    payload: Annotated[
        str, typer.Option("--format", metavar="octets|json", help="Payload of the projections.")
    ] = "octets",
    release_batch: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Project with the release of this batch; by default with the newest."
        ),
    ] = None,
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="Stop once everything that the input holds now is projected."),
    ] = False,
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="Create a missing topic, with the input's partitions, replicas and retention."
        ),
    ] = False,
    http_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of metrics and health; by default there is no server."),
    ] = None,
) -> None:
    """Project the records of a stream's input with its latest release, each exactly once.

    The output is as private as the input, and no more: it tells of single records, and the guarantee of the
    releases does not extend to it. Give it the protection that the input has. Nothing is charged for it.

    Workers with the same stream and output share the partitions. Exit status: 0 stopped or done, 2 refused
    or misconfigured, 4 the broker was lost.

    [dim]Examples:

    streaming-pca project --config stream.toml --output visits.projected --create

    streaming-pca project --config stream.toml --output visits.projected --format json --until-end[/]
    """
    from streaming_pca.config.loading import load_settings, load_streams
    from streaming_pca.config.settings import ConfigurationError
    from streaming_pca.service.logs import configure_logging
    from streaming_pca.service.projection.encoding import FORMATS
    from streaming_pca.service.projection.worker import ProjectionOptions, run_projection
    from streaming_pca.service.topics.output import check_output_name

    settings = load_settings(config, stream)
    check_output_name(output, [each.stream for each in load_streams(config)])
    form = next((each for each in FORMATS if each == payload), None)
    if form is None:
        raise ConfigurationError(f"--format must be {' or '.join(FORMATS)}, not {payload!r}")
    configure_logging(settings.log)
    status = run_projection(
        settings, ProjectionOptions(output, form, release_batch, until_end, create, http_port)
    )
    if status:
        sys.exit(status)


def demo(
    rank: Annotated[int, typer.Option(min=1, max=144, help="Dimension of the subspace.")] = 5,
    epsilon: Annotated[float, typer.Option(min=0.001, help="Epsilon of the guarantee.")] = 1.0,
    delta: Annotated[float, typer.Option(min=1e-12, max=0.5, help="Delta of the guarantee.")] = 1e-6,
    plot: Annotated[
        Path | None, typer.Option(help="PNG file to write a plot to; without it no file stays.")
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="Broker as HOST:PORT to use instead of the embedded one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the order of the flights.")] = 2013,
) -> None:
    """Stream all flights of 2013 from New York through a worker, and evaluate the result.

    It takes about 20 seconds on two cores; the first run, which compiles the
    kernels, a minute. The last line of standard output is JSON.

    [dim]Example: streaming-pca demo --rank 3 --plot demo.png[/]
    """
    from streaming_pca.demo.demo import DemoFailed, run_demo

    try:
        facts = run_demo(rank, epsilon, delta, plot, bootstrap, seed, out, err)
    except DemoFailed as error:
        fail(error, 1)
    print_json(facts)
