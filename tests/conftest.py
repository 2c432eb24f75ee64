"""Brokers for the tests, and a plain word at the end when there was none.

`kafka_bootstrap` is Apache Kafka: the broker KAFKA_BOOTSTRAP names, or one started here.
`make_cluster` starts nodes that a test may strike.
`broker_bootstrap` is the same as the first, or the embedded broker where Apache Kafka cannot be had.
With REQUIRE_KAFKA=1 a missing Apache Kafka fails these tests; otherwise it skips them. The same holds of
REQUIRE_SPARK (tests/spark) and REQUIRE_BROWSER (tests/browser).
"""

from __future__ import annotations

import gc
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from streaming_pca.demo.broker import EmbeddedBroker, EmbeddedBrokerUnavailable
from streaming_pca.dev.cluster import KafkaCluster, KafkaServer
from streaming_pca.dev.jars import KafkaUnavailable, fetch_jars, find_java
from streaming_pca.dev.processes import cluster_id
from tests.compiled import compile_ahead
from tests.security.whole_run import WholeRun

# pytest-xdist sets it for its workers, and a console that is made meanwhile keeps that width.
os.environ.pop("COLUMNS", None)

# Tests that say no number themselves; `make soak` names the other.
settings.register_profile("default", max_examples=100, deadline=None)
settings.register_profile("soak", max_examples=1000, deadline=None)
settings.load_profile("default")

_BROKERS = {
    "kafka_installation": "kafka",
    "kafka_bootstrap": "kafka",
    "make_cluster": "kafka",
    "broker_bootstrap": "broker",
}
_MARKERS = {**_BROKERS, "browser": "browser"}
_INSTALLATION: pytest.StashKey[tuple[str, Path] | KafkaUnavailable] = pytest.StashKey()
_NO_BROKER = "no broker"
_TO_LOOK_AT = "to look at"
"""Property of a test that has written something for people: a file or a folder."""
_skipped: Counter[tuple[str, str]] = Counter()
_to_look_at: list[str] = []


SHORT_LIVED = ("-XX:TieredStopAtLevel=1",)
"""Options of a Java that is done before its best compiler would pay: a node starts with a third less work."""
_CHAOS_TIMEOUT = 420
"""Seconds that a test may take beside the chaos loop, or the soak: start, drain and check."""
_LENGTHS = {"chaos_seconds", "soak_seconds"}
"""Fixtures that say how long a test runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos", "tests/kafka/faults/test_chaos.py")
    group.addoption("--chaos-seconds", type=float, default=60.0, help="how long its faults last (60)")
    group.addoption("--chaos-seed", type=int, default=17, help="of their schedule (17)")
    group = parser.getgroup("soak", "tests/soak")
    group.addoption("--soak-seconds", type=float, default=600.0, help="how long it runs at full speed (600)")


def pytest_configure(config: pytest.Config) -> None:
    # Its workers send all that tests print to the process that shows the results.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(WholeRun(config))


@pytest.fixture(scope="session")
def chaos_seconds(request: pytest.FixtureRequest) -> float:
    """How long the faults of the chaos loop last."""
    return float(request.config.getoption("--chaos-seconds"))


@pytest.fixture(scope="session")
def chaos_seed(request: pytest.FixtureRequest) -> int:
    """Seed of the chaos loop's schedule."""
    return int(request.config.getoption("--chaos-seed"))


@pytest.fixture(scope="session")
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """How long the soak runs at full speed."""
    return float(request.config.getoption("--soak-seconds"))


class NoBroker(pytest.skip.Exception):
    """A test is skipped because the broker, or another program, that it needs cannot be had."""

    def __init__(self, kind: str, reason: str, detail: str) -> None:
        super().__init__(f"no {kind}: {reason}. {detail}".strip())
        self.kind = kind
        self.reason = reason


def kafka_is_required() -> bool:
    return os.environ.get("REQUIRE_KAFKA", "") not in ("", "0")


_LONG = (
    "tests/soak/",
    # It makes the image, for which the others of its folder would wait.
    "tests/deploy/test_dockerfile.py",
    "tests/kafka/",
    "tests/spark/",
    "tests/browser/",
    "tests/deploy/",
    "tests/upgrade/",
    "tests/fuzz/",
    "tests/dev/",
    "tests/demo/",
    "tests/docs/test_code_blocks.py",
    "tests/audit/",
    "tests/estimators/test_conformance.py",
    "tests/estimators/",
    "tests/api/",
    "tests/experiments/",
)
"""Where tests take longest, the longest first: two processes that share files must not end with one."""


def _length(item: pytest.Item) -> int:
    return next((i for i, path in enumerate(_LONG) if item.nodeid.startswith(path)), len(_LONG))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "soak" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    items.sort(key=_length)
    # A fixture implies its marker, so that `-m "not kafka"` cannot miss a test.
    for item in items:
        for fixture, marker in _MARKERS.items():
            if fixture in getattr(item, "fixturenames", ()) and item.get_closest_marker(marker) is None:
                item.add_marker(marker)
        for name in _LENGTHS & set(getattr(item, "fixturenames", ())):
            seconds = item.config.getoption(f"--{name.replace('_', '-')}")
            item.add_marker(pytest.mark.timeout(_CHAOS_TIMEOUT + seconds))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # Once, before pytest-xdist starts its workers, which would each fetch the jars.
    config = session.config
    starts_workers = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    wanted = "not kafka" not in config.option.markexpr and not config.option.collectonly
    if starts_workers and wanted and not os.environ.get("KAFKA_BOOTSTRAP"):
        installation()
    if starts_workers and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        compile_ahead()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    # Maven may take minutes the first time: before any test, where no test's timeout counts them.
    wanted = any(_BROKERS.keys() & set(getattr(item, "fixturenames", ())) for item in session.items)
    if wanted and not session.config.option.collectonly and not os.environ.get("KAFKA_BOOTSTRAP"):
        session.config.stash[_INSTALLATION] = installation()


def installation() -> tuple[str, Path] | KafkaUnavailable:
    try:
        return find_java(), fetch_jars()
    except KafkaUnavailable as unavailable:
        return unavailable


@pytest.fixture(scope="session")
def kafka_installation(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A Java, and the directory of Kafka's jars."""
    found = request.config.stash.get(_INSTALLATION, None) or installation()
    if isinstance(found, KafkaUnavailable):
        raise _no_kafka(found)
    return found


@pytest.fixture(scope="session")
def apache_kafka(request: pytest.FixtureRequest) -> Iterator[str | KafkaUnavailable]:
    """The bootstrap address of Apache Kafka, or why there is none."""
    if named := os.environ.get("KAFKA_BOOTSTRAP"):
        # Named by hand and silent is a mistake to show, not a reason to skip.
        if cluster_id(named, timeout=10) is None:
            pytest.fail(f"KAFKA_BOOTSTRAP={named} does not answer: start it, or unset the variable")
        yield named
        return
    found = request.config.stash.get(_INSTALLATION, None) or installation()
    if isinstance(found, KafkaUnavailable):
        yield found
        return
    with ExitStack() as stack:
        try:
            server = stack.enter_context(KafkaServer(*found, options=SHORT_LIVED))
        except KafkaUnavailable as unavailable:
            yield unavailable
            return
        yield server.bootstrap


@pytest.fixture(scope="session")
def kafka_bootstrap(apache_kafka: str | KafkaUnavailable) -> str:
    """Address of an Apache Kafka, with real transactions."""
    if isinstance(apache_kafka, KafkaUnavailable):
        raise _no_kafka(apache_kafka)
    return apache_kafka


@pytest.fixture(scope="session")
def session_ms(kafka_bootstrap: str) -> int:
    """The shortest session of group members that the broker allows."""
    # Here and below: only tests with workers import the service.
    from tests.kafka.stream import session_timeout_ms

    return session_timeout_ms(kafka_bootstrap)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Server of children with compiled kernels: no test waits for the compiler within its own limits."""
    from tests.kafka.stream import start_fork_server

    start_fork_server()


@pytest.fixture(scope="module")
def make_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., KafkaCluster]]:
    """Start clusters of Apache Kafka whose nodes a module may strike, whatever KAFKA_BOOTSTRAP names."""
    found = request.config.stash.get(_INSTALLATION, None) or installation()
    with ExitStack() as stack:

        def make(**how: Any) -> KafkaCluster:
            if isinstance(found, KafkaUnavailable):
                raise _no_kafka(found)
            usual = {"java": found[0], "jars": found[1], "options": SHORT_LIVED}
            try:
                return stack.enter_context(KafkaCluster(**(usual | how)))
            except KafkaUnavailable as unavailable:
                raise _no_kafka(unavailable) from None

        yield make


def _no_kafka(unavailable: KafkaUnavailable) -> BaseException:
    """Return what a test without Apache Kafka ends with."""
    if kafka_is_required():
        return pytest.fail.Exception(f"REQUIRE_KAFKA is set, but {unavailable}", pytrace=False)
    return NoBroker("kafka", unavailable.reason, f"{unavailable.detail}; or name one by KAFKA_BOOTSTRAP")


@pytest.fixture(scope="session")
def embedded_bootstrap() -> Iterator[str]:
    """Address of an embedded broker."""
    broker = EmbeddedBroker()
    try:
        broker.start()
    except EmbeddedBrokerUnavailable as unavailable:
        raise NoBroker("broker", "no embedded broker", str(unavailable)) from None
    with broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def broker_bootstrap(apache_kafka: str | KafkaUnavailable, request: pytest.FixtureRequest) -> str:
    """Address of Apache Kafka, or of an embedded broker where there is none."""
    if isinstance(apache_kafka, str):
        return apache_kafka
    if kafka_is_required():
        pytest.fail(f"REQUIRE_KAFKA is set, but {apache_kafka}", pytrace=False)
    address: str = request.getfixturevalue("embedded_bootstrap")
    return address


@pytest.fixture(scope="session")
def unique_name() -> Callable[[str], str]:
    """Make names of topics, streams and groups that no other test has."""
    return lambda stem="test": f"{stem}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nothing refers to any more is freed, not what a circle holds."""
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
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _NO_BROKER:
            _skipped[tuple(value)] += 1
        elif name == _TO_LOOK_AT and report.when == "call":
            _to_look_at.append(str(value))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    # Outermost, because pytest prints its totals after `pytest_terminal_summary`: this comes last.
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        for path in _to_look_at:
            reporter.write_line(f"to look at: {path}")
        for (kind, reason), count in _skipped.items():
            tests = "TEST" if count == 1 else "TESTS"
            reporter.write_line(f"{count} {kind.upper()} {tests} SKIPPED: {reason.upper()}", yellow=True)
    return result
