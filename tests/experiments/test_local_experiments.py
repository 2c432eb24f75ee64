"""The figures and tables of the local model: their data, their methods, and the paper's numbers."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.claims import Across, Levels, Trend
from experiments.experiment import (
    FIRST_SEED,
    Experiment,
    Panel,
    Row,
    Table,
)
from experiments.papers.moments import MODEL, MomentSetting, sparse_subspace
from experiments.papers.synthetic_data import DATA_SETS, moment_of
from experiments.papers.wang_xu import (
    DENSE,
    LOCAL_METHODS,
    ldp_fig3,
    ldp_fig4,
    ldp_table1,
    ldp_table2,
    leading,
    leading_sparse,
)
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.linalg.packed import pack_symmetric
from streaming_pca.linalg.subspace import ritz_pairs, subspace_error
from streaming_pca.local import noise_sigma
from streaming_pca.privacy.parameters import PrivacyParameters
from tests.experiments.command import call

SMALL = MomentSetting(MODEL, 2_000, 6, 2, 1.0, 1e-4)


def test_the_noise_of_a_mean_is_that_of_its_reports() -> None:
    """The deviation is sigma/sqrt(n) on and above the diagonal, with a copy below it.

    4,000 seeds: a standard deviation is within 8% except with probability below 1e-11.
    """
    found = np.array([SMALL.draw(seed).noisy(3.0) - SMALL.draw(seed).moment for seed in range(4_000)])
    np.testing.assert_allclose(found, found.transpose(0, 2, 1), atol=1e-15)
    np.testing.assert_allclose(found.std(axis=0), 3.0 / math.sqrt(SMALL.n), rtol=0.08)
    upper = found[:, *np.triu_indices(6)]
    np.testing.assert_allclose(np.corrcoef(upper.T), np.eye(21), atol=0.12)


@pytest.mark.parametrize("n", [2_000, 10**9])
def test_the_models_moment_is_a_wisharts(n: int) -> None:
    """The mean is Sigma, and n Var(S_ij) = Sigma_ij^2 + Sigma_ii Sigma_jj, for both ways of drawing."""
    setting = dataclasses.replace(SMALL, n=n)
    draws = [setting.draw(seed) for seed in range(3_000)]
    whites = []
    for draw in draws:
        signal = draw.truth.T @ draw.truth
        np.testing.assert_allclose(draw.truth @ draw.truth.T, np.eye(2), atol=1e-12)
        # In the basis of the truth all draws have one distribution.
        root = signal / math.sqrt(setting.floor + setting.gap) + (np.eye(6) - signal) / math.sqrt(
            setting.floor
        )
        whites.append(root @ draw.moment @ root)
    found = (np.array(whites) - np.eye(6)) * math.sqrt(n)
    # 3,000 draws: a mean is within 0.18 (7 standard errors of the diagonal's), a variance within a quarter.
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=0.18)
    np.testing.assert_allclose(found.var(axis=0), 1.0 + np.eye(6), rtol=0.25)


def test_the_models_eigenvalues_and_support_are_the_papers() -> None:
    setting = MomentSetting(MODEL, 10**14, 40, 3, 1.0, 1e-4, sparsity=7)
    draw = setting.draw(1)
    assert np.count_nonzero(np.abs(draw.truth).max(axis=0)) == 7
    values = np.linalg.eigvalsh(draw.moment)[::-1]
    np.testing.assert_allclose(values[:3], 1 / 200, rtol=1e-4)
    np.testing.assert_allclose(values[3:], 1 / 400, rtol=1e-4)


@pytest.mark.parametrize(("key", "step"), [("local-gaussian", 0), ("local-sparse", 1)])
def test_a_method_is_the_last_step_of_its_estimator(key: str, step: int) -> None:
    """The reports come from a real stream, with their noise: release and answer agree."""
    dim, k, n = 12, 2, 500
    rng = np.random.default_rng(3)
    sigma = noise_sigma(8.0, 1e-4)
    moment = np.diag([*[0.3] * k, *[0.01] * (dim - k)])
    moments = moment + sigma * np.array([_symmetric(rng, dim) for _ in range(n)])
    rows = np.array([pack_symmetric(report) for report in moments], dtype=np.float32)
    estimator = ESTIMATORS[LOCAL_METHODS[key].id](
        dim,
        k,
        PrivacyParameters(epsilon=8.0, delta=1e-4),
        Preprocessing(dim=dim, kind=RecordKind.LOCAL, centering="none"),
        ESTIMATORS[LOCAL_METHODS[key].id].options_type.model_validate({"refit": False} if step else {}),
    )
    state = estimator.init(np.random.default_rng(0))
    state = estimator.update(state, ArrayBatch(rows, np.arange(n + 1, dtype=np.int64), RecordKind.LOCAL))
    mean = moments.mean(axis=0)
    mine = leading_sparse(mean, k, sigma / math.sqrt(n)) if step else leading(mean, k)
    assert subspace_error(mine, estimator.release(state).components) < 1e-3


def _symmetric(rng: np.random.Generator, dim: int) -> np.ndarray[Any, Any]:
    upper = np.triu(rng.standard_normal((dim, dim)))
    return upper + np.triu(upper, 1).T


@pytest.mark.parametrize("name", [name for name in DATA_SETS if name != "flights"])
def test_a_synthetic_set_has_the_papers_shape_and_rows_of_length_1(name: str) -> None:
    found = DATA_SETS[name]
    blocks = found.blocks()
    first = next(blocks)
    assert first.shape == (min(found.n, 2**11), found.dim)
    assert first.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, atol=1e-4)
    np.testing.assert_array_equal(first, next(found.blocks()))
    assert len(np.unique(first[:50], axis=0)) > 5


def test_all_rows_of_a_synthetic_set_are_there() -> None:
    assert sum(len(block) for block in DATA_SETS["isolet5"].blocks()) == 1_559
    assert sum(len(block) for block in DATA_SETS["lung"].blocks()) == 203


def test_a_sets_moment_is_that_of_its_first_rows_and_its_most_energetic_features() -> None:
    rows = np.concatenate(list(DATA_SETS["isolet5"].blocks())).astype(np.float64)
    whole = moment_of("isolet5", 1_559, 617)
    np.testing.assert_allclose(whole, rows.T @ rows / 1_559, atol=1e-9)
    assert np.trace(whole) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(moment_of("isolet5", 100, 617), rows[:100].T @ rows[:100] / 100, atol=1e-9)
    kept = np.diagonal(moment_of("isolet5", 1_559, 50))
    np.testing.assert_allclose(np.sort(kept), np.sort(np.diagonal(whole))[-50:], atol=1e-9)


def test_the_sparse_target_is_the_best_that_there_is() -> None:
    """Five of 30 features are planted; the target is at least the largest diagonal entries' value."""
    planted = np.zeros((2, 30))
    planted[0, [3, 8, 20]], planted[1, [11, 25]] = 1, 1
    planted /= np.linalg.norm(planted, axis=1, keepdims=True)
    moment = planted.T @ np.diag([0.4, 0.3]) @ planted + 0.005 * np.eye(30)
    assert subspace_error(sparse_subspace(moment, 2, 5), planted) < 1e-9
    rows = sparse_subspace(moment_of("lung", 203, 60), 10, 20)
    assert np.count_nonzero(np.abs(rows).max(axis=0)) == 20
    np.testing.assert_allclose(rows @ rows.T, np.eye(10), atol=1e-12)
    whole = moment_of("lung", 203, 60)
    largest = np.argsort(-np.diagonal(whole))[:20]
    least = ritz_pairs(whole[np.ix_(largest, largest)], 10)[0].sum()
    assert np.trace(rows @ whole @ rows.T) >= least - 1e-12


def test_errors_are_those_of_the_subspace_only() -> None:
    draw = SMALL.draw(1)
    assert draw.error("subspace", draw.truth) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="subspace"):
        draw.error("sine", draw.truth)
    assert SMALL.random_error("subspace") == pytest.approx(math.sqrt(4 * (1 - 2 / 6)))


@pytest.mark.parametrize(("experiment", "p", "n"), [(ldp_fig3, 40, 100_000), (ldp_fig4, 400, 2_000)])
def test_settings_as_printed_are_the_papers(experiment: Any, p: int, n: int) -> None:
    found = experiment(False)
    for panel in found.panels:
        if panel.title.startswith("as printed") and panel.key != "p":
            assert {setting.dim for _, setting in panel.points} == {p}
            assert n in {setting.n for _, setting in panel.points}


@pytest.mark.parametrize(
    ("experiment", "place", "number"),
    [
        (ldp_table1, ("isolet5", 10.0), 1.441),
        (ldp_table1, ("nips", 40.0), 4.472),
        (ldp_table2, ("leukemia", 0.1), 4.518),
        (ldp_table2, ("colon", 1.0), 3.013),
    ],
)
def test_a_table_has_all_18_numbers_of_the_paper(
    experiment: Any, place: tuple[str, float], number: float
) -> None:
    found: Experiment = experiment(False)
    assert sum(len(panel.printed) for panel in found.panels) == 18
    panel = next(panel for panel in found.panels if panel.key == place[0])
    assert panel.printed["local-sparse", place[1]] == number
    # The set has the paper's size, if not its numbers.
    assert all(setting.n == DATA_SETS[place[0]].n and setting.k == 10 for _, setting in panel.points)


def test_a_quick_table_has_the_papers_numbers_and_says_what_replaced_the_data(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = call(capfd, "ldp-table1", "--quick", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    head, replaced, *table = result.stdout.strip().splitlines()
    assert head.startswith("ldp-table1 (quick: too small to judge): ")
    assert replaced.startswith("replaced: Colon cancer by a generator of 60 x 2,000, cut to 60: ")
    assert table[0].split() == ["data", "at", "method", "paper", "ours"]
    assert [line.split()[-4] for line in table[1:]] == ["2.449", "3.058", "3.228", "1.441", "2.023", "2.508"]
    with (tmp_path / "ldp-table1-quick.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_paper = {(row["panel"], row["x"], row["paper"]) for row in rows if row["method"] == "local-sparse"}
    assert ("isolet5", "20.0", "2.023") in of_paper
    assert {row["paper"] for row in rows if row["method"] == "local-gaussian"} == {""}

    facts = json.loads(call(capfd, "ldp-table1", "--quick", "--out", tmp_path, "--json").stdout)
    assert facts["fits"] == 0
    assert f"replaced: {facts['replaced']}" == replaced
    numbers = {
        (point["panel"], point["x"]): point["paper"]
        for point in facts["points"]
        if point["method"] == "local-sparse"
    }
    assert numbers["colon", 40.0] == 3.228
    assert numbers["axes", 40.0] is None


def table_of(errors: dict[tuple[str, float], list[float]], printed: dict[float, float]) -> Table:
    """Build panels with local-gaussian's errors at these places; k is 2, or 4 if the key ends in it."""
    keys = dict.fromkeys(panel for panel, _ in errors)
    panels = tuple(
        Panel(
            key, key, "n",
            tuple(
                (x, MomentSetting(MODEL, int(x), 20, 4 if key.endswith("4") else 2, 1.0, 1e-4))
                for of, x in errors if of == key
            ),
            printed={("local-gaussian", x): number for x, number in printed.items()},
        )
        for key in keys
    )  # fmt: skip
    experiment = Experiment("x", "none", "nothing", "subspace", panels, DENSE[:1], (), 2, "")
    rows = [
        Row(panel, x, "local-gaussian", FIRST_SEED + i, error, 1.0, 1.0, 1, "0" * 12)
        for (panel, x), found in errors.items()
        for i, error in enumerate(found)
    ]
    return Table(experiment, rows)


NOISY, CLEAR = [1.0, 1.1, 0.9], [1.0, 1.001, 0.999]


@pytest.mark.parametrize(
    ("claim", "errors", "printed", "verdict", "message"),
    [
        (Trend("local-gaussian", "a", rises=False), {("a", 1.0): CLEAR, ("a", 2.0): [0.9, 0.901, 0.899]}, {},
         "reproduced", "1 of 1"),
        # The intervals overlap.
        (Trend("local-gaussian", "a", rises=False), {("a", 1.0): NOISY, ("a", 2.0): [0.9, 0.95, 0.85]}, {},
         "not reproduced", "1 of them within chance"),
        (Across("local-gaussian", ("a", "a4"), "k"), {("a", 1.0): [1.0], ("a4", 1.0): [1.5]}, {},
         "reproduced", "1 of 1"),
        (Across("local-gaussian", ("a", "a4"), "k"), {("a", 1.0): [1.0], ("a4", 1.0): [0.5]}, {},
         "not reproduced", "0 of 1"),
        # A random subspace scores 1.90 and 2.53: it rises with k by itself.
        (Across("local-gaussian", ("a", "a4"), "k"), {("a", 1.0): [1.9], ("a4", 1.0): [2.5]}, {},
         "not reproduced", "near a random subspace at 1"),
        (Across("local-gaussian", ("a", "a4"), "k"), {("a", 1.0): [1.0], ("a4", 2.0): [1.5]}, {},
         "not judged", "did not run"),
        (Levels("local-gaussian", 0.1), {("a", 1.0): [1.0]}, {1.0: 1.05}, "reproduced", "ratios 0.95"),
        (Levels("local-gaussian", 0.1), {("a", 1.0): [1.0]}, {1.0: 1.5}, "not reproduced", "ratios 0.67"),
        # As good as the paper's, but nothing was learnt.
        (Levels("local-gaussian", 0.1), {("a", 1.0): [1.9]}, {1.0: 1.9}, "not reproduced", "near a random"),
        (Levels("local-gaussian", 0.1), {("a", 1.0): [1.0]}, {}, "not judged", "did not run"),
    ],
)  # fmt: skip
def test_claims_about_the_local_model_are_compared_with_numbers(
    claim: Any, errors: Any, printed: Any, verdict: str, message: str
) -> None:
    found = claim.compare(table_of(errors, printed))
    assert found.verdict == verdict, found.text
    assert message in found.text


def test_ours_stands_beside_the_papers_number() -> None:
    lines = table_of({("a", 1.0): [1.0, 1.2], ("a", 2.0): []}, {1.0: 1.05, 2.0: 3.0}).beside_the_papers()
    assert [line.split() for line in lines[1:]] == [
        ["a", "n", "=", "1", "local-gaussian", "1.050", "1.100", "±", "1.271"],
        ["a", "n", "=", "2", "local-gaussian", "3.000", "none"],
    ]
    assert table_of({("a", 1.0): [1.0]}, {}).beside_the_papers() == []
