"""Commands `streaming-pca worker`, `spark`, `project` and `demo`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streaming_pca.cli.common import (
    ConfigOption,
    ConfigsOption,
    StreamOption,
    err,
    out,
    prepare_process,
    print_json,
    say,
    start_process,
)

if TYPE_CHECKING:
    from streaming_pca.config.settings import Settings
    from streaming_pca.service.http.server import Site


def worker(config: ConfigsOption) -> None:
    """Run a worker: lead its streams, or stand by until their leaders disappear.

    All settings other than the streams' must be equal in all files. Exit status: 0 stopped or done, 2 refused
    or misconfigured, 3 the cap is reached, 4 the broker was lost.

    [dim]Examples:

    streaming-pca worker --config stream.toml

    streaming-pca worker --config flights.toml --config visits.toml[/]
    """
    from streaming_pca.service.worker import run_worker

    settings = start_process(config)
    sys.exit(run_worker(settings, site=_site_of(settings)))


def spark(
    config: ConfigsOption,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Cluster: local[N], spark://HOST:PORT, yarn or k8s://URL; by default the file's, "
            "or all cores of this machine.",
        ),
    ] = None,
) -> None:
    """Run a worker whose records are read and summed by executors of Apache Spark.

    For a stream that outgrows one machine: it leads and stands by like any worker, together with other
    workers of the stream, and computes the same releases. Only this process draws noise and writes to the
    ledger. It needs Java 17 and the extra `spark`. Exit status: 0 stopped or done, 2 refused or
    misconfigured, 3 the cap is reached, 4 the broker or Spark was lost.

    [dim]Examples:

    streaming-pca spark --config stream.toml

    streaming-pca spark --config stream.toml --master spark://10.0.0.5:7077[/]
    """
    from streaming_pca.config.loading import load_together
    from streaming_pca.spark.session import check_extra

    settings = load_together(config)
    check_extra()
    from streaming_pca.spark.driver import run_spark

    prepare_process(settings[0])
    sys.exit(run_spark(settings, settings[0].spark, master, site=_site_of(settings)))


def _site_of(settings: Sequence[Settings]) -> Site | None:
    """Return the dashboard of a worker's streams if its HTTP server should show it."""
    if not (settings[0].http.enabled and settings[0].http.dashboard):
        return None
    from streaming_pca.dashboard.site import make_site

    return make_site(settings)


def project(
    config: ConfigOption,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="TOPIC", help="Topic to write to.", show_default=False)
    ],
    stream: StreamOption = None,
    payload: Annotated[
        Literal["octets", "json"], typer.Option("--format", help="Payload of the projections.")
    ] = "octets",
    release_batch: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Project with the release of this batch; by default with the newest."
        ),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop once everything that the input holds now is projected.")
    ] = False,
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="Create a missing topic, with the input's partitions, replicas and retention."
        ),
    ] = False,
    http_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of metrics and health; by default no server is started."),
    ] = None,
) -> None:
    """Project the records of a stream's input with its latest release, each exactly once.

    The output is only as private as the input: it reveals single records, and the guarantee of the releases
    does not extend to it. Give it the same protection as the input. It is not charged.

    Workers with the same stream and output share the partitions. Exit status: 0 stopped or done, 2 refused
    or misconfigured, 4 the broker was lost.

    [dim]Examples:

    streaming-pca project --config stream.toml --output visits.projected --create

    streaming-pca project --config stream.toml --output visits.projected --format json --until-end[/]
    """
    from streaming_pca.config.loading import load_settings, load_streams
    from streaming_pca.service.projection.worker import ProjectionOptions, run_projection
    from streaming_pca.service.topics.output import check_output_name

    settings = load_settings(config, stream)
    check_output_name(output, [each.stream for each in load_streams(config)])
    prepare_process(settings)
    options = ProjectionOptions(output, payload, release_batch, until_end, create, http_port)
    sys.exit(run_projection(settings, options))


def demo(
    rank: Annotated[int, typer.Option(min=1, max=144, help="Dimension of the subspace.")] = 5,
    epsilon: Annotated[float, typer.Option(min=0.001, help="Epsilon of the guarantee.")] = 1.0,
    delta: Annotated[float, typer.Option(min=1e-12, max=0.5, help="Delta of the guarantee.")] = 1e-6,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a plot to a file whose ending names the format; without it no file stays.",
        ),
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="Broker as HOST:PORT to use instead of the embedded one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the order of the flights.")] = 2013,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the stream in a browser at the end, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the dashboard; 0 chooses a free one.")
    ] = 9470,
) -> None:
    """Stream all flights of 2013 from New York through a worker, and evaluate the result.

    The demo takes about 20 seconds on two cores; the first run, which compiles the kernels, takes 45. The
    last line of standard output is JSON; with --dashboard it is the line before the dashboard's address.

    [dim]Examples:

    streaming-pca demo --rank 3 --plot demo.png

    streaming-pca demo --dashboard[/]
    """
    from streaming_pca.demo.demo import run_demo

    if dashboard:
        from streaming_pca.config.http import HttpSettings
        from streaming_pca.dashboard.site import check_extra, run_dashboard
        from streaming_pca.service.http.server import listen

        check_extra()
        # A port in use would otherwise be noticed only at the end of the demo.
        listen(HttpSettings(port=port), "--port").close()

    def show(settings: Settings, facts: dict[str, Any]) -> None:
        print_json(facts)
        run_dashboard([settings], "127.0.0.1", port, lambda url: say(f"dashboard: {url}/ (Ctrl-C ends it)"))

    facts = run_demo(rank, epsilon, delta, plot, bootstrap, seed, out, err, show if dashboard else None)
    if not dashboard:
        print_json(facts)
