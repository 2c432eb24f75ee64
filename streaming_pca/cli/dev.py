"""Commands `streaming-pca dev`, for trials on one machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streaming_pca.cli.common import JsonOption, err, fail, print_json, say, step

if TYPE_CHECKING:
    from streaming_pca.dev.cluster import KafkaCluster

app = typer.Typer(help="Run Apache Kafka on this machine, for trials.", no_args_is_help=True)

_SHOWN = 5  # number of log lines shown of a node that has ended


@app.command("kafka")
def dev_kafka(
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65533, help="Port on loopback, and the next two for three nodes; 0 chooses free ones."
        ),
    ] = 9092,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory that keeps the data; by default they are deleted at the end."
        ),
    ] = None,
    nodes: Annotated[Literal["1", "3"], typer.Option(help="Number of nodes.")] = "1",
    as_json: JsonOption = False,
) -> None:
    """Run Apache Kafka on this machine, without containers, until Ctrl-C.

    It needs Java 17. Maven fetches the jars once, 45 MB, into ~/.cache/streaming-pca, or into the directory
    in STREAMING_PCA_KAFKA_JARS. It listens only on loopback, without encryption or passwords.

    [dim]Examples:

    streaming-pca dev kafka

    streaming-pca dev kafka --nodes 3 --port 19092 --data kafka-data[/]
    """
    from streaming_pca.dev.cluster import KafkaCluster
    from streaming_pca.dev.jars import KAFKA, fetch_jars, find_java

    count = int(nodes)
    try:
        with ExitStack() as stack:
            stack.enter_context(_ended_by_signals())
            with step("looking for Java and Kafka's jars") as starting:
                java = find_java()
                jars = fetch_jars(lambda done: starting.describe(f"fetching Apache Kafka {KAFKA}: {done}"))
                starting.describe(f"starting Apache Kafka {KAFKA}")
                ports = range(port, port + count) if port else ()
                size = (count, count, (count + 1) // 2)
                cluster = stack.enter_context(KafkaCluster(java, jars, *size, ports=ports, directory=data))
            _tell(cluster, data, as_json)
            _wait(cluster)
            fail(RuntimeError("no Kafka node is running any longer"), 4)
    except KeyboardInterrupt:
        say("stopped", err)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal, and ignore later ones during the cleanup."""
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(*_: object) -> None:
        for each in ends:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, end) for each in ends}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _tell(cluster: KafkaCluster, data: Path | None, as_json: bool) -> None:
    from streaming_pca.dev.jars import KAFKA

    if as_json:
        pids = [node.pid for node in cluster.nodes.values()]
        facts = {"bootstrap": cluster.bootstrap, "kafka": KAFKA, "pids": pids}
        print_json({**facts, "data": str(cluster.directory), "kept": data is not None})
        sys.stdout.flush()  # a program that reads a pipe waits for the line
        return
    say(f"Apache Kafka {KAFKA}: {cluster.bootstrap}")
    say(f"data: {cluster.directory}, {'kept' if data else 'deleted at the end'}")
    say(f'next, with bootstrap_servers = "{cluster.bootstrap}" in stream.toml, in another terminal:')
    say("  streaming-pca topics create --config stream.toml --cap 1,1e-6")
    say("  streaming-pca worker --config stream.toml")
    say("Ctrl-C ends it")


def _wait(cluster: KafkaCluster) -> None:
    """Wait until all nodes have ended, and report each end."""
    running = {number for number, node in cluster.nodes.items() if node.runs}
    while running:
        time.sleep(0.5)
        for number in [number for number in sorted(running) if not cluster.nodes[number].runs]:
            end = "\n".join(cluster.nodes[number].log_tail.splitlines()[-_SHOWN:])
            say(f"node {number} has ended; the end of its log:\n{end}", err)
            running.remove(number)
