"""Selection of a run's tests, and their order and groups.

A run has a scope and a part. The scope `test` is library, service and one smoke test of each extra; `rest` is
everything else, and further examples for Hypothesis; `all` is both. The part `pure` holds tests bound by the
processor, `waiting` tests that wait for brokers and other programs: the two need different numbers of
processes. `make` runs each part of a scope separately. Recorded seconds decide the order, and which tests are
too long for `test`; a new test counts as short.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "durations.csv"
"""Seconds of the tests of an earlier run, written by `python -m tests.durations`."""

KINDS = (
    ("browser", {"browser"}, "tests/browser/"),
    ("spark", {"spark_java", "spark", "spark_cluster"}, "tests/spark/"),
    ("image", {"image", "deployment"}, "tests/deploy/"),
    ("cluster", {"make_cluster", "three_brokers", "kafka_installation"}, "tests/upgrade/"),
    ("broker", {"kafka_bootstrap", "broker_bootstrap", "embedded_bootstrap"}, "tests/demo/"),
    ("registry", {"apicurio"}, "tests/service/registry/"),
    ("docs", set[str](), "tests/docs/"),
)
"""Kinds of tests by their needs: fixtures, or their folder. All others are pure."""

WAITING = tuple(
    f"tests/{name}/"
    for name in (
        *("browser", "dashboard", "demo", "deploy", "dev", "kafka", "service/registry", "soak", "spark"),
        "upgrade",
    )
)
"""Folders whose tests all belong to the part `waiting`."""
MIXED = (
    "tests/admin/test_produce.py",
    "tests/admin/test_produce_reports.py",
    "tests/benchmarks/test_noise.py",
    "tests/cli/test_app.py",
    "tests/cli/test_config.py",
    "tests/cli/test_dashboard.py",
    "tests/cli/test_payload.py",
    "tests/cli/test_status.py",
    "tests/cli/test_watch.py",
    "tests/client/test_producer.py",
    "tests/client/test_releases.py",
    "tests/client/test_unclosed.py",
    "tests/docs/test_code_blocks.py",
    "tests/docs/test_recipes.py",
    "tests/service/kafka/test_record_batches.py",
)
"""Files with tests of both parts, separated by their kinds."""

REST = (
    "tests/audit/test_cases.py",
    "tests/benchmarks/",
    "tests/browser/",
    "tests/dashboard/",
    "tests/demo/",
    "tests/deploy/",
    "tests/dev/",
    "tests/docs/test_code_blocks.py",
    "tests/docs/test_docs.py",
    "tests/docs/test_gallery.py",
    "tests/docs/test_new_estimator.py",
    "tests/docs/test_recipes.py",
    "tests/docs/test_site.py",
    "tests/experiments/",
    "tests/fuzz/",
    "tests/kafka/faults/test_chaos.py",
    "tests/kafka/faults/test_clock_jumps.py",
    "tests/kafka/faults/test_full_disk.py",
    "tests/kafka/faults/test_hung_broker.py",
    "tests/kafka/faults/test_lost_coordinators.py",
    "tests/kafka/faults/test_lost_tail.py",
    "tests/kafka/faults/test_slow_link.py",
    "tests/kafka/security/test_access.py",
    "tests/kafka/security/test_connecting.py",
    "tests/kafka/security/test_rotation.py",
    "tests/kafka/security/test_secrets.py",
    "tests/kafka/security/test_transports.py",
    "tests/kafka/test_many_streams.py",
    "tests/kafka/test_memory.py",
    "tests/kafka/test_projecting.py",
    "tests/kafka/test_traces.py",
    "tests/packaging/test_distribution.py",
    "tests/packaging/test_supply.py",
    "tests/service/projection/",
    "tests/service/test_tracing.py",
    "tests/soak/",
    "tests/spark/",
    "tests/upgrade/",
)
"""Files and folders that `make test` omits, except the tests in `KEPT`."""
KEPT = {
    "tests/dashboard/api/test_answers.py::test_streams_are_listed_by_name_with_their_numbers": "dashboard",
    "tests/demo/test_demo.py::test_the_demo_learns_the_flights_and_explains_itself": "demo",
    "tests/deploy/test_compose_file.py::test_docker_compose_accepts_the_file": "deployment",
    "tests/kafka/test_projecting.py::"
    "test_every_message_has_the_projection_that_its_release_computes": "projection",
    "tests/kafka/test_traces.py::test_each_batch_is_a_trace_of_public_quantities": "traces",
    "tests/spark/test_batch.py::test_sums_values_parts_and_blocks": "Spark",
    "tests/kafka/faults/test_crashes.py::test_a_kill_at_a_step_costs_nothing": "SIGKILL",
    "tests/kafka/faults/test_takeover.py::test_a_zombie_leaves_no_trace": "SIGSTOP, fence",
    "tests/kafka/faults/test_takeover.py::"
    "test_a_position_that_retention_deleted_is_an_error_with_nothing_charged": "retention",
    "tests/kafka/test_election.py::test_two_members_never_lead_one_stream_for_long": "rebalance",
    "tests/kafka/security/test_hostile_records.py::"
    "test_hostile_records_are_null_in_their_places_within_bounded_memory": "hostile record",
}
"""Tests that `make test` keeps, however long they take: one of each extra, and of each kind of fault that is
not too long. Faults of disks, clocks, links and coordinators, hung brokers and lost tails are in `rest`.
"""

SHARED = {
    "three_brokers": "tests/kafka/clusters",
    "spark_cluster": "tests/spark/cluster",
    "spark": "tests/spark/session",
    "apicurio": "tests/registry",
    "secured": "tests/kafka/secured",
}
"""Expensive session fixtures, and the group of tests that share each."""

LONG = {"pure": 0.6, "waiting": 6.0}
"""Recorded seconds, by part, that leave a test to `rest` when reached."""
FAST = 0.2
"""Largest recorded seconds of a fast test."""

PROFILES = {"test": 30, "rest": 70, "all": 100}
"""Examples of a Hypothesis test that sets no number itself, by scope: `test` and `rest` add up to `all`."""


def add_options(parser: pytest.Parser) -> None:
    """Add the options that choose a scope and a part."""
    group = parser.getgroup("selection", "tests/selection.py")
    group.addoption("--scope", choices=("test", "rest", "all"), default="all", help="what is tested (all)")
    group.addoption("--fast", action="store_true", help=f"only tests that took at most {FAST} s, or are new")
    group.addoption("--part", choices=("pure", "waiting", "both"), default="both", help="of the scope (both)")


def load_profile(config: pytest.Config) -> None:
    """Load the scope's Hypothesis profile, unless the command names another."""
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile(config.option.scope)


def kind_of(item: pytest.Item) -> str:
    """Return a test's kind, by its most expensive need."""
    names = set(getattr(item, "fixturenames", ()))
    return next((kind for kind, of, path in KINDS if of & names or item.nodeid.startswith(path)), "pure")


def is_unread(path: Path, config: pytest.Config) -> bool:
    """Return whether a file or folder without tests of the run need not be imported."""
    if not path.is_relative_to(ROOT / "tests"):
        return False
    name = path.relative_to(ROOT).as_posix() + "/" * path.is_dir()
    scope, part = config.option.scope, config.option.part

    def has(places: Iterable[str]) -> bool:
        return any(name.startswith(place) or (path.is_dir() and place.startswith(name)) for place in places)

    if scope == "test" and name.startswith(REST) and not any(test.startswith(name) for test in KEPT):
        return True
    if part == "pure":
        return name.startswith(WAITING)
    return part == "waiting" and not has((*WAITING, *MIXED))


def _is_in(item: pytest.Item, scope: str, seconds: float) -> bool:
    """Return whether a test belongs to a scope; the longest tests belong to `rest`."""
    is_left_out = item.nodeid.partition("[")[0] not in KEPT and (
        item.nodeid.startswith(REST)
        or item.get_closest_marker("rest") is not None
        or seconds >= LONG[_part_of(item)]
    )
    if scope == "test":
        return not is_left_out
    return is_left_out or _takes_examples(item)


def _takes_examples(item: pytest.Item) -> bool:
    """Return whether a test is a Hypothesis test whose profile sets the number of examples."""
    function = getattr(item, "obj", None)
    if not getattr(function, "is_hypothesis_test", False):
        return False
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    return own is None or own.max_examples == settings().max_examples


def _part_of(item: pytest.Item) -> str:
    """Return the part of a test; raise UsageError for a waiting test outside the known files."""
    if item.nodeid.startswith(WAITING):
        return "waiting"
    if kind_of(item) in ("pure", "docs"):
        return "pure"
    if not item.nodeid.startswith(MIXED):
        line = f"{item.nodeid} waits for a program: add its file to MIXED in {__file__}"
        # A process of pytest-xdist ends without reporting its error.
        os.write(2, f"{line}\n".encode())
        raise pytest.UsageError(line)
    return "waiting"


def _group_of(item: pytest.Item) -> str | None:
    """Return the group of tests that must share a process with this one, or None."""
    if mark := item.get_closest_marker("xdist_group"):
        return str(mark.args[0])
    names = getattr(item, "fixturenames", ())
    if "make_cluster" in names and item.nodeid.startswith(("tests/kafka/faults/", "tests/kafka/security/")):
        # One after another: with more brokers than cores at the same time, all take longer.
        return "tests/kafka/clusters" if "/faults/" in item.nodeid else "tests/kafka/secured"
    if shared := next((group for name, group in SHARED.items() if name in names), None):
        return shared
    fixtures = getattr(item, "_fixtureinfo", None)
    found = fixtures.name2fixturedefs.values() if fixtures is not None else ()
    # Autouse fixtures of xunit style exist in every module.
    if any(
        f.scope in ("module", "class") and not f.argname.startswith("_xunit") for each in found for f in each
    ):
        return item.nodeid.partition("::")[0]
    return None


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the run's scope and part, the longest groups first."""
    scope, part = config.option.scope, config.option.part
    with_soak, most = "soak" in config.option.markexpr, FAST if config.option.fast else math.inf
    recorded = read_recorded()
    kept = [
        item
        for item in items
        if (with_soak or item.get_closest_marker("soak") is None)
        and recorded.get(item.nodeid, 0.0) <= most
        and (scope == "all" or _is_in(item, scope, recorded.get(item.nodeid, 0.0)))
        and (part == "both" or _part_of(item) == part)
    ]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    places: dict[pytest.Item, str] = {}
    seconds: Counter[str] = Counter()
    for item in kept:
        group = _group_of(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        # Pure tests stay together by file; in the part `waiting`, each test or group is a unit.
        place = group or (item.nodeid if part == "waiting" else item.nodeid.partition("::")[0])
        places[item] = place
        seconds[place] += recorded.get(item.nodeid, 0.0)
    items[:] = sorted(kept, key=lambda item: -seconds[places[item]])


def read_recorded() -> dict[str, float]:
    """Return the recorded seconds of tests; short tests are not recorded."""
    if not RECORDED.exists():
        return {}
    with RECORDED.open(newline="") as file:
        return {test: float(seconds) for test, seconds in csv.reader(file)}
