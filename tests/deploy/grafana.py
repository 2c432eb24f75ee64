"""The files of deploy/grafana as data, and the queries in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.deploy.tools import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
NAMES = sorted(path.stem for path in (GRAFANA / "dashboards").glob("*.json"))

_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def read_dashboard(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text())
    return loaded


def variables(dashboard: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the series and label that provide the values of each variable of a dashboard."""
    found = {}
    for variable in dashboard["templating"]["list"]:
        match = _LABEL_VALUES.fullmatch(variable["query"])
        assert match is not None, variable
        found[variable["name"]] = match[1], match[2]
    return found


def queries(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title of the panel and the expression, variables unresolved."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def resolved(promql: str, values: Mapping[str, str]) -> str:
    """Return the query that Grafana sends to Prometheus."""
    return re.sub(r"\$(\w+)", lambda m: values[m[1]], promql)
