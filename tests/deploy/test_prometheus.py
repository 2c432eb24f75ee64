"""Prometheus reads its files, and the alerts say what they should and when."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from streaming_pca.data.release import Release
from streaming_pca.service.metrics import Metrics
from tests.data.test_counts import counted
from tests.deploy.compose import read_compose
from tests.deploy.tools import ROOT, run_tool
from tests.security.needles import secret

FILES = ROOT / "deploy" / "prometheus"
CASES = Path(__file__).with_name("alerts_test.yml")


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    # It looks for the token too, which is in a volume.
    (tmp_path / "token").write_text(secret("token"))
    text = (FILES / "prometheus.yml").read_text()
    assert text.count("/access/token") == 1
    (tmp_path / "prometheus.yml").write_text(text.replace("/access/token", f"{tmp_path}/token"))
    (tmp_path / "alerts.yml").write_text((FILES / "alerts.yml").read_text())
    checked = run_tool("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "7 rules found" in checked.stdout


def test_alerts_fire_when_they_should_and_only_then() -> None:
    tested = run_tool("promtool", "test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("== 0\n        for: 1m", "== 1\n        for: 1m"),
        ("absent(streaming_pca_leader)", "vector(0) > 1"),
        ("< 2", "< 1"),
        ("< 0.1", "< 0.3"),
        ("0 < min", "0 <= min"),
        ("0 < min", "0 < max"),
        ("unless on", "and on"),
        ("streaming_pca_lag_records) > 0", "streaming_pca_lag_records) >= 0"),
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
    rules = (FILES / "alerts.yml").read_text()
    assert old in rules
    (tmp_path / "alerts.yml").write_text(rules.replace(old, new))
    cases = CASES.read_text().replace("../../deploy/prometheus/alerts.yml", "alerts.yml")
    (tmp_path / "cases.yml").write_text(cases)
    assert run_tool("promtool", "test", "rules", tmp_path / "cases.yml").returncode == 1


def test_alerts_name_metrics_that_a_worker_has() -> None:
    metrics = Metrics()
    metrics.for_stream("s").set_noisy_counts(Release(**counted()), 299)
    known = set(re.findall(r"^# TYPE (\w+)", metrics.text().decode(), re.MULTILINE))
    named = set(re.findall(r"streaming_pca_\w+", (FILES / "alerts.yml").read_text())) - {"streaming_pca"}
    assert len(named) >= 8
    assert named <= known


def test_every_worker_is_scraped_by_its_name_and_port() -> None:
    services = read_compose()["services"]
    (job,) = yaml.safe_load((FILES / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for group in job["static_configs"] for target in group["targets"]}
    workers = [name for name, told in services.items() if told.get("command", [""])[0] == "worker"]
    assert targets == {f"{name}:9464" for name in workers}
    assert len(workers) == 2
