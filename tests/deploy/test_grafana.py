"""Dashboards and provisioning of deploy/grafana are consistent and match Grafana's own schema.

test_monitoring.py shows that each query has data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.grafana import GRAFANA, NAMES, queries, read_dashboard, resolved, variables
from tests.deploy.tools import run_tool
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


def provisioned(folder: str, name: str) -> Any:
    return yaml.safe_load((GRAFANA / "provisioning" / folder / f"{name}.yml").read_text())


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
    (source,) = provisioned("datasources", "prometheus")["datasources"]
    definition = {"type": source["type"], "uid": source["uid"]}
    for name in NAMES:
        dashboard = read_dashboard(name)
        for user in (*dashboard["panels"], *dashboard["templating"]["list"]):
            assert user["datasource"] == definition
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


def test_grafana_reads_the_dashboards_where_they_are_mounted() -> None:
    (provider,) = provisioned("dashboards", "streaming-pca")["providers"]
    assert (provider["type"], provider["options"]["path"]) == ("file", "/etc/grafana/dashboards")


# What the leader l and a standby that has led, b, show for a stream.
_SERIES = {
    'streaming_pca_leader{stream="s", instance="l"}': 1,
    'streaming_pca_leader{stream="s", instance="b"}': 0,
    'streaming_pca_explained_variance{stream="s", instance="l", component="1"}': 5,
    'streaming_pca_explained_variance{stream="s", instance="l", component="2"}': 3,
    'streaming_pca_explained_variance{stream="s", instance="b", component="1"}': 9,
    'streaming_pca_total_variance{stream="s", instance="b"}': 99,
    'streaming_pca_total_variance{stream="other", instance="l"}': 99,
    'streaming_pca_batch_clipped_records{stream="s", instance="l"}': 30,
    'streaming_pca_batch_clipped_of{stream="s", instance="l"}': 200,
    'streaming_pca_batch_counts_standard_error{stream="s", instance="l"}': 8,
}


def evaluate(folder: Path, expected: Mapping[str, list[tuple[str, float]]], total: float) -> str:
    """Return promtool's complaints about the values of a dashboard's queries."""
    series = _SERIES | {'streaming_pca_total_variance{stream="s", instance="l"}': total}
    given = [{"series": name, "values": str(value)} for name, value in series.items()]
    tests = []
    for expression, samples in expected.items():
        found = [{"labels": labels, "value": value} for labels, value in samples]
        expr = resolved(expression, {"stream": "s"})
        tests.append({"expr": expr, "eval_time": "0m", "exp_samples": found})
    cases = {"tests": [{"input_series": given, "promql_expr_test": tests}]}
    (folder / "cases.yml").write_text(yaml.safe_dump(cases))
    done = run_tool("promtool", "test", "rules", folder / "cases.yml")
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(("total", "rest"), [(10.0, 2.0), (7.0, 0.0)], ids=["above", "below"])
def test_variances_and_their_rest_are_those_of_the_leader_s_last_release(
    tmp_path: Path, total: float, rest: float
) -> None:
    panels = {panel["title"]: panel for panel in read_dashboard("stream")["panels"]}
    components, remainder = (target["expr"] for target in panels["Variances"]["targets"])
    name = 'streaming_pca_explained_variance{stream="s", instance="l", component="%d"}'
    expected = {
        components: [(name % 1, 5.0), (name % 2, 3.0)],
        remainder: [('{stream="s", instance="l"}', rest)],
    }
    assert evaluate(tmp_path, expected, total) == ""
    assert "got:" in evaluate(tmp_path, expected | {remainder: [('{stream="s", instance="l"}', 1.0)]}, total)


def test_the_share_of_clipped_records_has_its_own_error(tmp_path: Path) -> None:
    panels = {panel["title"]: panel for panel in read_dashboard("stream")["panels"]}
    share, error = (target["expr"] for target in panels["Clipped records"]["targets"])
    labels = '{stream="s", instance="l"}'
    assert evaluate(tmp_path, {share: [(labels, 0.15)], error: [(labels, 0.04)]}, 10.0) == ""
