"""Figures show released numbers as they are: shares with a rest, loadings, angles with their bounds."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.quiver import Quiver
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from sklearn.decomposition import PCA

from streaming_pca import PrivatePCA, plots
from streaming_pca.data.release import Release
from streaming_pca.errors import LibraryMissing


@pytest.fixture(autouse=True)
def no_windows() -> Iterator[None]:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def release(components: Any = None, variances: Any = (6.0, 2.0), **changes: Any) -> Release:
    """Return a release of rank 2 in 5 features, with its accuracy."""
    components = np.eye(2, 5) if components is None else np.asarray(components)
    values: dict[str, Any] = {
        "version": 6,
        "stream": "s",
        "batch": 1,
        "records": 1000,
        "dim": components.shape[1],
        "rank": len(components),
        "estimator": "adaptive",
        "components": components.tolist(),
        "explained_variance": list(variances),
        "explained_variance_error": [0.3, 0.4],
        "total_variance": 10.0,
        "total_variance_error": 0.5,
        "angle_bound": math.radians(7.0),
        "mean": None,
        "centering": "none",
        "epsilon": 1.0,
        "delta": 1e-6,
        "adjacency": "replace-one",
        "privacy_unit": "message",
        "created": "2026-01-01T00:00:00.000+00:00",
    }
    return Release(**(values | changes))


def turned(degrees: float, **changes: Any) -> Release:
    """Return a plane of 5 features whose second direction is turned out of the first two axes."""
    angle = math.radians(degrees)
    return release([[1, 0, 0, 0, 0], [0, math.cos(angle), math.sin(angle), 0, 0]], **changes)


def heights(ax: Axes) -> list[float]:
    return [bar.get_height() for bar in ax.patches]


def error_bars(ax: Axes) -> list[float]:
    """Return half the length of each error bar."""
    (bars,) = [each for each in ax.containers if isinstance(each, ErrorbarContainer)]
    (lines,) = bars.lines[2]
    return [float(high[1] - low[1]) / 2 for low, high in lines.get_segments()]


def ticks(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_xticklabels()]


def test_bars_are_shares_and_the_last_is_the_rest() -> None:
    ax = plots.scree(release())
    assert heights(ax) == pytest.approx([0.6, 0.2, 0.2])
    assert ticks(ax) == ["1", "2", "rest"]
    (line,) = ax.lines[:1]
    # Three of five directions are in the rest.
    assert np.asarray(line.get_ydata()) == pytest.approx(0.2 / 3)
    assert line.get_label() == "mean of the 3 other directions"


def test_error_bars_combine_the_errors_of_a_variance_and_of_the_total() -> None:
    ax = plots.scree(release())
    expected = [
        math.hypot(0.3, 0.6 * 0.5) / 10,
        math.hypot(0.4, 0.2 * 0.5) / 10,
        math.hypot(0.3 + 0.4, 0.8 * 0.5) / 10,
    ]
    assert error_bars(ax) == pytest.approx(expected)


def test_variances_above_the_total_leave_a_rest_of_0_with_an_error() -> None:
    ax = plots.scree(release(total_variance=7.0))
    assert heights(ax) == pytest.approx([0.75, 0.25, 0.0])
    assert error_bars(ax)[2] == pytest.approx(math.hypot(0.7, 0.7) / 8)


def test_all_directions_leave_no_rest() -> None:
    ax = plots.scree(release(np.eye(2), total_variance=8.0))
    assert heights(ax) == pytest.approx([0.75, 0.25])
    assert ticks(ax) == ["1", "2"]
    assert len(error_bars(ax)) == 2
    assert ax.get_legend() is None


def test_a_variance_within_two_errors_has_a_faint_bar() -> None:
    first, second, _ = plots.scree(release(variances=(6.0, 0.8))).patches
    assert first.get_facecolor() != second.get_facecolor()
    first, second, _ = plots.scree(release(variances=(6.0, 0.81))).patches
    assert first.get_facecolor() == second.get_facecolor()


def test_the_title_of_a_scree_has_the_angle_bound_and_the_doubts() -> None:
    assert plots.scree(release()).get_title() == "angle due to noise at most 7° (95%)"
    doubtful = release(angle_bound=math.pi / 2, doubts=("not-resolved", "clipped"))
    title = plots.scree(doubtful).get_title()
    assert " ".join(title.split()) == (
        "angle due to noise at most 90° (95%), and more due to clipping; doubts: not-resolved, clipped"
    )


@pytest.mark.parametrize(
    ("size", "columns"), [((2.5, 3), 1), ((4, 3), 1), ((6.4, 4.8), 1), ((6.4, 4.8), 2), ((12, 4), 3)]
)
def test_a_title_with_many_doubts_is_within_the_figure(size: tuple[float, float], columns: int) -> None:
    doubts = ("not-resolved", "variance-lost", "mean-swamps", "dominated", "clamped")
    figure, axes = plt.subplots(ncols=columns, figsize=size, squeeze=False, layout="constrained")
    for ax in axes[0]:
        plots.scree(release(angle_bound=math.pi / 2, doubts=doubts), ax=ax)
    figure.canvas.draw()
    boxes = [ax.title.get_window_extent() for ax in axes[0]]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    assert not any(overlap(a, b) for a, b in combinations(boxes, 2))
    assert [word for word in doubts if word in axes[0][0].get_title()] == list(doubts)


@pytest.mark.parametrize(("size", "rows"), [((9, 3), 1), ((6.4, 4.8), 1), ((9, 6), 2)])
def test_a_title_without_a_layout_is_not_cut_off(size: tuple[float, float], rows: int) -> None:
    doubts = ("not-resolved", "variance-lost", "mean-swamps", "clipped")
    figure, axes = plt.subplots(nrows=rows, figsize=size, squeeze=False)
    title = plots.scree(release(angle_bound=math.pi / 2, doubts=doubts), ax=axes[0][0]).title
    figure.canvas.draw()
    box = title.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
    assert title.get_fontsize() >= 6
    assert [word for word in doubts if word in title.get_text()] == list(doubts)


def test_a_scree_of_an_exact_model_has_no_errors_and_no_bound() -> None:
    X = np.random.default_rng(0).standard_normal((50, 4)) * [4, 3, 2, 1]
    exact = PCA(2).fit(X)
    ax = plots.scree(exact)
    assert heights(ax)[:2] == pytest.approx(list(exact.explained_variance_ratio_))
    assert sum(heights(ax)) == pytest.approx(1.0)
    assert not any(isinstance(each, ErrorbarContainer) for each in ax.containers)
    assert ax.get_title() == ""


def test_many_components_have_few_ticks() -> None:
    names = dict.fromkeys(("explained_variance_error", "total_variance_error"))
    many = release(np.eye(40, 50), np.linspace(2, 1, 40), total_variance=100.0, **names)
    ax = plots.scree(many)
    assert len(heights(ax)) == 41
    assert len(ticks(ax)) <= 12
    assert ticks(ax)[-1] == "rest"
    assert ax.get_xticks()[-1] == 41


@pytest.mark.parametrize("plot", [plots.scree, plots.biplot])
def test_a_model_that_is_not_fitted_is_refused(plot: Any) -> None:
    with pytest.raises(ValueError, match=r"^a fitted model or a Release is needed, not PrivatePCA: call fit"):
        plot(PrivatePCA())


def test_a_scree_without_a_total_variance_is_refused() -> None:
    without = release(estimator="private-oja", total_variance=None, total_variance_error=None)
    with pytest.raises(ValueError, match=r"^scree needs the total variance, which private-oja has not"):
        plots.scree(without)


def arrows(ax: Axes) -> np.ndarray:
    (quiver,) = [each for each in ax.collections if isinstance(each, Quiver)]
    return np.column_stack([quiver.U, quiver.V])


def labels(ax: Axes) -> list[Annotation]:
    return [text for text in ax.texts if isinstance(text, Annotation)]


def random_plane(dim: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, 2)))[0].T


def test_arrows_are_the_longest_loadings_with_their_names() -> None:
    plane = random_plane(30)
    ax = plots.biplot(release(plane, feature_names=[f"name {i}" for i in range(30)]), n_loadings=4)
    longest = np.argsort(-np.linalg.norm(plane, axis=0))[:4]
    assert arrows(ax) == pytest.approx(plane.T[longest])
    assert [label.get_text() for label in labels(ax)] == [f"name {i}" for i in longest]
    assert ax.get_xlabel() == "loading on component 1 (60% of the variance)"
    assert ax.get_ylabel() == "loading on component 2 (20% of the variance)"
    small = plots.biplot(release(plane, variances=(6.0, 0.017)))
    assert small.get_ylabel() == "loading on component 2 (0.17% of the variance)"


def test_a_biplot_shows_other_components_in_the_order_that_was_asked_for() -> None:
    model = PCA(3).fit(np.random.default_rng(0).standard_normal((50, 4)) * [4, 3, 2, 1])
    ax = plots.biplot(model, components=(2, 0), n_loadings=4)
    lengths = np.linalg.norm(model.components_[[2, 0]], axis=0)
    order = [i for i in np.argsort(-lengths, kind="stable") if lengths[i] >= 0.1 * lengths.max()]
    assert arrows(ax) == pytest.approx(model.components_[[2, 0]].T[order])
    assert ax.get_xlabel().startswith("loading on component 3")


# Many features in one direction are the hardest case.
NARROW = np.linalg.qr(np.column_stack([np.ones(12), np.linspace(-0.2, 0.2, 12)]))[0].T


@pytest.mark.parametrize("size", [(4, 3), (6, 5), (12, 9)])
@pytest.mark.parametrize("plane", [*(random_plane(14, seed) for seed in range(4)), NARROW])
def test_labels_do_not_overlap_at_any_size(plane: np.ndarray, size: tuple[float, float]) -> None:
    names = [f"feature of length {i}" if i % 2 else f"x{i}" for i in range(plane.shape[1])]
    figure, ax = plt.subplots(figsize=(6, 6), layout="constrained")
    plots.biplot(release(plane, feature_names=names), ax=ax)
    # The size changes after the call.
    figure.set_size_inches(size)
    figure.canvas.draw()
    shown = [label for label in labels(ax) if label.get_visible()]
    boxes = [Text.get_window_extent(label) for label in shown]
    assert not any(overlap(a, b) for a, b in combinations(boxes, 2))
    frame = ax.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert all(frame.y0 <= box.y0 and box.y1 <= frame.y1 for box in boxes)
    assert len(shown) >= (10 if size >= (6, 5) else 5)


def overlap(a: Bbox, b: Bbox) -> bool:
    return a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 and b.y0 < a.y1


def test_loadings_near_0_have_no_arrow_and_no_label() -> None:
    sparse = np.linalg.qr(np.array([[1, 1, 0.01, 0.02, 0, 0], [1, -1, 0.03, 0, 0.01, 0]]).T)[0].T
    ax = plots.biplot(release(sparse, feature_names=list("abcdef")))
    assert sorted(label.get_text() for label in labels(ax)) == ["a", "b"]
    assert len(arrows(ax)) == 2


def test_names_are_shortened_and_are_not_formulas() -> None:
    names = [r"$\frac$", *(f"a name of more than {20 + i} characters" for i in range(4))]
    ax = plots.biplot(release(random_plane(5), feature_names=names))
    shown = {label.get_text() for label in labels(ax)}
    assert r"$\frac$" in shown
    assert all(len(name) <= 24 for name in shown)
    assert all(name.endswith("characters") for name in shown if "…" in name)
    ax.figure.canvas.draw()


def test_records_are_drawn_only_if_they_are_given() -> None:
    ax = plots.biplot(release(random_plane(5)))
    assert len(ax.collections) == 1
    assert ax.get_legend() is None


def test_points_are_projections_times_one_factor_and_named_not_private() -> None:
    plane = random_plane(5)
    published = release(plane)
    X = np.random.default_rng(1).standard_normal((20, 5)) * 100
    scores = X @ plane.T
    factor = np.linalg.norm(plane, axis=0).max() / np.linalg.norm(scores, axis=1).max()
    for given in ({"X": X}, {"scores": scores}):
        ax = plots.biplot(published, **given)
        (points,) = [each for each in ax.collections if not isinstance(each, Quiver)]
        assert np.asarray(points.get_offsets()) == pytest.approx(scores * factor)
        legend = ax.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == [
            f"records (not private), times {factor:.2g}"
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": np.eye(5), "scores": np.eye(2)}, "X and scores are two forms"),
        ({"scores": np.zeros((3, 1))}, "scores must have a column for each component"),
        ({"scores": np.zeros(3)}, r"scores must be of shape \(m, k\) or \(m, r, k\), not of shape \(3,\)"),
        ({"scores": [["a", "b"]]}, "scores holds texts"),
        ({"components": (0, 0)}, "components must be two different numbers from 0 to 1"),
        ({"components": (0, 2)}, "components must be two different numbers from 0 to 1"),
        ({"components": 1}, "components must be two different numbers from 0 to 1, not 1"),
        ({"components": (0, 0.5)}, "components must be two different numbers from 0 to 1"),
        ({"n_loadings": 0}, "n_loadings must be a whole number of at least 1, not 0"),
        ({"n_loadings": 2.5}, "n_loadings must be a whole number of at least 1, not 2.5"),
        ({"ax": "a"}, "ax must be axes, as in `figure, ax = plt.subplots..`, not of type str"),
    ],
)
def test_parameters_of_a_biplot_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        plots.biplot(release(), **arguments)
    # No figure is left open.
    assert plt.get_fignums() == []


def test_a_biplot_of_one_component_is_refused() -> None:
    one = release(np.eye(1, 5), (6.0,), explained_variance_error=[0.3])
    with pytest.raises(ValueError, match="needs two components"):
        plots.biplot(one)


def lines(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in ax.lines
    }


def test_successive_angles_have_the_sum_of_two_bounds() -> None:
    bounds = [math.radians(bound) for bound in (60.0, 7.0, 3.0)]
    turns = zip((0.0, 20.0, 25.0), bounds, (100, 200, 400), strict=True)
    ax = plots.angles(turned(turn, angle_bound=bound, records=n) for turn, bound, n in turns)
    drawn = lines(ax)
    assert drawn["largest angle"][0] == [200, 400]
    assert drawn["largest angle"][1] == pytest.approx([20, 5])
    assert drawn["smaller angles"][1] == pytest.approx([0, 0], abs=1e-6)
    assert drawn["noise alone, at most (90%)"][1] == pytest.approx([67, 10])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("records", "degrees")
    assert ax.xaxis.get_major_formatter()(336_776) == "336,776"


def test_the_sum_of_two_bounds_is_at_most_a_right_angle() -> None:
    ax = plots.angles([turned(turn, angle_bound=math.pi / 2) for turn in (0, 10)])
    assert 60 <= max(ax.get_yticks()) <= 90 < ax.get_ylim()[1]
    assert lines(ax)["noise alone, at most (90%)"][1] == pytest.approx([90])


def test_angles_to_a_reference_have_their_own_bounds() -> None:
    ax = plots.angles([turned(10.0, records=1), turned(4.0, records=2)], reference=np.eye(2, 5))
    drawn = lines(ax)
    assert drawn["largest angle"] == ([1, 2], pytest.approx([10, 4]))
    assert drawn["noise alone, at most (95%)"][1] == pytest.approx([7, 7])
    assert ax.get_title() == "angles to the reference"


def test_fitted_models_and_models_without_a_bound_have_angles() -> None:
    model = PrivatePCA.from_release(turned(30.0))
    plain = PCA(2).fit(np.random.default_rng(0).standard_normal((50, 5)) * [5, 4, 1, 1, 1])
    drawn = lines(plots.angles([model], reference=release()))
    assert drawn["largest angle"] == ([1], pytest.approx([30]))
    # The noise of both turns them.
    assert drawn["noise alone, at most (90%)"] == ([1], pytest.approx([14]))
    drawn = lines(plots.angles([plain, plain]))
    assert "noise alone, at most (90%)" not in drawn
    assert drawn["largest angle"] == ([2], pytest.approx([0], abs=1e-5))


def test_without_growing_numbers_of_records_the_axis_is_the_place() -> None:
    ax = plots.angles([turned(turn) for turn in (0, 10, 30)])
    assert lines(ax)["largest angle"][0] == [2, 3]
    assert ax.get_xlabel() == "release"


def test_releases_of_other_ranks_are_compared_by_the_smaller_one() -> None:
    one = release([[0, 1, 0, 0, 0]], (6.0,), explained_variance_error=[0.3])
    assert lines(plots.angles([turned(15.0), one]))["largest angle"][1] == pytest.approx([15])


@pytest.mark.parametrize(
    ("releases", "arguments", "message"),
    [
        ([turned(0)], {}, "angles needs at least 2 releases, not 1"),
        ([], {"reference": np.eye(2, 5)}, "angles needs at least 1 release, not 0"),
        ([turned(0), np.eye(2, 4)], {}, "the subspaces have different numbers of features"),
        ([turned(0), turned(0, kind="tensor", weights=[1, 1])], {}, "a release of a tensor has no subspace"),
        ([turned(0), np.ones((2, 5))], {}, r"a release, a fitted model or a \(k, d\) array"),
        ([turned(0), np.full((2, 5), 1e200)], {}, r"a release, a fitted model or a \(k, d\) array"),
        ([turned(0), PrivatePCA()], {}, r"a release, a fitted model or a \(k, d\) array"),
        ([turned(0), "release.json"], {}, r"a release, a fitted model or a \(k, d\) array"),
        (turned(0), {}, "angles needs a list of releases or fitted models, not one Release: pass"),
        (PrivatePCA.from_release(turned(0)), {}, "angles needs a list of .* not one PrivatePCA: pass"),
        (PrivatePCA(), {"reference": np.eye(2, 5)}, "angles needs a list of .* not one PrivatePCA: pass"),
        (5, {}, "angles needs a list of releases or fitted models, not one int"),
    ],
)
def test_what_has_no_angles_is_refused(releases: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        plots.angles(releases, **arguments)
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "draw",
    [
        lambda **how: plots.scree(release(), **how),
        lambda **how: plots.biplot(release(), **how),
        lambda **how: plots.angles([turned(0), turned(5)], **how),
    ],
)
def test_a_plot_uses_the_given_axes_or_one_new_figure(draw: Any) -> None:
    _, given = plt.subplots()
    assert draw(ax=given) is given
    assert len(plt.get_fignums()) == 1
    assert draw() is not given
    assert len(plt.get_fignums()) == 2


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "streaming_pca.plots")
    with pytest.raises(LibraryMissing) as caught:
        importlib.import_module("streaming_pca.plots")
    assert str(caught.value) == "streaming_pca.plots needs matplotlib: pip install '.[plots]' in the checkout"
