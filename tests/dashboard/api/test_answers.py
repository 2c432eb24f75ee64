"""The API's answers equal the topics' contents, with validators, pages and problems."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from streaming_pca.dashboard.guarantee import guarantee_in_words
from streaming_pca.dashboard.models import LedgerPage, StreamPage, Verification
from streaming_pca.data.release import Release
from streaming_pca.estimators.forecast.forecast import forecast
from streaming_pca.estimators.forecast.result import as_json
from tests.dashboard.api.conftest import FEATURES, ApiSite, World
from tests.dashboard.streams import RECORDS
from tests.service.http.running import serving
from tests.waiting import wait_for

PLAN = "plan?dim=50&rank=2&records=100000&epsilon=1&delta=1e-6"


def problem_of(answer: Any, status: int) -> str:
    """Return the line of a problem, which has the common form."""
    assert answer.status == status, (answer.status, answer.body)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    found = answer.json
    assert sorted(found) == ["detail", "instance", "status", "title", "type"]
    assert found["status"] == status
    assert "\n" not in found["detail"]
    assert "Traceback" not in found["detail"]
    return str(found["detail"])


def problem(world: World, path: str, status: int, method: str = "GET") -> str:
    return problem_of(world.server.ask(f"/v1/{path}", method), status)


# -- contents of the topics --------------------------------------------------


def test_streams_are_listed_by_name_with_their_numbers(world: World) -> None:
    page = StreamPage.model_validate(world.json("streams"))
    assert [s.name for s in page.items] == world.names
    assert page.next is None
    assert page.connection.ok
    assert page.connection.loaded
    by_name = {s.name: s for s in page.items}
    flights = by_name[world.flights.name]
    assert flights.records == 30 * RECORDS
    assert flights.last_release is not None
    assert flights.last_release.batch == 30
    assert flights.last_release.digest == sha256(world.flights.values[-1]).hexdigest()
    assert "missing" in str(by_name[world.missing.name].problem)
    assert by_name[world.unborn.name].last_release is None


def models(world: World) -> dict[str, BaseModel]:
    """Return each path whose answer is a model of the observer, with the model."""
    observer, name, topic = world.observer, world.flights.name, world.flights.settings.stream.input
    overview, detail = observer.overview(), observer.stream(name)
    assert detail.budget is not None
    return {
        "streams": StreamPage(items=overview.streams, connection=overview.connection),
        f"streams/{name}": detail.model_copy(update={"guarantee": guarantee_in_words(detail)}),
        f"streams/{name}/history": observer.history(name),
        f"streams/{name}/traffic": observer.traffic(name),
        f"streams/{name}/budget": detail.budget,
        f"streams/{name}/releases": observer.releases(name, 50),
        "ledger": LedgerPage(items=observer.ledgers(), connection=overview.connection),
        f"ledger/{topic}": observer.ledger(topic),
        f"ledger/{topic}/entries": observer.entries(topic, 50),
        f"ledger/{topic}/entries?limit=3&job={name}": observer.entries(topic, 3, job=name),
        f"ledger/{topic}/verification": observer.verification(topic),
        f"ledger/{topic}/records/0/{RECORDS}": observer.record_charge(topic, 0, RECORDS),
    }


def test_answers_from_memory_are_the_observers(world: World) -> None:
    for path in models(world):
        # Lags and leaders may arrive between both answers.
        wait_for(path, lambda path=path: world.json(path) == models(world)[path].model_dump(mode="json"))
    name, topic = world.flights.name, world.flights.settings.stream.input
    assert "(1, 1e-06)" in world.json(f"streams/{name}")["guarantee"][0]
    assert world.json(f"streams/{name}")["feature_names"] == FEATURES
    assert world.json(f"streams/{name}/history")["batch"] == list(range(1, 31))
    assert world.json(f"streams/{name}/budget")["cap"]["epsilon"] == "10"
    assert len(world.json("ledger")["items"]) == 4
    charge = world.json(f"ledger/{topic}/records/0/{RECORDS}")
    assert (charge["spent"]["epsilon"], charge["left"]["epsilon"], [*charge["jobs"]]) == ("1", "9", [name])


def test_a_release_is_answered_with_its_own_bytes(world: World) -> None:
    name = world.flights.name
    for place, value in (("latest", world.flights.values[-1]), ("1", world.flights.values[0])):
        answer = world.get(f"streams/{name}/releases/{place}")
        assert answer.body == value
        assert answer.headers["etag"] == f'"{sha256(value).hexdigest()}"'
        assert answer.headers["content-type"] == "application/json"
    assert 'filename="' + name + '-1.json"' in answer.headers["content-disposition"]
    assert answer.headers["cache-control"] == "no-cache"


def test_npz_holds_the_same_arrays_and_always_the_same_bytes(world: World) -> None:
    path = f"streams/{world.flights.name}/releases/7?format=npz"
    first, second = world.get(path), world.get(path)
    assert first.body == second.body
    assert first.headers["etag"] == f'"{sha256(first.body).hexdigest()}"'
    assert first.headers["content-disposition"].endswith('-7.npz"')
    release = world.flights.releases[6]
    with np.load(io.BytesIO(first.body), allow_pickle=False) as found:
        assert found["components"].dtype == np.float64
        np.testing.assert_array_equal(found["components"], release.components)
        np.testing.assert_array_equal(found["explained_variance"], release.explained_variance)
        assert found["feature_names"].tolist() == FEATURES
        assert int(found["batch"]) == 7
        assert float(found["epsilon"]) == 1.0
        assert "mean" not in found
        assert str(found["centering_rule"]) == "none"


def test_a_verification_is_started_once_and_ends(world: World) -> None:
    topic = world.few.settings.stream.input
    path = f"ledger/{topic}/verification"
    assert world.json(path)["state"] == "never"
    started = world.server.ask(f"/v1/{path}", "POST")
    assert started.status == 202
    assert started.json["state"] == "running"
    ended = wait_for("the verification", lambda: (found := world.json(path))["state"] != "running" and found)
    assert Verification.model_validate(ended).state == "problems"
    assert ended["problems"]


def test_a_plan_is_the_commands(world: World) -> None:
    found = world.json(f"{PLAN}&gap=0.1&batches=3&tail=2&contributions=2")
    made = forecast(50, 2, 100_000, 1.0, 1e-6, batches=3, tail=2.0, contributions=2)
    expected = as_json(made, 0.1)
    expected["charge"] = {name: expected["charge"].get(name) for name in ("epsilon", "delta", "rho")}
    assert found == json.loads(json.dumps(expected))


# -- validators and HEAD ------------------------------------------------------


def test_each_path_has_a_validator_and_answers_head(world: World) -> None:
    releases = (f"streams/{world.flights.name}/releases/{each}" for each in ("latest", "2", "2?format=npz"))
    for path in (*models(world), *releases, PLAN, "openapi.json"):
        got = world.get(path)
        assert got.status == 200, path
        tag = got.headers["etag"]
        is_release = "/releases/" in path
        assert tag.startswith('"' if is_release else 'W/"'), path
        assert got.headers["cache-control"] == "no-cache", path
        head = world.server.ask(f"/v1/{path}", "HEAD")
        assert (head.status, head.body, head.headers["etag"]) == (200, b"", tag), path
        assert head.headers["content-length"] == str(len(got.body)), path
        for given in (tag, f'"other", {tag}', "*", tag.removeprefix("W/")):
            same = world.get(path, if_none_match=given)
            assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag), (path, given)
        assert world.get(path, if_none_match='"other"').status == 200, path


def test_head_of_what_is_not_there_is_404_without_a_body(world: World) -> None:
    answer = world.server.ask("/v1/streams/nothing", "HEAD")
    assert answer.status == 404
    assert answer.body == b""


def test_other_origins_are_named_only_if_they_are_allowed(world: World) -> None:
    origin = "https://board.example"
    assert "access-control-allow-origin" not in world.get("streams", origin=origin).headers
    with serving(site=ApiSite(world.observer, runs=False), origins=[origin]) as named:
        allowed = named.ask("/v1/streams", origin=origin)
        assert allowed.status == 200
        assert allowed.headers["access-control-allow-origin"] == origin
        other = named.ask("/v1/streams", origin="https://other.example")
        assert "access-control-allow-origin" not in other.headers


# -- problems -------------------------------------------------------------------


def test_what_is_not_there_is_404(world: World) -> None:
    name, topic = world.flights.name, world.flights.settings.stream.input
    assert "'nothing'" in problem(world, "streams/nothing", 404)
    assert "batch 31" in problem(world, f"streams/{name}/releases/31", 404)
    assert "no release yet" in problem(world, f"streams/{world.unborn.name}/releases/latest", 404)
    assert "nowhere" in problem(world, "ledger/nowhere", 404)
    assert "offset" in problem(world, f"ledger/{topic}/records/0/999999999", 404)
    assert "/v1/openapi.json" in problem(world, "nothing", 404)
    assert "/v1/openapi.json" in problem(world, "streams/", 404)


def test_topics_that_are_missing_are_503_with_the_problem(world: World) -> None:
    name, topic = world.missing.name, world.missing.settings.stream.input
    for path in ("budget", "history", "releases", "releases/latest", "releases/1"):
        assert "missing" in problem(world, f"streams/{name}/{path}", 503)
    for path in ("entries", "records/0/0"):
        assert "missing" in problem(world, f"ledger/{topic}/{path}", 503)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("streams?limit=0", "limit should be greater than or equal to 1"),
        ("streams?limit=201", "limit should be less than or equal to 200"),
        ("streams?limit=many", "limit should be a valid integer"),
        ("streams?limit=1&limit=2", "give it once"),
        ("streams?page=2", "unknown parameter 'page': use limit, after"),
        ("openapi.json?x=", "this path takes none"),
        ("streams/a%20b", "name"),
        ("streams/flights/releases/-1", "batch"),
        (f"streams/flights/releases/{10**30}", "batch"),
        ("streams/flights/releases/1?format=pickle", "format should be 'json' or 'npz'"),
        ("ledger/t/records/0/99999999999999999999", "offset"),
        ("plan?dim=50", "missing: rank, records, epsilon, delta"),
        (PLAN.replace("rank=2", "rank=51"), "rank = 51 is above dim = 50"),
        (PLAN.replace("epsilon=1", "epsilon=nan"), "epsilon"),
        (PLAN.replace("epsilon=1", "epsilon=inf"), "epsilon"),
        (f"{PLAN}&gap=0.9", "gap = 0.9 is above 1/2 = 0.5: "),
        (f"{PLAN}&batches=10001", "batches should be less than or equal to 10000"),
    ],
)
def test_parameters_are_refused_in_a_line(world: World, path: str, words: str) -> None:
    assert words in problem(world, path, 422)


def test_methods_are_refused_with_those_that_are_allowed(world: World) -> None:
    answer = world.server.ask("/v1/streams", "DELETE")
    assert "GET, HEAD" in problem_of(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD"
    topic = world.few.settings.stream.input
    answer = world.server.ask(f"/v1/ledger/{topic}/verification", "PUT")
    assert answer.headers["allow"] == "GET, HEAD, POST"


# -- pages ---------------------------------------------------------------------


def pages(world: World, path: str, parameter: str) -> Iterator[Any]:
    """Yield each page of a path, along the links to the next ones."""
    query = path.partition("?")[2]
    while True:
        answer = world.get(path)
        assert answer.status == 200, answer.body
        yield answer.json
        if answer.json["next"] is None:
            assert "link" not in answer.headers
            return
        more = f"?{query}&{parameter}={answer.json['next']}"
        assert answer.headers["link"] == f'<{more}>; rel="next"'
        path = path.partition("?")[0] + more


def test_pages_of_streams(world: World) -> None:
    found = [each["name"] for page in pages(world, "streams?limit=1", "after") for each in page["items"]]
    assert found == world.names


def test_pages_of_entries(world: World) -> None:
    topic = world.flights.settings.stream.input
    parts = list(pages(world, f"ledger/{topic}/entries?limit=7", "before"))
    found = [row["offset"] for page in parts for row in page["items"]]
    assert found == sorted(set(found), reverse=True)
    assert len(found) == world.observer.ledger(topic).entries
    assert parts[-1]["complete"]


def test_pages_hold_each_release_once_while_new_ones_arrive(world: World) -> None:
    """This test publishes, so it runs last in this module."""
    name, found = world.flights.name, []
    for page in pages(world, f"streams/{name}/releases?limit=4", "before"):
        found += [each["batch"] for each in page["items"]]
        world.flights.publish(1)
    assert found == list(range(30, 0, -1))
    wait_for("the history", lambda: world.observer.history(name).batch[-1] > 30)
    latest = Release.from_bytes(world.get(f"streams/{name}/releases/latest").body)
    assert latest.batch > 30
