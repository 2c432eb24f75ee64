"""Experiments of [WangAnandkumar2016]: correct data, quick runs, and comparable claims."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import drawing
from experiments.claims import Reaches, Transition, crossing
from experiments.experiment import FIRST_SEED, Experiment, Panel, Row, Table
from experiments.papers import EXPERIMENTS
from experiments.papers.dense_tensors import products_of_tensor
from experiments.papers.tensor_data import MixtureSetting, TensorSetting, failure
from experiments.papers.topics import (
    PACKAGES,
    TOPIC_METHODS,
    VOCABULARY,
    TopicSetting,
    Windows,
    purity,
    top_words,
    versions,
    windows,
)
from experiments.papers.wang_anandkumar import GIVEN_METHODS, POWER, RECORD_METHODS
from experiments.running import fit, released
from streaming_pca.linalg.tensors import product_values, random_starts
from streaming_pca.privacy.randomness import utility_generator
from tests.experiments.command import call_quickly

NAMES = ("tensor-fig1", "tensor-scaling", "topics")
FEW = 1_500


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_experiment_gives_rows_a_picture_and_a_verdict(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    facts, found = call_quickly(capfd, name, tmp_path, "--seeds", 1)
    assert facts["refused"] == {}
    experiment = EXPERIMENTS[name](True)
    for method in experiment.methods:
        places = [s for panel in experiment.panels for _, s in panel.points if method.runs_on(s, 0)]
        errors = [float(row["error"]) for row in found if row["method"] == method.key]
        assert len(errors) == len(places) > 0
        assert all(0 <= error <= 1 for error in errors)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_settings_are_json_and_no_claim_is_judged_without_rows(name: str, quick: bool) -> None:
    experiment = EXPERIMENTS[name](quick)
    for setting in experiment.settings():
        json.dumps(setting.as_json())
    for claim in experiment.claims:
        assert claim.compare(Table(experiment, [])).verdict == "not judged"


def test_every_method_has_a_line_of_its_own() -> None:
    methods = (POWER, *GIVEN_METHODS, *RECORD_METHODS, *TOPIC_METHODS)
    assert set(drawing._TENSOR_LINES) == {method.key for method in methods}
    assert len(set(drawing._TENSOR_LINES.values())) == len(drawing._TENSOR_LINES)
    assert not set(drawing._TENSOR_LINES) & set(drawing._LINES)


@pytest.mark.parametrize("noise", ["gaussian", "adversarial", "weak"])
def test_noise_has_the_operator_norm_that_is_asked_for(noise: str) -> None:
    setting = TensorSetting(noise, 12, 0.5)  # type: ignore[arg-type]
    tensor = setting.draw(3).tensor - TensorSetting(noise, 12, 0.0).draw(3).tensor  # type: ignore[arg-type]
    for swap in ((0, 2, 1), (1, 0, 2)):
        np.testing.assert_allclose(tensor, tensor.transpose(swap), atol=1e-12)
    u = random_starts(utility_generator(5), 12, 4_000)
    for _ in range(60):
        product = products_of_tensor(tensor, u) + 0.5 * u
        u = product / np.linalg.norm(product, axis=0)
    assert product_values(products_of_tensor(tensor, u), u).max() == pytest.approx(0.5, rel=0.02)


def test_weak_noise_leaves_the_components_alone_and_adversarial_noise_pulls_to_the_second() -> None:
    weak = TensorSetting("weak", 8, 0.5).draw(1)
    np.testing.assert_allclose(
        products_of_tensor(weak.tensor, np.eye(8)[:, :1])[:, 0], np.eye(8)[0], atol=1e-12
    )
    bad = TensorSetting("adversarial", 8, 0.6).draw(1)
    product = products_of_tensor(bad.tensor, np.eye(8)[:, 4:5])[:, 0]
    assert product[1] == pytest.approx(0.2)
    assert np.abs(np.delete(product, 1)).max() < 1e-12


def test_a_trial_fails_where_a_component_is_missing_or_in_the_wrong_place() -> None:
    truth = np.eye(3, 5)
    assert failure(truth, truth, ordered=True) == 0
    assert failure(truth[[1, 0, 2]], truth, ordered=True) == 1
    assert failure(truth[[1, 0, 2]], truth, ordered=False) == 0
    assert failure(truth[[0, 0, 2]], truth, ordered=False) == 1
    assert failure(-truth, truth, ordered=False) == 1


def test_records_have_mean_zero_and_the_third_moment_that_is_said() -> None:
    draw = MixtureSetting(200_000, 6).draw(2)
    rows = draw.batch(0, 200_000).rows.astype(np.float64)
    assert np.abs(rows.mean(axis=0)).max() < 0.005
    seen = rows @ draw.truth.T
    weights = 0.1 * 0.9**3 - 0.9 * 0.1**3
    np.testing.assert_allclose((seen**3).mean(axis=0), weights * np.array([4, 3, 2]) / 9, rtol=0.1)
    assert np.linalg.norm(rows, axis=1).mean() < 0.6


def test_the_power_method_finds_components_until_there_is_much_noise() -> None:
    assert fit(POWER, TensorSetting("gaussian", 15, 0.05).draw(FIRST_SEED), "failure").error == 0
    assert fit(POWER, TensorSetting("gaussian", 15, 50.0).draw(FIRST_SEED), "failure").error == 1


def test_the_private_method_finds_components_of_a_large_tensor_only() -> None:
    """A small tensor's components are found by chance, 1 time in 15: 9 of 12 with probability 1e-8."""
    entry = GIVEN_METHODS[0]
    assert fit(entry, TensorSetting("none", 10, 0.0, 50_000.0).draw(FIRST_SEED), "failure").error == 0
    small = TensorSetting("none", 10, 0.0, 1.0).draw(FIRST_SEED)
    assert sum(fit(entry, small, "failure").error for _ in range(12)) >= 4


def test_each_method_runs_on_its_own_kind_of_place() -> None:
    given, records = TensorSetting("none", 10, 0.0), MixtureSetting(100, 5)
    assert all(m.runs_on(given, 0) and not m.runs_on(records, 0) for m in GIVEN_METHODS)
    assert all(m.runs_on(records, 0) and not m.runs_on(given, 0) for m in RECORD_METHODS)


def table(lines: dict[str, dict[float, float]], measure: str = "failure") -> Table:
    """Build panels of the same axis at d = 10, 20, 40, and method ``a``."""
    panels = tuple(
        Panel(key, key, "x", tuple((x, TensorSetting("none", d, 0.0, x)) for x in (1.0, 2.0, 4.0, 8.0)))
        for key, d in (("p10", 10), ("p20", 20), ("p40", 40))
    )
    experiment = Experiment("e", "f", "w", measure, panels, (), (), 1, "")  # type: ignore[arg-type]
    return Table(
        experiment,
        [Row(key, x, "a", 0, e, 0.0, 1.0, 1, "") for key, line in lines.items() for x, e in line.items()],
    )


FALLS_AT = {
    place: {x: 1.0 if x < place else 0.0 if x > place else 0.5 for x in (1.0, 2.0, 4.0, 8.0)}
    for place in (2.0, 4.0)
}


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ({"p10": FALLS_AT[2.0], "p20": FALLS_AT[2.0]}, "reproduced"),
        ({"p10": FALLS_AT[2.0], "p20": FALLS_AT[4.0]}, "not reproduced"),
        ({"p10": FALLS_AT[2.0], "p20": dict.fromkeys((1.0, 2.0), 1.0)}, "not judged"),
        ({"p10": FALLS_AT[2.0]}, "not judged"),
    ],
)
def test_a_transition_stands_still_or_moves(lines: dict[str, dict[float, float]], verdict: str) -> None:
    claim = Transition("a", ("p10", "p20"), -0.25, 0.25, "d^0")
    assert claim.compare(table(lines)).verdict == verdict


def test_a_crossing_lies_between_two_places() -> None:
    assert crossing({1.0: 1.0, 4.0: 0.0}) == pytest.approx(2.0)
    assert crossing({1.0: 0.0, 4.0: 1.0, 16.0: 1.0}) == pytest.approx(2.0)
    assert crossing({1.0: 1.0, 4.0: 0.9}) is None


def test_a_purity_is_reached_or_not() -> None:
    claim = Reaches("a", "a", "p10", 0.9, 2.0)
    assert claim.compare(table({"p10": {2.0: 0.3}})).verdict == "reproduced"
    # 1.1 times its own purity is impossible.
    assert Reaches("a", "a", "p10", 1.1, 2.0).compare(table({"p10": {2.0: 0.3}})).verdict == "not reproduced"


def test_windows_are_counts_of_the_vocabulary_at_length_one() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 64
    found = windows(FEW)
    assert found.rows.shape == (FEW * len(PACKAGES), 64)
    assert found.rows.dtype == np.float32
    assert np.bincount(found.labels).tolist() == [FEW] * len(PACKAGES)
    np.testing.assert_allclose(np.linalg.norm(found.rows, axis=1), 1, rtol=1e-6)
    # Squares of counts are in the ratio of whole numbers: 1 over the least entry of a row scales to integers.
    least = np.where(found.rows > 0, found.rows, np.inf).min(axis=1, keepdims=True)
    assert np.mean(np.abs(found.rows / least - np.rint(found.rows / least)) < 1e-4) > 0.95
    assert set(versions()) == {"matplotlib", "numba", "scikit-learn", "Pygments"}


def test_there_are_tens_of_thousands_of_windows() -> None:
    setting = TopicSetting(1.0)
    assert 20_000 < setting.n <= 60_000
    assert (setting.dim, setting.k) == (64, 4)
    assert 0.25 < 1 - setting.random_error("impurity") < 0.6


def test_a_seed_only_orders_the_windows() -> None:
    one, other = (TopicSetting(1.0, most=FEW).draw(seed) for seed in (1, 2))
    a, b = one.batch(0, 10**6).rows, other.batch(0, 10**6).rows
    assert not np.array_equal(a, b)
    np.testing.assert_allclose(a.sum(axis=0), b.sum(axis=0), rtol=1e-4)


def test_purity_and_words_of_topics_that_are_known() -> None:
    rows = np.eye(4, 64, dtype=np.float32)[[0, 0, 1, 1, 2, 3]]
    found = Windows(rows, np.array([0, 0, 1, 1, 2, 3]))
    assert purity(np.eye(4, 64), found) == 1
    # All windows in one topic: the share of the commonest label.
    assert purity(np.ones((1, 64)), found) == pytest.approx(2 / 6)
    first = top_words(np.eye(4, 64), found)[0]
    assert first.startswith(VOCABULARY[0])
    assert "33% of the windows, 100% of them matplotlib" in first


def test_private_topics_are_better_than_none_with_a_loose_promise() -> None:
    """Epsilon is 8 with 6,000 windows; seeds are fixed."""
    setting = TopicSetting(8.0, most=FEW)
    components = released(TOPIC_METHODS[0], setting.draw(FIRST_SEED))
    assert components.shape == (4, 64)
    assert purity(components, windows(FEW)) > 1 - setting.random_error("impurity") + 0.1


def test_what_is_told_says_what_is_protected(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = EXPERIMENTS["topics"](True).told
    assert told is not None
    lines = told()
    assert [line.split(":")[0] for line in lines[:3]] == ["records", "protected", "not protected"]
    assert "one window" in lines[1]
    assert len(lines) == 3 + 1 + len(PACKAGES)
