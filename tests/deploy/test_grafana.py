"""Dashboards and provisioning of deploy/grafana are consistent and match Grafana's own schema.

test_monitoring.py shows that each query has data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.grafana import GRAFANA, NAMES, queries, read_dashboard, variables
from tests.deploy.watched import RULES

register_default_plugins()


def unknown(given: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Yield the fields that Grafana's types do not keep."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key in kept:
                yield from unknown(value, kept[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"
    elif isinstance(given, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from unknown(one, other, f"{where}[{number}]")
    elif given != kept:
        yield where


def by_schema(dashboard: dict[str, Any]) -> list[str]:
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    return list(unknown(dashboard, kept))


def test_there_are_dashboards_of_all_streams_of_one_and_of_processes() -> None:
    assert NAMES == ["overview", "processes", "stream"]
    uids = [read_dashboard(name)["uid"] for name in NAMES]
    assert uids == [f"streaming-pca-{name}" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_grafana_knows_every_field_of_a_dashboard(name: str) -> None:
    dashboard = read_dashboard(name)
    assert by_schema(dashboard) == []
    assert dashboard["schemaVersion"] == Dashboard().schema_version
    dashboard["panels"][1]["targets"][0]["legend"] = dashboard["tittle"] = "misspelt"
    assert by_schema(dashboard) == [".panels[1].targets[0].legend", ".tittle"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_their_own_place_and_a_title(name: str) -> None:
    panels = read_dashboard(name)["panels"]
    assert [panel["id"] for panel in panels] == [*range(1, len(panels) + 1)]
    titles = [panel["title"] for panel in panels]
    assert len({*titles}) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["targets"]


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_of_a_query_is_defined_and_used(name: str) -> None:
    dashboard = read_dashboard(name)
    text = " ".join(expression for _, expression in queries(dashboard))
    assert all(f"${variable}" in text for variable in variables(dashboard))
    for known in (*variables(dashboard), "__rate_interval"):
        text = text.replace(f"${known}", "")
    assert "$" not in text


def test_dashboards_and_rules_ask_the_provisioned_source() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    definition = {"type": source["type"], "uid": source["uid"]}
    for name in NAMES:
        dashboard = read_dashboard(name)
        for user in (*dashboard["panels"], *dashboard["templating"]["list"]):
            assert user["datasource"] == definition
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


def test_grafana_reads_the_dashboards_where_they_are_mounted() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/streaming-pca.yml").read_text())[
        "providers"
    ]
    assert (provider["type"], provider["options"]["path"]) == ("file", "/etc/grafana/dashboards")
