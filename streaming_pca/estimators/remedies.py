"""Reasons not to rely on a release in words, and the remedies that are left.

The library, the commands and the dashboard show these texts. A remedy depends on the settings: it is
not named if it has been applied, if the estimator ignores it, or if the cause lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.covariance.state import MAX_COVARIANCE_DIM
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.estimators.warnings import ReleaseWarning, resolved_components
from streaming_pca.text import printable

if TYPE_CHECKING:
    from streaming_pca.data.features.feature import Feature
    from streaming_pca.data.release import Release
    from streaming_pca.estimators.base import Estimator, Subspace

_MOST_EPSILON = 10.0  # the most that a larger epsilon may be advised for
_MOST = 16  # most reasons that are shown; a release of another program may list more


@dataclass(frozen=True)
class Situation:
    """Settings that decide which remedies are left."""

    estimator: str  # its id; an estimator of a later version has only general remedies
    centering: str  # "auto", "pairs", "none", or "public" for a vector
    has_bounds: bool
    has_scale: bool
    dim: int
    rank: int  # rank k of the release
    private: bool = True  # False if nothing is guaranteed, and epsilon does not matter
    is_stream: bool = False  # True for a stream of the service, whose contract only a new stream can change
    unit: str = "message"  # unit of privacy
    kind: RecordKind = RecordKind.FACTOR
    """Kind of the records: only vectors and factors have bounds, a scale and a mean."""
    options: Mapping[str, Any] | None = field(default_factory=dict)
    """Options of the estimator that are set; None if they are unknown."""
    bounds: Any = None  # public bounds (2, d), if they are known
    epsilon: float | None = None
    features: Sequence[Feature] = ()  # features that make the rows of records, if they are known
    has_single_rows: bool = True  # False if records are known to have several rows each
    has_chunks: bool = False  # True if several calls of partial_fit added records
    has_share: bool = False  # True if the rank was chosen for a share of the variance

    @classmethod
    def of_estimator(cls, estimator: Estimator[Any, Any], rank: int, **more: Any) -> Situation:
        """Return the situation of a model of the library, with ``more`` of its fields."""
        preprocessing = estimator.preprocessing
        return cls(
            estimator.info.id,
            _word(preprocessing.centering),
            preprocessing.bounds is not None,
            preprocessing.scale is not None,
            estimator.dim,
            rank,
            private=estimator.info.private,
            kind=preprocessing.kind,
            options=estimator.options.model_dump(exclude_unset=True),
            bounds=_known(preprocessing.bounds, estimator.dim),
            epsilon=estimator.privacy.epsilon,
            **more,
        )

    @classmethod
    def of_release(cls, release: Release, kind: RecordKind = RecordKind.FACTOR, **known: Any) -> Situation:
        """Return the situation of a stream; ``known`` are fields that a release does not contain."""
        return cls(
            release.estimator,
            # Versions below 6 do not name it.
            _word(release.centering or ("none" if release.mean is None else "auto")),
            release.bounds is not None,
            release.scale is not None,
            release.dim,
            release.rank,
            private=release.private,
            is_stream=True,
            unit=release.privacy_unit,
            kind=RecordKind.LOCAL if release.local else kind,
            bounds=_known(release.bounds, release.dim),
            epsilon=release.epsilon,
            **{"options": None} | known,
        )

    @property
    def can_scale_by_bounds(self) -> bool:
        """True if a scale by bounds is left, and changes something."""
        differ = self.bounds is None or np.ptp(self.bounds[1] - self.bounds[0]) > 0
        return bool(self.has_bounds and not self.has_scale and differ)

    @property
    def gave_scale(self) -> bool:
        """True if the user gave a scale: a map of features has one by itself."""
        return self.has_scale and (not self.features or any(each.scale is not None for each in self.features))

    @property
    def numbers(self) -> list[Feature]:
        """Features with values and bounds of their own: no words, times or booleans."""
        return [each for each in self.features if each.kind in ("number", "list") and each.bounds != (0, 1)]

    @property
    def can_take_logarithms(self) -> bool:
        """True unless every feature has a transform, or bounds below 0."""
        if self.features:
            return any(each.transform == "none" and (each.bounds or (0,))[0] >= 0 for each in self.numbers)
        return self.bounds is None or bool((self.bounds[0] >= 0).any())

    @property
    def reads_vectors(self) -> bool:
        """True if bounds, a scale and a centre exist for these records."""
        return self.kind is RecordKind.FACTOR

    @property
    def known_options(self) -> frozenset[str]:
        """Names of the estimator's options; none for an unknown estimator."""
        found = ESTIMATORS.get(self.estimator)
        return frozenset() if found is None else frozenset(found.options_type.model_fields)

    @property
    def is_composed(self) -> bool:
        """True for the default estimator and its two routes, which find the clip radius themselves."""
        return "radius_range" in self.known_options

    def supports(self, centering: str) -> bool:
        """Return whether the estimator can use a word of ``centering`` with these records."""
        found = ESTIMATORS.get(self.estimator)
        # Pairs need records of one row each, and no unit of single rows in a stream.
        has_pairs = self.has_single_rows and not (self.is_stream and self.unit == "row")
        return found is not None and centering in found.centerings and (has_pairs or centering != "pairs")

    def has(self, option: str) -> bool:
        """Return whether an option is known to be set."""
        return (self.options or {}).get(option) is not None

    def contract(self, text: str) -> str:
        """Name a remedy that changes the privacy contract, which a running stream cannot."""
        return f"a new stream with {text}" if self.is_stream else text


def _known(bounds: tuple[Any, Any] | None, dim: int) -> Any:
    try:
        return bounds and np.stack([np.broadcast_to(np.asarray(each, float), dim) for each in bounds])
    except (TypeError, ValueError):
        return None  # a release has only digests of long bounds


def _word(centering: object) -> str:
    return centering if isinstance(centering, str) else "public"


@dataclass(frozen=True)
class Advice:
    """Texts about a doubtful release, one line each."""

    reasons: tuple[str, ...]  # id and explanation of each doubt
    remedies: tuple[str, ...]  # remedies that are left; each is one change
    given: tuple[str, ...] = ()  # remedies of these doubts that the settings contain already
    note: str | None = None  # cost of trying again; None where no remedy needs it

    @property
    def lines(self) -> list[str]:
        return [*self.reasons, *self.helps]

    @property
    def helps(self) -> list[str]:
        """Lines on the remedies; none without a remedy."""
        lines = []
        if self.remedies:
            note = "" if self.note is None else f" ({self.note})"
            lines = [f"what helps{note}:", *(f"- {remedy}" for remedy in self.remedies)]
        return [*lines, f"already given: {', '.join(self.given)}"] if self.given else lines

    def __str__(self) -> str:
        return "\n".join(self.lines)


def advise(
    ids: Sequence[str],
    situation: Situation,
    resolved: int | None = None,
    feature: Any = None,
    column: int | None = None,
) -> Advice:
    """Explain doubts and name the remedies that are left.

    An unknown id is shown unchanged, without a remedy. ``resolved`` comes from
    :func:`~streaming_pca.estimators.warnings.resolved_components`; ``feature`` is the name or the number of
    the dominant feature, ``column`` its number, if any.
    """
    known = [ReleaseWarning(name) for name in ids if name in set(ReleaseWarning)]
    known.sort(key=list(_RULES).index)
    # A name in a foreign release may contain terminal control characters.
    named = _ONE_FEATURE if feature is None else f"feature {printable(str(feature))}"
    case = _Case(situation, frozenset(known), resolved, named, -1 if column is None else column)
    found = [each for doubt in known for rule in _RULES[doubt] for each in rule(case)]
    remedies = {each.text: each.is_new for each in found if not each.is_given}
    again = situation.private and any(remedies.values())
    start = "stream" if situation.is_stream else "fit"
    return Advice(
        tuple(_reason(name, case) for name in ids[:_MOST]),
        tuple(remedies),
        tuple(dict.fromkeys(each.text for each in found if each.is_given)),
        f"a new {start} charges its records again" if again else None,
    )


def advise_on_release(release: Release, **known: Any) -> Advice | None:
    """Explain the doubts of a stream's release, or return None; ``known`` as of `Situation.of_release`."""
    if not release.doubts:
        return None
    named = release.dominant_name, release.dominant_feature
    return advise(
        release.doubts, Situation.of_release(release, **known), resolved_components(release), *named
    )


def advise_on_model(
    ids: Sequence[str], estimator: Estimator[Any, Any], release: Subspace, feature: object = None, **more: Any
) -> Advice:
    """Explain the doubts of a fitted model; ``more`` as of :meth:`Situation.of_estimator`."""
    situation = Situation.of_estimator(estimator, len(release.components), **more)
    return advise(ids, situation, resolved_components(release), feature, release.dominant_feature)


_ONE_FEATURE = "one feature"
_BY_BOUNDS = 'scale = "bounds", 2/(upper - lower), if features have different units'


@dataclass(frozen=True)
class _Case:
    settings: Situation
    doubts: frozenset[ReleaseWarning]
    resolved: int | None
    feature: str
    column: int  # number of the dominant feature, or -1


@dataclass(frozen=True)
class _Remedy:
    """Remedy that is left, or has been applied; ``is_new`` if it needs a new fit or a new stream."""

    text: str
    is_new: bool = False
    is_given: bool = False


_Remedies = Iterator[_Remedy]
_Rule = Callable[[_Case], Iterable[_Remedy]]


def _reason(name: str, case: _Case) -> str:
    if name not in set(ReleaseWarning):
        return name
    text = f"{name}: {ReleaseWarning(name).explanation}"
    if name == ReleaseWarning.NOT_RESOLVED and case.resolved:
        text = f"{text}, but not the first{f' {case.resolved}' * (case.resolved > 1)} of {case.settings.rank}"
    return text.replace(_ONE_FEATURE, case.feature) if name == ReleaseWarning.DOMINATED else text


def _change(case: _Case, text: str) -> _Remedy:
    """Return a remedy that changes the privacy contract."""
    return _Remedy(case.settings.contract(text), is_new=True)


def _option(case: _Case, text: str) -> _Remedy:
    """Return a remedy that changes an option, which a stream reads at its start."""
    return _Remedy(text, is_new=not case.settings.is_stream)


def _records(case: _Case) -> _Remedies:
    s = case.settings
    # Each batch adds its noise.
    if s.has_chunks and s.is_composed:
        yield _option(case, "fewer, larger chunks")
    sizes = ("a larger first_batch", "a larger max_batch", "a lower n_batches") if s.is_stream else ()
    yield from (_option(case, each) for each in sizes if ((s.options or {}).get(each.split()[-1]) or 0) > 1)
    if s.has("half_life"):
        yield _option(case, "a longer half_life, or none: it limits how many records count")
    elif s.kind is RecordKind.LOCAL:
        yield _Remedy("more reports")
    elif s.is_composed or "batch_size" not in s.known_options:
        yield _Remedy("more records")
    else:
        yield _option(case, "more records, in batches with a larger batch_size")


def _epsilon(case: _Case) -> _Remedies:
    if case.settings.private and (case.settings.epsilon or 0.0) < _MOST_EPSILON:
        of = " of its reports" if case.settings.kind is RecordKind.LOCAL else ""
        yield _change(case, f"a larger epsilon{of}")


def _given_bounds(s: Situation) -> _Remedies:
    is_bounded = s.has_bounds and (s.numbers or not s.features)
    given = ["public bounds"] * bool(is_bounded) + ["a scale"] * s.gave_scale
    if given:
        yield _Remedy(" and ".join(given), is_given=True)
    yield from _transforms(s.numbers)


def _bounds(case: _Case) -> _Remedies:
    s = case.settings
    # Other estimators clip to a public radius, with and without bounds.
    if not (s.is_composed and s.reads_vectors):
        return
    yield from _given_bounds(s)
    bare = [printable(each.name) for each in s.features if each.column_bounds is None]
    of = "features" if len(bare) in (0, len(s.features)) else f"features without any ({', '.join(bare[:3])})"
    if not s.has_bounds:
        yield _change(case, f"public bounds of the {of}")


def _narrower(case: _Case) -> _Remedies:
    """Yield narrower bounds: their noise grows with their width where they are far wider than the records."""
    s = case.settings
    if not (s.has_bounds and s.is_composed and s.reads_vectors):
        return
    others = case.doubts & {ReleaseWarning.CLAMPED, ReleaseWarning.DOMINATED, ReleaseWarning.CLIPPED}
    if not others and (s.numbers or not s.features):
        yield _change(case, "narrower bounds, if these are far wider than the records")
    if s.can_scale_by_bounds:
        yield _change(case, _BY_BOUNDS)


def _resolved(case: _Case) -> _Remedies:
    """Yield the rank of the components that are resolved: the rest is noise."""
    # An estimate: a fit of a few more may resolve them too.
    if case.resolved and case.resolved < case.settings.rank:
        name = "rank" if case.settings.is_stream else "n_components"
        yield _change(case, f"a lower {name}, such as {case.resolved}")


def _rank(case: _Case) -> _Remedies:
    s = case.settings
    name = "rank" if s.is_stream else "n_components"
    if s.rank == 1 and not s.has_share:
        yield _Remedy("one component", is_given=True)
    elif s.rank > 1 and not (case.resolved and case.resolved < s.rank):
        yield _change(case, f"a lower {name}")
    # Noise alone chooses among directions of one variance; beyond one, a lower rank is the better advice.
    if ReleaseWarning.NOT_RESOLVED in case.doubts and s.rank == 1 < s.dim:
        yield _change(case, f"a higher {name}, if further variances are about as large")


def _tuning(case: _Case) -> _Remedies:
    """Yield options that must suit the data."""
    s = case.settings
    if s.is_composed and s.has("clip_radius"):
        yield _option(case, "a clip_radius near the norms of the records, or none")
    for name in ("clip_radius", "clip_l2"):
        if name in s.known_options and not s.is_composed:
            yield _option(case, f"a smaller {name}, if few records are longer")
    if "learning_rate" in s.known_options:
        yield _option(case, "a learning_rate that suits the data")


def _centre(case: _Case) -> _Remedies:
    """Yield ways to a mean without error."""
    if case.settings.supports("pairs"):
        yield _change(case, 'centering = "pairs", which needs no mean (records of one row)')
    yield _change(case, "a public centre as centering, such as zeros where most values are 0")


def _own_centre(case: _Case) -> _Remedies:
    """Yield ways to a mean without error, where it is estimated: its error hides variances."""
    s = case.settings
    if not s.reads_vectors:
        return
    if s.centering == "auto":
        yield from _centre(case)
    elif s.centering == "public":
        yield _Remedy("a public centre", is_given=True)
    elif s.supports("auto") and ReleaseWarning.MEAN_UNKNOWN not in case.doubts:
        yield _Remedy(f'centering = "{s.centering}"', is_given=True)


def _centering(case: _Case) -> _Remedies:
    """Yield other centrings than "none"; for "auto" the mean needs records or epsilon."""
    s = case.settings
    if s.centering == "auto":
        yield from (*_records(case), *_epsilon(case), *_centre(case))
    elif s.centering == "none":
        if s.supports("auto"):
            yield _change(case, 'centering = "auto"')
        elif s.supports("pairs"):
            yield _change(case, 'centering = "pairs" (records of one row)')
        yield _change(case, "a public centre as centering: zeros, if the records are centred")


def _quantile(case: _Case) -> _Remedies:
    if case.settings.has("clip_quantile"):
        yield _option(case, "a higher clip_quantile, or none")


def _scale(s: Situation, of: str, owner: Feature | None = None) -> str:
    """Return the remedy of a scale for features that decide the norms of records."""
    if owner is not None and owner.scale is not None and s.has_bounds:
        return "the default scale of features, by bounds (leave out scale)"
    given = " than the one given" if s.gave_scale else ""
    return _BY_BOUNDS if s.can_scale_by_bounds else f"a smaller scale{given} for {of}"


def _transforms(features: Sequence[Feature]) -> _Remedies:
    """Yield a transform that features have already, with up to three names."""
    if names := [printable(each.name) for each in features if each.transform != "none"]:
        yield _Remedy(f"a transform ({', '.join(names[:3])}{', ...' * (len(names) > 3)})", is_given=True)


def _large_values(case: _Case) -> _Remedies:
    """Yield remedies for features of few large values."""
    s = case.settings
    # If one dominates, it is named.
    if not s.reads_vectors or ReleaseWarning.DOMINATED in case.doubts or (s.features and not s.numbers):
        return
    of = "features of few large values"
    if s.can_take_logarithms:
        yield _change(case, f"the logarithm of {of}, if positive")
    if not s.has_scale:
        yield _change(case, _scale(s, of))
    if s.has_bounds and ReleaseWarning.CLAMPED not in case.doubts:
        yield _change(case, f"narrower bounds for {of}{', with the same scale' * s.has_scale}")


def _one_feature(case: _Case) -> _Remedies:
    s, of = case.settings, "that feature" if case.feature == _ONE_FEATURE else case.feature
    owner = dict(enumerate(each for each in s.features for _ in each.columns)).get(case.column)
    yield _change(case, _scale(s, of, owner))
    if "=" in of if owner is None else owner not in s.numbers:  # such a column has neither
        return
    is_below = case.column >= 0 and s.bounds is not None and s.bounds[0][case.column] < 0
    yield from _transforms([owner] if owner else [])
    if not is_below and (owner is None or owner.transform == "none"):
        unless = " and not given" if owner is None else ""
        yield _change(case, f"the logarithm of {of} instead, if positive{unless}")
    if not s.has_bounds:
        # Bounds cannot name some features only.
        yield from _bounds(case)
    elif ReleaseWarning.CLAMPED not in case.doubts:
        yield _change(case, f"narrower bounds for {of}{', with the same scale' * s.has_scale}")


def _steps(case: _Case) -> _Remedies:
    """Yield ways to no steps: more batches, each of them a step, seldom settle the components."""
    s = case.settings
    if s.dim > MAX_COVARIANCE_DIM:
        yield _change(case, f"at most {MAX_COVARIANCE_DIM} features, which need no steps")
    elif s.estimator == "block":
        yield _change(case, 'estimator = "analyze-gauss", which needs no steps')
    else:
        yield _option(case, 'the option route = "covariance", which needs no steps')


def _range(case: _Case) -> _Remedies:
    s = case.settings
    if s.options is None or s.has("radius_range"):
        yield _option(case, f"a radius_range that ends higher{', if it is set' * (s.options is None)}")
    if s.reads_vectors:
        yield _change(case, f"a smaller scale{' than the one given' if s.gave_scale else ''}")


_NOISE: tuple[_Rule, ...] = (_resolved, _records, _epsilon, _bounds, _narrower, _rank, _tuning)
_RULES: Mapping[ReleaseWarning, tuple[_Rule, ...]] = {
    ReleaseWarning.CLAMPED: (
        lambda case: [_change(case, "wider bounds, in the units of the records")],
        lambda case: _given_bounds(case.settings),
    ),
    ReleaseWarning.DOMINATED: (_one_feature,),
    ReleaseWarning.MEAN_UNKNOWN: (_centering,),
    ReleaseWarning.NO_RECORDS: (
        lambda case: [_Remedy("reports" if case.settings.kind is RecordKind.LOCAL else "records")],
    ),
    ReleaseWarning.NOT_RESOLVED: _NOISE,
    ReleaseWarning.VARIANCE_LOST: (*_NOISE, _own_centre),
    ReleaseWarning.MEAN_SWAMPS: (_resolved, _centre, _records, _epsilon, _bounds, _narrower, _rank),
    ReleaseWarning.CLIPPED: (_quantile, _large_values, _records, _epsilon, _bounds),
    ReleaseWarning.UNSETTLED: (_steps,),
    ReleaseWarning.RESTARTED: (_records, _epsilon),
    ReleaseWarning.RANGE_ENDS: (_bounds, _range),
}
"""Remedies of each doubt, the most effective first: bounds, one feature or a mean that do harm come first."""
