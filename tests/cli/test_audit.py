"""`streaming-pca audit` from a user's view."""

from __future__ import annotations

import json

import numpy as np
import pytest

from streaming_pca.audit import bounds
from streaming_pca.audit.mechanisms import LOCAL_CASES, MECHANISM_CASES
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.privacy.calibration.multipliers import gaussian_delta
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.cli.command import call
from tests.privacy.noise import ScriptedSampler

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
FEW = ("--trials", 80)
"""Enough to refute something at epsilon = 1, and quick. A true claim is refuted by 1 in 10,000 at most."""


def test_one_mechanism_gives_one_object(capfd: Capture) -> None:
    how = ("--mechanism", "gaussian_on_vector", "--trials", 400, "--epsilon", 2, "--delta", 1e-5, "--json")
    result = call(capfd, "audit", *how)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["epsilon"], facts["delta"], facts["trials"]) == (2.0, 1e-5, 400)
    assert 0 <= facts["epsilon_lower_bound"] < 2
    assert facts["confidence"] == 0.95
    assert facts["refuted"] is False
    assert {case["id"] for case in facts["cases"]} == {"gaussian_on_vector", "gaussian_on_vector/replay"}
    for case in facts["cases"]:
        assert (case["epsilon"], case["delta"], case["trials"]) == (2.0, 1e-5, 400)
        assert gaussian_delta(2, 1 / case["mu"]) == pytest.approx(1e-5, rel=1e-6)
        assert 0 <= case["mu_lower_bound"] < 1
        assert case["epsilon_lower_bound"] >= 0
        assert case["refuted"] is False


def test_all_are_audited_where_none_is_named(capfd: Capture, monkeypatch: Patch) -> None:
    """This tests the command alone: tests/audit covers the noise."""
    monkeypatch.setattr(bounds, "_scores", lambda case, second, trials, advance: np.arange(trials) / 1.0)
    result = call(capfd, "audit", *FEW, "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    audited = {case["id"].split("/")[0] for case in facts["cases"]}
    private = {name for name, kind in ESTIMATORS.items() if kind.info.private and not kind.info.local}
    assert audited == private | MECHANISM_CASES.keys() | LOCAL_CASES.keys()
    # Some mechanisms do not claim a mu.
    assert {None} < {case["mu"] for case in facts["cases"]}
    assert facts["epsilon_lower_bound"] <= max(case["epsilon_lower_bound"] for case in facts["cases"])


@pytest.mark.parametrize(
    ("estimator", "own"),
    [
        pytest.param("adaptive", ["block"], marks=pytest.mark.soak),
        ("analyze-gauss", ["layers", "sizes", "floats"]),
        pytest.param("block", [], marks=pytest.mark.soak),
        ("private-oja", []),
    ],
)
def test_an_estimator_gives_a_table_a_line_a_case(capfd: Capture, estimator: str, own: list[str]) -> None:
    result = call(capfd, "audit", "--estimator", estimator, *FEW)
    assert result.returncode == 0, result.stderr
    for name in ("sum", "matrix", "pairs", "user", "counts", "stream", *own):
        assert f"{estimator}/{name}" in result.stdout
    assert "not refuted" in result.stdout
    assert "REFUTED" not in result.stdout


def test_a_refuted_claim_is_a_status_above_0(capfd: Capture) -> None:
    with replace_noise_sampler(ScriptedSampler()):
        shown = call(capfd, "audit", "--mechanism", "laplace_on_vector", *FEW)
        answer_of_program = call(capfd, "audit", "--mechanism", "laplace_on_vector", *FEW, "--json")
    assert shown.returncode == answer_of_program.returncode == 1
    assert "REFUTED" in shown.stdout
    facts = json.loads(answer_of_program.stdout)
    assert facts["refuted"] is True
    assert facts["epsilon_lower_bound"] > 1
