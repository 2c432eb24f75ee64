"""Prometheus reads its files, and the alerts fire with correct texts and timing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from streaming_pca.data.release import Release
from streaming_pca.service.metrics import Metrics, StreamMetrics
from tests.data.test_release import counted
from tests.deploy.compose import read_compose
from tests.deploy.grafana import NAMES, queries, read_dashboard
from tests.deploy.tools import ROOT, run_tool
from tests.security.needles import secret

FILES = ROOT / "deploy" / "prometheus"
CASES = Path(__file__).with_name("alerts_test.yml")


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    # It also requires the token, which is in a volume.
    (tmp_path / "token").write_text(secret("token"))
    text = (FILES / "prometheus.yml").read_text()
    assert text.count("/access-metrics/token") == 1
    (tmp_path / "prometheus.yml").write_text(text.replace("/access-metrics/token", f"{tmp_path}/token"))
    for name in ("recording.yml", "alerts.yml"):
        (tmp_path / name).write_text((FILES / name).read_text())
    checked = run_tool("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for rules in ("6 rules found", "14 rules found"):
        assert rules in checked.stdout


def test_alerts_fire_when_they_should_and_only_then() -> None:
    tested = run_tool("promtool", "test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("== 0\n        for: 1m", "== 1\n        for: 1m"),
        ("absent(streaming_pca_leader)", "vector(0) > 1"),
        ("unless sum by (stream) (streaming_pca_leader)", ""),
        ("max_over_time(streaming_pca_leader[6h]) * 0", "streaming_pca_leader * 0"),
        ("streaming_pca_leader) > 1", "streaming_pca_leader) > 2"),
        ("streaming_pca_leader) > 1\n        for: 5m", "streaming_pca_leader) > 1\n        for: 1m"),
        ("< 2", "< 1"),
        ("streaming_pca_refused == 1", "streaming_pca_refused == 0"),
        ("waiting_batches:ratio > 2", "waiting_batches:ratio > 0.5"),
        ("offset 20m", "offset 10m"),
        ("problems) > 0", "problems) > 5"),
        ("2 * 86400", "86400"),
        ("unless on (stream) streaming_pca_verification", "and on (stream) streaming_pca_verification"),
        ("mean5m > 0.5", "mean5m > 2"),
        ("max by (stream) (streaming_pca_planned_records) > 0", "scalar(streaming_pca_planned_records)"),
        ("_sum[5m]", "_count[5m]"),
        ("max by (stream) (streaming_pca_lag_records)", "min by (stream) (streaming_pca_lag_records)"),
        ("< 0.1", "< 0.3"),
        ("0 < stream", "0 <= stream"),
        ("          min by", "          max by"),
        ("unless on", "and on"),
        (">= on (stream)", "> on (stream)"),
        (">= on (stream)", "< on (stream)"),
        ("streaming_pca_planned_records[15m]", "streaming_pca_planned_records[2m]"),
        ("streaming_pca_lag_records[15m]", "streaming_pca_lag_records[2m]"),
        ("for: 1h", "for: 10m"),
        ("> 0.05", "> 0.5"),
        ("> 0.9", "> 0.97"),
        ("- 5 * streaming", "- 3 * streaming"),
        ("- 5 * streaming", "- 9 * streaming"),
        ("> 5 * streaming_pca_batch_counts_standard_error", "> 0"),
        ("streaming_pca_batch_clipped_of", "streaming_pca_batch_counts_records"),
        ("streaming_pca_batch_counts_records == 0", "streaming_pca_batch_counts_records < 0"),
        ("and streaming_pca_leader == 1", ""),
    ],
)
def test_an_alert_that_is_wrong_is_noticed(tmp_path: Path, old: str, new: str) -> None:
    """Cases of other alerts are left out, unless a recorded rule is wrong: all of them take a second."""
    rules = {name: (FILES / name).read_text() for name in ("recording.yml", "alerts.yml")}
    assert any(old in text for text in rules.values())
    for name, text in rules.items():
        (tmp_path / name).write_text(text.replace(old, new))
    cases = yaml.safe_load(CASES.read_text().replace("../../deploy/prometheus/", ""))
    if old not in rules["recording.yml"]:
        changed = rules_of(tmp_path / "alerts.yml")
        wrong = {rule["alert"] for rule in rules_of("alerts.yml") if rule not in changed}
        tested = [{test["alertname"] for test in case.get("alert_rule_test", ())} for case in cases["tests"]]
        cases["tests"] = [case for case, of in zip(cases["tests"], tested, strict=True) if wrong & of]
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    done = run_tool("promtool", "test", "rules", tmp_path / "cases.yml")
    assert done.returncode == 1
    assert "FAILED" in done.stdout + done.stderr


def test_rules_and_dashboards_name_metrics_that_a_worker_has_or_a_rule_records() -> None:
    metrics = Metrics()
    StreamMetrics(metrics, "s").set_noisy_counts(Release(**counted()), 299)
    families = re.findall(r"^# TYPE (\w+) (\w+)", metrics.text().decode(), re.MULTILINE)
    known = {name for name, _ in families}
    parts = ("sum", "count", "bucket")
    known |= {f"{name}_{part}" for name, kind in families if kind == "histogram" for part in parts}
    known |= {rule["record"] for rule in rules_of("recording.yml")}
    text = " ".join(rule["expr"] for name in ("recording.yml", "alerts.yml") for rule in rules_of(name))
    text += " ".join(expression for name in NAMES for _, expression in queries(read_dashboard(name)))
    named = set(re.findall(r"(?:\w+:)?streaming_pca_\w+(?::\w+)?", text))
    assert len(named) >= 20
    assert named <= known


def rules_of(name: str | Path) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FILES / name).read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def test_every_alert_has_a_section_of_the_runbook_and_every_section_an_alert() -> None:
    config = yaml.safe_load((FILES / "prometheus.yml").read_text())
    path = config["global"]["external_labels"]["runbooks"]
    page = (ROOT / path).read_text()
    # The label only serves the links: alerts do not carry it to Alertmanager.
    assert config["alerting"]["alert_relabel_configs"] == [{"regex": "runbooks", "action": "labeldrop"}]
    sections = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    alerts = [rule["alert"] for rule in rules_of("alerts.yml")]
    assert sections[::2] == alerts
    for rule, text in zip(rules_of("alerts.yml"), sections[1::2], strict=True):
        base = f'{{{{ or $externalLabels.runbooks "{path}" }}}}'
        assert rule["annotations"]["runbook_url"] == f"{base}#{rule['alert'].lower()}"
        for part in ("**Means**", "**Look at**", "**Do**"):
            assert part in text, rule["alert"]


def test_every_worker_is_scraped_by_its_name_and_port() -> None:
    services = read_compose()["services"]
    (job,) = yaml.safe_load((FILES / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for group in job["static_configs"] for target in group["targets"]}
    workers = [name for name, each in services.items() if each.get("command", [""])[0] == "worker"]
    assert targets == {f"{name}:9464" for name in workers}
    assert len(workers) == 2
