"""Brokers for the tests, and a final notice when tests were skipped without one.

`kafka_bootstrap` is Apache Kafka: the broker in KAFKA_BOOTSTRAP, or one shared by all processes of a run.
`make_cluster` starts nodes that a test may strike.
`apicurio` is a schema registry.
`broker_bootstrap` is the same as the first, or the embedded broker where Apache Kafka is not available.
With REQUIRE_KAFKA=1 a missing Apache Kafka fails these tests; otherwise it skips them. The same holds for
REQUIRE_SPARK (tests/spark), REQUIRE_BROWSER (tests/browser) and REQUIRE_REGISTRY (`apicurio`).
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from streaming_pca.demo.broker import EmbeddedBroker
from streaming_pca.dev.cluster import KafkaServer, Storage
from streaming_pca.dev.jars import KafkaUnavailable, fetch_jars, find_java
from streaming_pca.dev.processes import cluster_id
from streaming_pca.errors import UserError
from tests.compiled import compile_ahead
from tests.durations import Durations
from tests.java_archive import archive_options
from tests.kafka.faulty_cluster import FaultyCluster
from tests.security.needles import is_secret
from tests.security.whole_run import WholeRun
from tests.selection import PROFILES, add_options, is_unread, load_profile, select
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.archives import RegistryUnavailable
from tests.waiting import let_admin_clients_wait, serve_brokers_first

# pytest-xdist sets it for its workers, and a console created under it keeps that width.
os.environ.pop("COLUMNS", None)

# `make soak` uses it; the other profiles belong to scopes.
settings.register_profile("soak", max_examples=1000, deadline=None)
for _scope, _examples in PROFILES.items():
    settings.register_profile(_scope, max_examples=_examples, deadline=None)

_BROKERS = {
    "kafka_installation": "kafka",
    "kafka_bootstrap": "kafka",
    "make_cluster": "kafka",
    "broker_bootstrap": "broker",
}
_MARKERS = {**_BROKERS, "browser": "browser"}
_NAMED = "KAFKA_BOOTSTRAP"
_BROKER = "kafka_bootstrap"
_SERVER, _ADDRESS = pytest.StashKey[ExitStack](), pytest.StashKey[str]()
_IMAGE = pytest.StashKey[subprocess.Popen[bytes]]()
_INSTALLATION: pytest.StashKey[tuple[str, Path] | KafkaUnavailable] = pytest.StashKey()
_NO_BROKER = "no broker"
_TO_LOOK_AT = "to look at"
"""Property of a test that has written a file or a folder for people to look at."""
_skipped: Counter[tuple[str, str]] = Counter()
_to_look_at: list[str] = []
_shared: list[KafkaServer] = []
"""The run's broker, in the process that has started it."""
_clusters: list[FaultyCluster] = []
"""Clusters that tests of this process have started."""


SHORT_LIVED = ("-XX:TieredStopAtLevel=1",)
"""Options of a Java that ends before its best compiler would pay: a node starts with a third less work."""
_CHAOS_TIMEOUT = 600
"""Seconds of a test in addition to the chaos loop or the soak: start, drain and check."""
_LENGTHS = {"chaos_seconds", "soak_seconds"}
"""Fixtures with the duration of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
    group = parser.getgroup("chaos", "tests/kafka/faults/test_chaos.py")
    group.addoption("--chaos-seconds", type=float, default=30.0, help="how long its faults last (30)")
    group.addoption("--chaos-seed", type=int, default=141, help="of their schedule (141)")
    group = parser.getgroup("soak", "tests/soak")
    group.addoption("--soak-seconds", type=float, default=600.0, help="how long it runs at full speed (600)")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Keep secrets out of test names."""
    return argname if isinstance(val, str) and is_secret(val) else None


def pytest_configure(config: pytest.Config) -> None:
    load_profile(config)
    let_admin_clients_wait()
    serve_brokers_first()
    keep_brokers_in_memory()
    config.pluginmanager.register(Durations(config))
    # Workers of pytest-xdist send all output of tests to the process that shows the results.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(WholeRun(config))


def keep_brokers_in_memory() -> None:
    """Keep brokers' temporary data in memory if it has room.

    A broker writes each entry of its metadata to disk before it answers, and a shared machine's disk can
    hang for longer than any client waits.
    """
    memory = Path("/dev/shm")  # each cluster makes a directory of its own there
    for old in memory.glob("streaming-pca-kafka-*"):
        # A run that was killed left it; another process may remove it at the same time.
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > 24 * 3600:
                shutil.rmtree(old, ignore_errors=True)
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 8 * 2**30:
        Storage.parent = str(memory)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return is_unread(collection_path, config) or None


@pytest.fixture(scope="session")
def chaos_seconds(request: pytest.FixtureRequest) -> float:
    """Return the duration of the chaos loop's faults."""
    return float(request.config.getoption("--chaos-seconds"))


@pytest.fixture(scope="session")
def chaos_seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of the chaos loop's schedule."""
    return int(request.config.getoption("--chaos-seed"))


@pytest.fixture(scope="session")
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """Return the duration of the soak at full speed."""
    return float(request.config.getoption("--soak-seconds"))


class NoBroker(pytest.skip.Exception):
    """Skip of a test whose broker, or another program, is not available."""

    def __init__(self, kind: str, reason: str, detail: str) -> None:
        super().__init__(f"no {kind}: {reason}. {detail}".strip())
        self.kind = kind
        self.reason = reason


def kafka_is_required() -> bool:
    return os.environ.get("REQUIRE_KAFKA", "") not in ("", "0")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Any:
    """Exclude objects made by collection from garbage collection: a million, none of them garbage.

    Searching them repeatedly is a fifth of collection's work, and more in a test that collects garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A fixture implies its marker, so that `-m "not kafka"` cannot miss a test.
    for item in items:
        for fixture, marker in _MARKERS.items():
            if fixture in getattr(item, "fixturenames", ()) and item.get_closest_marker(marker) is None:
                item.add_marker(marker)
        for name in _LENGTHS & set(getattr(item, "fixturenames", ())):
            seconds = item.config.getoption(f"--{name.replace('_', '-')}")
            item.add_marker(pytest.mark.timeout(_CHAOS_TIMEOUT + seconds))
    select(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # In the process that starts pytest-xdist's workers, before each of them would do the same.
    config = session.config
    starts_workers = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if not starts_workers or config.option.collectonly:
        return
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_whole:
        compile_ahead()
    option = config.option
    if is_whole and option.part != "pure" and option.scope != "test" and not option.keyword:
        # It imports this module.
        from tests.deploy.image import build_ahead

        folder = config._tmp_path_factory.getbasetemp() / "image"  # type: ignore[attr-defined]
        config.stash[_IMAGE] = build_ahead(folder)
    if "not kafka" in config.option.markexpr or config.option.part == "pure" or os.environ.get(_NAMED):
        return
    found = installation()
    if is_whole and not isinstance(found, KafkaUnavailable):
        # It far outlives other nodes, so its best compiler pays.
        options = archive_options(*found, ())
        server = config.stash[_SERVER] = ExitStack()
        _shared.append(server.enter_context(KafkaServer(*found, options=options)))
        config.stash[_ADDRESS] = _shared[0].bootstrap


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the address of the run's broker to a worker of pytest-xdist."""
    node.workerinput[_BROKER] = node.config.stash.get(_ADDRESS, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(_SERVER, None):
        server.close()
    if builder := config.stash.get(_IMAGE, None):
        with suppress(ProcessLookupError):
            os.killpg(builder.pid, signal.SIGKILL)
        builder.wait()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    # Maven may take minutes the first time: run it before any test, outside the tests' timeouts.
    wanted = any(_BROKERS.keys() & set(getattr(item, "fixturenames", ())) for item in session.items)
    if wanted and not session.config.option.collectonly and not os.environ.get(_NAMED):
        session.config.stash[_INSTALLATION] = installation()


def installation() -> tuple[str, Path] | KafkaUnavailable:
    try:
        return find_java(), fetch_jars()
    except KafkaUnavailable as unavailable:
        return unavailable


@pytest.fixture(scope="session")
def kafka_installation(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Return the `java` command and the directory of Kafka's jars."""
    found = request.config.stash.get(_INSTALLATION, None) or installation()
    if isinstance(found, KafkaUnavailable):
        raise _no_kafka(found)
    return found


@pytest.fixture(scope="session")
def apache_kafka(request: pytest.FixtureRequest) -> Iterator[str | KafkaUnavailable]:
    """Yield the bootstrap address of Apache Kafka, or the reason why it is not available."""
    if named := os.environ.get(_NAMED):
        # A broker that is set by hand but does not answer is a mistake to report, not a reason to skip.
        if cluster_id(named, timeout=10) is None:
            pytest.fail(f"KAFKA_BOOTSTRAP={named} does not answer: start it, or unset the variable")
        yield named
        return
    if shared := getattr(request.config, "workerinput", {}).get(_BROKER):
        yield shared
        return
    found = request.config.stash.get(_INSTALLATION, None) or installation()
    if isinstance(found, KafkaUnavailable):
        yield found
        return
    with ExitStack() as stack:
        try:
            server = stack.enter_context(KafkaServer(*found, options=archive_options(*found, SHORT_LIVED)))
        except KafkaUnavailable as unavailable:
            yield unavailable
            return
        yield server.bootstrap


@pytest.fixture(scope="session")
def kafka_bootstrap(apache_kafka: str | KafkaUnavailable) -> str:
    """Return the address of an Apache Kafka, with real transactions."""
    if isinstance(apache_kafka, KafkaUnavailable):
        raise _no_kafka(apache_kafka)
    return apache_kafka


@pytest.fixture(scope="session")
def session_ms(kafka_bootstrap: str) -> int:
    """Return the shortest session timeout that the broker allows for group members."""
    # Here and below: only tests with workers import the service.
    from tests.kafka.stream import session_timeout_ms

    return session_timeout_ms(kafka_bootstrap)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Start a server of children with compiled kernels, so tests' time limits exclude compiling."""
    from tests.kafka.stream import start_fork_server

    start_fork_server()


def start_cluster(stack: ExitStack, config: pytest.Config, **how: Any) -> FaultyCluster:
    """Start a cluster of Apache Kafka that ends with a stack."""
    found = config.stash.get(_INSTALLATION, None) or installation()
    if isinstance(found, KafkaUnavailable):
        raise _no_kafka(found)
    usual = {"java": found[0], "jars": found[1], "options": archive_options(*found, SHORT_LIVED)}
    try:
        cluster = stack.enter_context(FaultyCluster(**(usual | how)))
    except KafkaUnavailable as unavailable:
        raise _no_kafka(unavailable) from None
    _clusters.append(cluster)
    stack.callback(_clusters.remove, cluster)
    return cluster


def ask_for_stacks(pid: int | None) -> None:
    """Let a broker write the stacks of its threads into its log: they show why it does not answer."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)


def logs_and_stacks() -> Iterator[tuple[str, str]]:
    """Yield a title and the end of the log, with all stacks, of each node of this process's clusters."""
    nodes = [node for cluster in _clusters for node in cluster.nodes.values()]
    for node in nodes:
        ask_for_stacks(node.pid)
    time.sleep(1 if nodes else 0)
    for node in nodes:
        log = (node.data.parent / "server.log").read_text(errors="replace").splitlines()
        yield f"end of the log of node {node.number}, at {node.address}", "\n".join(log[-600:])


@pytest.fixture(scope="module")
def make_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., FaultyCluster]]:
    """Start clusters of Apache Kafka whose nodes a module may strike, regardless of KAFKA_BOOTSTRAP."""
    with ExitStack() as stack:
        yield partial(start_cluster, stack, request.config)


def _no_kafka(unavailable: KafkaUnavailable) -> BaseException:
    """Return the exception that ends a test without Apache Kafka."""
    if kafka_is_required():
        return pytest.fail.Exception(f"REQUIRE_KAFKA is set, but {unavailable}", pytrace=False)
    return NoBroker("kafka", unavailable.reason, f"{unavailable.detail}; or name one by KAFKA_BOOTSTRAP")


@pytest.fixture(scope="session")
def embedded_bootstrap() -> Iterator[str]:
    """Yield the address of an embedded broker."""
    broker = EmbeddedBroker()
    try:
        broker.start()
    except UserError as unavailable:
        raise NoBroker("broker", "no embedded broker", str(unavailable)) from None
    with broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def broker_bootstrap(apache_kafka: str | KafkaUnavailable, request: pytest.FixtureRequest) -> str:
    """Return the address of Apache Kafka or, if not available, of an embedded broker."""
    if isinstance(apache_kafka, str):
        return apache_kafka
    if kafka_is_required():
        pytest.fail(f"REQUIRE_KAFKA is set, but {apache_kafka}", pytrace=False)
    address: str = request.getfixturevalue("embedded_bootstrap")
    return address


@pytest.fixture(scope="session")
def apicurio() -> Iterator[Apicurio]:
    """Yield a schema registry, shared by all tests of a run."""
    with ExitStack() as stack:
        try:
            registry = stack.enter_context(Apicurio())
        except (RegistryUnavailable, KafkaUnavailable) as unavailable:
            if os.environ.get("REQUIRE_REGISTRY", "") not in ("", "0"):
                pytest.fail(f"REQUIRE_REGISTRY is set, but {unavailable}", pytrace=False)
            raise NoBroker("registry", str(unavailable).partition("\n")[0], str(unavailable)) from None
        yield registry


@pytest.fixture(scope="session")
def unique_name() -> Callable[[str], str]:
    """Return a maker of names for topics, streams and groups, unique to each test."""
    return lambda stem="test": f"{stem}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Free only objects without references: reference cycles stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, NoBroker):
        # A worker of pytest-xdist sends its reports to the process that prints.
        report.user_properties.append((_NO_BROKER, [call.excinfo.value.kind, call.excinfo.value.reason]))
    elif report.failed:
        report.sections.extend(logs_and_stacks())
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _NO_BROKER:
            _skipped[tuple(value)] += 1
        elif name == _TO_LOOK_AT and report.when == "call":
            _to_look_at.append(str(value))
    if report.failed and _shared:
        ask_for_stacks(_shared[0].nodes[1].pid)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    # Outermost, because pytest prints its totals after `pytest_terminal_summary`: this comes last.
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.testsfailed and _shared:
        kept = session.config.rootpath / "build" / "kafka.log"
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(_shared[0].directory / "1" / "server.log", kept)
        _to_look_at.append(f"{kept}, the broker's")
    if reporter is not None:
        for path in _to_look_at:
            reporter.write_line(f"to look at: {path}")
        for (kind, reason), count in _skipped.items():
            tests = "TEST" if count == 1 else "TESTS"
            reporter.write_line(f"{count} {kind.upper()} {tests} SKIPPED: {reason.upper()}", yellow=True)
    return result
