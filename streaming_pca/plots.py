"""Figures of fitted models and releases, drawn by matplotlib: the extra `plots`.

Each function draws into ``ax``, or into a new figure of pyplot, and returns the axes without showing them.
Of private models and releases, ``scree``, ``angles`` and the arrows of ``biplot`` are post-processing, which
costs no privacy. The points of ``biplot`` are records, and are not private; nor is an angle to a reference
that was computed from private records without noise.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.api import PrivatePCA
from streaming_pca.api.rows import check_numbers
from streaming_pca.data.projection import is_orthonormal
from streaming_pca.data.release import Release
from streaming_pca.errors import LibraryMissing, UserError
from streaming_pca.linalg.subspace import principal_angles
from streaming_pca.text import install_command

try:
    from matplotlib import pyplot as plt
    from matplotlib.artist import Artist
    from matplotlib.backend_bases import FigureCanvasBase
    from matplotlib.text import Annotation, Text
    from matplotlib.ticker import FixedLocator, MaxNLocator
except ModuleNotFoundError:
    raise LibraryMissing(f"streaming_pca.plots needs matplotlib: {install_command('plots')}") from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = NDArray[np.float64]

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#8C8C8C"  # of Okabe and Ito: distinct for all eyes, on white
_FAINT = "#9CC6E0"
_STANDARD_ERRORS = 2.0  # above 0, they distinguish a variance from noise: doubt "variance-lost"
_MOST_LINES = 4  # most principal angles that are drawn
_LONGEST_NAME = 24
_SHORTEST = 0.1  # length of the shortest arrow over the longest: labels of shorter ones would pile up at 0
_RADII = (8, 16, 26, 38, 52, 70, 92, 120)  # distances of a label from its arrow's tip, in points
_TURNS = (0, 30, -30, 60, -60, 90, -90, 130, -130)  # its directions in degrees from the arrow's


def scree(pca: Any, *, ax: Axes | None = None) -> Axes:
    """Draw each component's share of the variance, and the share of the rest.

    Parameters
    ----------
    pca : PrivatePCA or Release
        A model with a total variance: of estimator "adaptive", "analyze-gauss" or "block". Also a
        ``sklearn.decomposition.PCA``, for comparison.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    Axes
        Bars of ``explained_variance_ratio_``, and one bar for all other directions together, so that the bars
        sum to 1. A dashed line shows the mean share of one of these directions. Components whose variance is
        at most two standard errors have a faint bar. The title has the angle bound and the doubts.

    Raises
    ------
    ValueError
        One line, if the model has no total variance.

    Notes
    -----
    Error bars are one standard error, of noise, clips and mean; they do not include the sampling of the
    records. With variances v, their total T, and standard errors e and f of a variance and of the total,
    the share v/T has the error sqrt(e^2 + (v/T)^2 f^2)/T. The rest has it with sums over all components
    in the place of v and e. To first order these are upper bounds unless a variance and the total err in
    opposite directions; noise, clips and the mean move both in the same one.
    """
    model = _fitted(pca)
    shares = _shares(model)
    k, dim = model.components_.shape
    rest = max(1.0 - float(shares.sum()), 0.0) if k < dim else None
    errors = _share_errors(model, shares)
    ax = _axes(ax)
    heights = shares if rest is None else np.append(shares, rest)
    places = np.arange(1, len(heights) + 1)
    noise = _STANDARD_ERRORS * np.asarray(getattr(model, "explained_variance_error_", 0.0))
    colours = np.where(np.asarray(model.explained_variance_) <= noise, _FAINT, _BLUE).tolist()
    ax.bar(places[:k], shares, color=colours, width=0.7)
    if rest is not None:
        others = dim - k
        ax.bar(places[k:], [rest], color=_GREY, width=0.7)
        ax.axhline(rest / others, color=_GREY, ls="--", label=f"mean of the {others:,} other directions")
        ax.legend()
    if errors is not None:
        ax.errorbar(places, heights, errors[: len(places)], fmt="none", ecolor="k", elinewidth=1.2, capsize=3)
    step = -(-k // 12)
    ticks = [*range(1, k + 1, step)]
    if rest is not None:
        # A number next to the word would touch it.
        ticks = [*(i for i in ticks if k + 1 - i >= step), k + 1]
    ax.set_xticks(ticks, [str(i) if i <= k else "rest" for i in ticks])
    ax.set_ylim(bottom=0.0)
    ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    ax.set(xlabel="component", ylabel="share of the total variance")
    if title := _caveats(model):
        _set_title(title, ax)
    return ax


def biplot(
    pca: Any,
    X: ArrayLike | None = None,
    *,
    scores: ArrayLike | None = None,
    components: tuple[int, int] = (0, 1),
    n_loadings: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Draw the longest loadings of two components as arrows with the features' names.

    **Points of private records are not private.** Only the arrows are post-processing of a release. Points
    are drawn only if ``X`` or ``scores`` is given. Each is a function of one record without noise: to show
    it is to show the record. Pass records that are public, synthetic, or yours to show.

    Parameters
    ----------
    pca : PrivatePCA or Release
        Also a ``sklearn.decomposition.PCA``, for comparison.
    X : rows, optional
        Records to draw as points, as for ``PrivatePCA.transform``. **Not private.**
    scores : (m, k) numbers, optional
        Coordinates of records, such as a projected topic holds, instead of X. **Not private.**
    components : (int, int), default=(0, 1)
        Indices of two components, for the horizontal and the vertical axis.
    n_loadings : int, default=10
        Largest number of arrows. Loadings below a tenth of the longest have none.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    Axes
        Arrows in units of ``components_``; points are multiplied by one factor, which the legend shows.
        Labels are placed at each drawing of the figure, so that none overlaps another. A label
        without a free place is left out.

    Raises
    ------
    ValueError
        One line that names the parameter.
    """
    model = _fitted(pca)
    pair = _checked_pair(components, len(model.components_))
    if X is not None and scores is not None:
        raise ValueError("X and scores are two forms of the same points: pass one of them")
    if not isinstance(n_loadings, Integral) or n_loadings < 1:
        raise ValueError(f"n_loadings must be a whole number of at least 1, not {n_loadings!r}")
    loadings = np.asarray(model.components_, dtype=np.float64)[pair].T
    lengths = np.linalg.norm(loadings, axis=1)
    longest = float(lengths.max())
    shown = np.argsort(-lengths, kind="stable")[:n_loadings]
    shown = shown[lengths[shown] >= _SHORTEST * longest]
    points = model.transform(X) if X is not None else scores
    factor, places = (1.0, None) if points is None else _fitting(points, pair, longest)
    ax = _axes(ax)
    ax.axhline(0.0, color=_GREY, linewidth=0.6, zorder=0.5)
    ax.axvline(0.0, color=_GREY, linewidth=0.6, zorder=0.5)
    if places is not None:
        label = f"records (not private), times {factor:.2g}"
        ax.scatter(*places.T, s=6, color=_GREY, alpha=0.35, linewidths=0, zorder=1, label=label)
        ax.legend(loc="lower right")
    tips = loadings[shown]
    origin = np.zeros(len(tips))
    ax.quiver(
        *(origin, origin, *tips.T), angles="xy", scale_units="xy", scale=1, width=0.005, color=_BLUE, zorder=2
    )
    limit = 1.4 * longest
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")
    shares = getattr(model, "explained_variance_ratio_", None)
    for axis, i in zip((ax.xaxis, ax.yaxis), pair, strict=True):
        part = 0.0 if shares is None else 100 * float(shares[i])
        share = "" if shares is None else f" ({part:{'.0f' if abs(part) >= 10 else '.2g'}}% of the variance)"
        axis.set_label_text(f"loading on component {i + 1}{share}")
    ax.add_artist(_Placer([_label(ax, _name(model, j), loadings[j]) for j in shown], tips))
    return ax


def angles(releases: Iterable[Any], *, reference: Any = None, ax: Axes | None = None) -> Axes:
    """Draw the principal angles between successive releases, or to a reference.

    Parameters
    ----------
    releases : iterable of Release or PrivatePCA
        Releases of one stream in order, for example
        ``streaming_pca.client.follow("name", start="first", timeout=5)``, or fitted models. The iterable
        must end, so give ``follow`` a timeout.
    reference : Release, PrivatePCA or (k, d) array of orthonormal rows, optional
        Subspace that all releases are compared with. The exact subspace of private records makes the
        figure **not private**. By default each release is compared with the one before it.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    Axes
        Degrees over the number of records, where it grows; otherwise over the place in the sequence. The
        bold line is the largest principal angle, thin lines are up to three smaller ones. The dashed line
        is the largest angle that noise explains, where ``angle_bound`` is known: of one release with
        probability 0.95, to an array; the sum for both releases with probability 0.90, otherwise.

    Raises
    ------
    ValueError
        One line: fewer than two releases without a reference, other numbers of features, or a tensor.

    Notes
    -----
    An angle above the dashed line is more than noise explains: the records changed, or a doubt such as
    "clipped" limits the bound to the noise. Each bound compares a release with the subspace of the
    same records without noise. A reference of other records adds the angle between the two sets.
    """
    if isinstance(releases, Release) or not isinstance(releases, Iterable):
        raise ValueError(
            f"angles needs a list of releases or fitted models, not one {type(releases).__name__}: "
            "pass [first, second], or [one] and a reference"
        )
    items = list(releases)
    bases = [_basis(item) for item in items]
    least = 2 if reference is None else 1
    if len(items) < least:
        raise ValueError(
            f"angles needs at least {least} release{'s' * (least > 1)}, not {len(items)}: "
            "wait for more, or pass a reference"
        )
    bounds = [_angle_bound(item) for item in items]
    if reference is None:
        pairs = list(pairwise(bases))
        bound = np.add(bounds[:-1], bounds[1:])
        title, percent, items = "angles between successive releases", 90, items[1:]
    else:
        pairs = [(basis, _basis(reference)) for basis in bases]
        is_exact = not (hasattr(reference, "angle_bound") or hasattr(reference, "angle_bound_"))
        bound = np.add(bounds, 0.0 if is_exact else _angle_bound(reference))
        title, percent = "angles to the reference", 95 if is_exact else 90
    bound = np.minimum(bound, math.pi / 2)
    if len({basis.shape[1] for pair in pairs for basis in pair}) > 1:
        raise ValueError("the subspaces have different numbers of features: they are not of one stream")
    xs, xlabel = _positions(items, first=least)
    found = [np.degrees(principal_angles(a, b)) for a, b in pairs]
    ax = _axes(ax)
    for i in range(1, min(max(map(len, found)), _MOST_LINES)):
        smaller = [each[i] if i < len(each) else math.nan for each in found]
        label = "smaller angles" if i == 1 else None
        ax.plot(xs, smaller, color=_GREY, linewidth=0.9, label=label)
    ax.plot(xs, [each[0] for each in found], color=_BLUE, marker="o", label="largest angle")
    if not np.isnan(bound).all():
        label = f"noise alone, at most ({percent}%)"
        ax.plot(xs, np.degrees(bound), color=_ORANGE, linestyle="--", marker=".", label=label)
    # Room for the legend, which must not hide a point; but no angle is above 90.
    ax.set(ylim=(0.0, 1.3 * ax.get_ylim()[1]), xlabel=xlabel, ylabel="degrees", title=title)
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= min(90, ax.get_ylim()[1])])
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True) if len(xs) > 6 else FixedLocator(list(xs)))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.legend(loc="upper center", ncols=2)
    return ax


class _Placer(Artist):
    """Places labels when the figure is drawn, for its final size: it is drawn before them."""

    def __init__(self, labels: Sequence[Annotation], tips: Matrix) -> None:
        super().__init__()
        self._labels, self._tips = labels, tips
        self.set_zorder(1.5)
        self.set_in_layout(False)

    def draw(self, renderer: Any) -> None:
        """Move each label to its first free place, if possible clear of arrows."""
        assert self.axes is not None
        frame = self.axes.get_window_extent(renderer)
        inside = np.array([[frame.x0, frame.y0], [frame.x1, frame.y1]])
        to_pixels = self.axes.transData.transform
        origin, tips = to_pixels((0.0, 0.0)), to_pixels(self._tips) if len(self._tips) else self._tips
        shafts = np.concatenate([origin + t * (tips - origin) for t in np.linspace(0.1, 1.0, 24)])
        pixels = renderer.points_to_pixels(1.0)
        taken: list[Matrix] = []
        for label, tip in zip(self._labels, tips, strict=True):
            size = np.array(Text.get_window_extent(label, renderer).size)
            boxes = [
                box
                for box in _boxes(tip, tip - origin, size, pixels)
                if np.all(box[0] >= inside[0])
                and np.all(box[1] <= inside[1])
                and not any(np.all(box[0] < other[1]) and np.all(other[0] < box[1]) for other in taken)
            ]
            free = (box for box in boxes if not np.any(np.all((box[0] < shafts) & (shafts < box[1]), axis=1)))
            box = next(free, boxes[0] if boxes else None)
            label.set_visible(box is not None)
            if box is not None:
                taken.append(box)
                place = tuple((box.mean(axis=0) - tip) / pixels)
                if label.get_position() != place:
                    label.set_position(place)


def _boxes(tip: Matrix, direction: Matrix, size: Matrix, pixels: float) -> Iterable[Matrix]:
    """Yield boxes of a label around its tip, the best first, as two corners."""
    angle = math.atan2(direction[1], direction[0])
    for radius in _RADII:
        for turn in _TURNS:
            towards = np.array([math.cos(angle + math.radians(turn)), math.sin(angle + math.radians(turn))])
            centre = tip + towards * (radius * pixels + size / 2)
            # A margin of one point around the text.
            half = size / 2 + pixels
            yield np.array([centre - half, centre + half])


def _label(ax: Axes, name: str, tip: Matrix) -> Annotation:
    line = {"arrowstyle": "-", "color": _GREY, "linewidth": 0.5, "shrinkA": 0.0, "shrinkB": 1.0}
    return ax.annotate(
        name,
        xy=(float(tip[0]), float(tip[1])),
        xytext=(0.0, 0.0),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize="small",
        arrowprops=line,
        zorder=3,
        # A name of a feature is not a formula.
        parse_math=False,
    )


def check_figure_path(path: Path) -> None:
    """Refuse a path of --plot without an existing folder or the ending of a format."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UserError(f"--plot {path}: the folder {folder} does not exist: create it")
    if path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise UserError(f"--plot {path}: the ending names the format: choose .png, .svg or .pdf")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a path that :func:`check_figure_path` accepts."""
    check_figure_path(path)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise UserError(f"--plot {path}: {error.strerror or error}") from None


def _axes(ax: Axes | None) -> Axes:
    if ax is not None and not hasattr(ax, "axhline"):
        raise ValueError(
            f"ax must be axes, as in `figure, ax = plt.subplots()`, not of type {type(ax).__name__}"
        )
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _fitted(model: Any) -> Any:
    """Return a model with the fitted attributes of scikit-learn."""
    if isinstance(model, Release):
        return PrivatePCA.from_release(model)
    if not hasattr(model, "components_"):
        raise ValueError(f"a fitted model or a Release is needed, not {type(model).__name__}: call fit first")
    return model


def _shares(model: Any) -> Matrix:
    shares = getattr(model, "explained_variance_ratio_", None)
    if shares is None:
        raise ValueError(
            f"scree needs the total variance, which {getattr(model, 'estimator', 'this model')} has not "
            "released: fit adaptive, analyze-gauss or block, on more records if one of these was fitted"
        )
    return np.asarray(shares, dtype=np.float64)


def _share_errors(model: Any, shares: Matrix) -> Matrix | None:
    """Return standard errors of the shares and of the rest; None where too little is known."""
    errors = getattr(model, "explained_variance_error_", None)
    of_total = getattr(model, "total_variance_error_", None)
    if errors is None or of_total is None:
        return None
    errors = np.append(errors, np.sum(errors))
    total, explained = float(model.total_variance_), float(np.sum(model.explained_variance_))
    if explained > total:
        # Then the shares have this divisor.
        total, of_total = explained, max(of_total, errors[-1])
    return np.asarray(np.hypot(errors, np.append(shares, shares.sum()) * of_total) / total)


def _caveats(model: Any) -> str:
    """Return the angle bound and the doubts of a model in one line."""
    parts = []
    # All components together span everything.
    k, d = model.components_.shape
    if k < d and not math.isnan(bound := _angle_bound(model)):
        parts.append(f"angle due to noise at most {math.degrees(bound):.2g}° (95%)")
    if doubts := getattr(model, "doubts_", ()):
        if parts and {"clipped", "unsettled"} & set(doubts):
            parts[0] += ", and more due to clipping"
        parts.append(f"doubts: {', '.join(doubts)}")
    return "; ".join(parts)


def _set_title(title: str, ax: Axes) -> None:
    """Break a title into lines as wide as the axes; matplotlib would cut it at the figure's edge.

    Letters become smaller where the lines do not fit above the axes, unless a layout will make room.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    has_layout = figure.get_layout_engine() is not None
    width = ax.get_window_extent().width * (0.7 if has_layout else 1.0)  # it may narrow and shift the axes
    text = ax.set_title(title, fontsize="medium")
    size, most = float(text.get_fontsize()), max(int(16 * width / figure.dpi), 10)
    for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
        text.set_fontsize(share * size)
        for columns in range(int(most / share), 9, -1):
            text.set_text(textwrap.fill(title, columns, break_on_hyphens=False))
            if text.get_window_extent().width <= width:
                break
        if has_layout or text.get_window_extent().y1 <= figure.bbox.y1:
            return


def _name(model: Any, feature: int) -> str:
    names = getattr(model, "feature_names_in_", None)
    name = f"feature {feature}" if names is None else str(names[feature])
    # Shortened in the middle: words of one category differ at their ends.
    tail = (_LONGEST_NAME - 1) // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1 - tail]}…{name[-tail:]}"


def _checked_pair(components: tuple[int, int], k: int) -> list[int]:
    if k < 2:
        raise ValueError("a biplot needs two components, but the model has one: fit it with n_components=2")
    pair = [i for i in components if isinstance(i, Integral)] if isinstance(components, Sequence) else []
    if len(pair) != 2 or pair[0] == pair[1] or not all(0 <= i < k for i in pair):
        raise ValueError(f"components must be two different numbers from 0 to {k - 1}, not {components!r}")
    return pair


def _fitting(scores: ArrayLike, pair: list[int], longest: float) -> tuple[float, Matrix]:
    """Return points within the longest arrow's length, after their factor."""
    points = check_numbers(scores, "scores").astype(np.float64)
    if points.ndim < 2 or points.shape[-1] <= max(pair):
        raise ValueError(f"scores must have a column for each component, not shape {points.shape}")
    chosen = points.reshape(-1, points.shape[-1])[:, pair]
    farthest = float(np.linalg.norm(chosen, axis=1).max())
    factor = longest / farthest if farthest > 0 else 1.0
    return factor, chosen * factor


def _basis(given: Any) -> Matrix:
    """Return orthonormal rows (k, d)."""
    if isinstance(given, Release):
        if given.kind == "tensor":
            raise ValueError("a release of a tensor has no subspace: pass releases of a subspace")
        given = given.components
    try:
        basis = np.asarray(getattr(given, "components_", given), dtype=np.float64)
    except (TypeError, ValueError):
        basis = np.zeros(0)
    if basis.ndim != 2 or not is_orthonormal(basis):
        raise ValueError("a release, a fitted model or a (k, d) array of orthonormal rows is needed")
    return basis


def _angle_bound(item: Any) -> float:
    """Return the angle bound in radians; NaN where it is not known."""
    bound = getattr(item, "angle_bound", getattr(item, "angle_bound_", None))
    return math.nan if bound is None else float(bound)


def _positions(items: Sequence[Any], first: int) -> tuple[list[float], str]:
    """Return the numbers of records with their name, or the places in the sequence."""
    records = [getattr(item, "records", getattr(item, "n_records_seen_", math.nan)) for item in items]
    if len(items) > 1 and np.all(np.diff(records) > 0):
        return [float(n) for n in records], "records"
    return [float(first + i) for i in range(len(items))], "release"
