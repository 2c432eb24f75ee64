"""Tables of docs/guide: measured ones are whole, and true where they are cheap; computed ones are right."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import guide
from benchmarks.accuracy import libraries, toy_sets
from benchmarks.accuracy.libraries import CASES, EXACT, OURS, Case, Result, measure
from streaming_pca import PrivatePCA

SMALL = Case(
    "iris", lambda: np.random.default_rng(0).standard_normal((20_000, 3)) * [3, 2, 1], (-9,) * 3, (9,) * 3
)


def cells(name: str) -> list[list[str]]:
    """Return the rows of a measured table in its page, without the line below the head."""
    text = guide.PAGES[name].read_text(encoding="utf-8")
    lines = guide.measured_block(text, name)[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def test_the_page_on_limits_has_every_toy_set_in_both_units() -> None:
    head, *rows = cells("toys")
    assert head[4:] == [*(f"epsilon {epsilon:g}" for epsilon in toy_sets.EPSILONS), "warned"]
    names = [name.replace("_", " ") for name in toy_sets.TOY_SETS]
    assert [row[0] for row in rows] == [name for name in names for _ in range(2)]
    for row in rows:
        records = toy_sets.TOY_SETS[row[0].replace(" ", "_")]()
        assert row[1] == f"{records.shape[0]:,} x {records.shape[1]}"
        angles = [int(re.fullmatch(r"(\d+)° \((\d+) of 200\)", cell)[1]) for cell in row[4:7]]  # type: ignore[index]
        assert all(0 <= angle <= 90 for angle in angles)
        assert re.fullmatch(r"\d+ of 200", row[7])


def test_two_cells_of_the_toy_sets_are_repeatable() -> None:
    """Of 200 fits up to six cross 30 degrees; a median of 20 does with probability below 1e-9."""
    angles = {row[0]: int(row[4].partition("°")[0]) for row in cells("toys") if row[2] == "own"}
    wine = toy_sets.measure("wine", scaled=False, epsilons=(1.0,), fits=20)
    digits = toy_sets.measure("digits", scaled=False, epsilons=(1.0,), fits=20)
    assert np.median(wine.angles[1.0]) > 30 < angles["wine"]
    assert np.median(digits.angles[1.0]) < 30 > angles["digits"]
    assert wine.doubtful[1.0] > 0


def test_a_measured_row_is_written_with_its_median_and_its_losses() -> None:
    row = toy_sets.Row("iris", "own", (150, 4), 0.0531, {1.0: [10.0, 20.0, 50.0]}, {1.0: 2})
    assert toy_sets.table([row]).splitlines()[2] == "| iris | 150 x 4 | own | 5.3% | 20° (1 of 3) | 2 of 3 |"


def test_the_page_on_libraries_has_every_library_on_every_set() -> None:
    head, *rows = cells("libraries")
    assert head[3:] == [*(f"epsilon {epsilon:g}" for epsilon in libraries.EPSILONS), "seconds"]
    for case in CASES:
        found = [(row[1], row[2]) for row in rows if row[0] == case.name]
        assert found[0] == (EXACT, "bounds")
        assert {library for library, given in found if given == "bounds"} >= {OURS, "diffprivlib", "opendp"}
    for row in rows:
        assert re.fullmatch(r"below 0\.001|\d+(\.\d+)?", row[6]), row
        for cell in row[3:6]:
            assert re.fullmatch(r"\d+\.\d%|more than \d+ s", cell), row


@pytest.mark.parametrize("quantile", [None, 0.99])
def test_this_library_is_measured_with_bounds_and_with_a_gift(quantile: float | None) -> None:
    """Errors of these 20,000 records are below 0.05; 0.5 has a probability far below 1e-6."""
    found = measure(SMALL, OURS, quantile, epsilons=(1.0,), fits=2)
    assert len(found.errors[1.0]) == len(found.seconds) == 2
    assert max(found.errors[1.0]) < 0.5
    assert measure(SMALL, EXACT, epsilons=(1.0,)).errors == {1.0: [0.0]}


def test_another_library_runs_in_a_process_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = "        components = np.linalg.svd(records - records.mean(0), full_matrices=False)[2][:k]\n"
    monkeypatch.setitem(libraries._SCRIPTS, "opendp", libraries._FITS.format(imports="", fit=exact))
    found = measure(SMALL, "opendp", epsilons=(1.0, 2.0), fits=2)
    assert found.problem is None
    assert [len(found.errors[epsilon]) for epsilon in (1.0, 2.0)] == [2, 2]
    assert max(found.errors[1.0]) < 1e-6
    endless = libraries._FITS.format(imports="", fit="        while epsilon > 1: pass\n" + exact)
    monkeypatch.setitem(libraries._SCRIPTS, "opendp", endless)
    found = measure(SMALL, "opendp", epsilons=(1.0, 2.0), fits=1, limit=3)
    assert (list(found.errors), found.problem) == ([1.0], "more than 3 s")
    monkeypatch.setitem(libraries._SCRIPTS, "opendp", "raise ImportError('no such thing')")
    assert measure(SMALL, "opendp", epsilons=(1.0,)).problem == "ImportError: no such thing"
    assert measure(SMALL, "opendp", python="/no/python").problem == "/no/python: No such file or directory"


def test_a_gift_counts_with_its_better_clip() -> None:
    results = [
        Result("iris", "opendp", 0.5, {0.1: [1.0], 1.0: [0.2, 0.4]}, [1.0, 3.0]),
        Result("iris", "opendp", 0.99, {0.1: [0.5], 1.0: [0.9]}, [2.0]),
        Result("iris", "diffprivlib", None, {0.1: [1.0]}, [], "more than 30 s"),
    ]
    random = np.sqrt(2)
    assert libraries.table(results).splitlines()[2:] == [
        f"| iris | opendp | mean and clip | {0.5 / random:.1%} | {0.3 / random:.1%} | - | 2 |",
        f"| iris | diffprivlib | bounds | {1 / random:.1%} | more than 30 s | more than 30 s | - |",
    ]


def test_the_page_describes_the_installed_opendp() -> None:
    """Its flag for real numbers, and the factor of 2 in its class, are facts of the page."""
    spec = find_spec("opendp")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    source = (folder / "extras/sklearn/decomposition/__init__.py").read_text(encoding="utf-8")
    assert 'assert_features("contrib", "idealized-numerics")' in source
    assert "self.epsilon / self.n_changes * 2" in source


def test_an_attackers_success_is_that_of_the_mu_that_plans_show() -> None:
    rows = [line.strip("| ").split(" | ") for line in guide.epsilons_text().splitlines()[2:]]
    assert rows[2] == ["1", "2.72", "73.2%", "54.8%"]
    for epsilon, _, any_mechanism, default in rows:
        assert 50 < float(default[:-1]) < float(any_mechanism[:-1]) <= 100
        plan = PrivatePCA(epsilon=float(epsilon), delta=1e-6).plan(10, 10_000)
        # A guess between N(0, 1) and N(mu, 1) is right with half of the density that is larger.
        grid, step = np.linspace(-12, 12 + plan.mu, 200_001, retstep=True)
        densities = np.exp(-0.5 * (grid - np.array([[0.0], [plan.mu]])) ** 2) / np.sqrt(2 * np.pi)
        right = 0.5 * step * np.maximum(*densities).sum()
        assert 0 <= float(default[:-1]) - 100 * right <= 0.1 + 1e-6


def test_the_picture_is_fresh() -> None:
    assert guide.FIGURE.read_text(encoding="utf-8") == guide.curve_svg(), "run python docs/hooks.py"


def test_the_command_writes_a_table_into_its_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: toys -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    monkeypatch.setitem(guide.PAGES, "toys", page)
    monkeypatch.setattr(toy_sets, "rows", lambda: iter([toy_sets.measure("iris", True, (16.0,), 1)]))
    guide.main(["toys", "--write"])
    written = page.read_text(encoding="utf-8")
    assert written.startswith("before\n<!-- measured: toys -->\n\n| data set |")
    assert written.endswith("|\n\n<!-- end -->\nafter\n")
    assert "old" not in written
    capsys.readouterr()
    with pytest.raises(SystemExit):
        guide.main(["nothing"])
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(ValueError, match="no table 'libraries'"):
        guide.measured_block(written, "libraries")
