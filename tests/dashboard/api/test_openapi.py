"""The OpenAPI document matches the API: schemathesis tests every operation, in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from streaming_pca.dashboard.api.application import openapi_document
from tests.dashboard.api.conftest import World

_EXAMPLES = 6
"""Number of random examples of each operation."""


def document_with_names(world: World) -> dict[str, Any]:
    """Return the document with existing names: most answers have contents, and other names are 404."""
    found = openapi_document()
    streams = [world.flights.name, world.unborn.name, world.missing.name]
    named = {"name": streams, "input": [f"in-{name}" for name in streams]}
    for operations in found["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter.get("in") == "path" and parameter["name"] in named:
                    names = named[parameter["name"]]
                    parameter["schema"] = {"type": "string", "enum": names, "examples": names[:1]}
    return found


def configuration() -> SchemathesisConfig:
    """Return a configuration with all checks, and the same examples each time."""
    # A forecast refuses some combinations of individually valid numbers. The broker of a busy machine
    # may be slow: 503 is then an answer, but never an operation's only one.
    slow = ["2xx", "3xx", "4xx", "503"]
    statuses = {"not_a_server_error": slow, "positive_data_acceptance": ["2xx", "304", "404", "422", "503"]}
    how: dict[str, Any] = {
        **{"seed": 23, "base-url": "http://127.0.0.1", "headers": {"Host": "127.0.0.1"}},
        # Above the API's own limits, so that the API reports what took too long.
        "request-timeout": 60,
        "generation": {"max-examples": _EXAMPLES, "deterministic": True, "database": "none"},
        "checks": {name: {"expected-statuses": each} for name, each in statuses.items()},
    }
    return SchemathesisConfig.from_dict(how)


def is_left_out(context: Any) -> bool:
    """Return whether other tests cover an operation: events are endless, HEAD is one function."""
    path, method = context.operation.path, context.operation.method.upper()
    return path == "/v1/events" or (method == "HEAD" and "/releases/" not in path)


def found_by_schemathesis(world: World) -> tuple[list[str], set[str], int]:
    """Run all of its phases; return the failures, the operations answered, and the number of requests."""
    schema = schemathesis.openapi.from_dict(document_with_names(world), config=configuration())
    schema.app = world.server.server.application()
    failures: list[str] = []
    labels: set[str] = set()
    requests = 0
    for event in from_schema(schema.exclude(is_left_out)).execute():
        if isinstance(event, events.NonFatalError):
            causes = getattr(event.value, "exceptions", ())
            failures.append(f"{event.label}: {event.value} {[repr(cause) for cause in causes]}")
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.ScenarioFinished):
            recorder = event.recorder
            answers = [asked.response for asked in recorder.interactions.values()]
            if any(answer is not None and answer.status_code != 503 for answer in answers):
                labels.add(recorder.label)
            requests += len(answers)
            for case, checks in recorder.checks.items():
                for check in checks:
                    if check.failure_info is not None:
                        asked = recorder.interactions[case].request.uri
                        why = " ".join(str(check.failure_info.failure).split())
                        failures.append(f"{recorder.label} {check.name}: {why}: {asked}")
    return failures, labels, requests


# A thread of the Kafka client draws a random number while hypothesis makes an example.
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
def test_answers_are_as_the_document_says(world: World) -> None:
    failures, labels, requests = found_by_schemathesis(world)
    assert not failures, f"{len(failures)}:\n" + "\n".join(sorted(set(failures))[:40])
    paths = set(openapi_document()["paths"]) - {"/v1/events"}
    assert {f"GET {path}" for path in paths} <= labels
    assert requests > 300, requests


def test_the_document_needs_no_broker_and_is_always_the_same() -> None:
    made = openapi_document()
    assert made == openapi_document()
    assert made["openapi"] == "3.1.0"
    names = [operation["operationId"] for path in made["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) == 2 * 16 + 1
    for path, operations in made["paths"].items():
        assert set(operations) - {"post"} == {"get", "head"}, path
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["tags"], path
            assert {"422", "503"} <= set(operation["responses"]), path
    assert "/work" not in json.dumps(made)


def test_the_document_is_served(world: World) -> None:
    assert world.json("openapi.json") == openapi_document()
