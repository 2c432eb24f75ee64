"""Texts about doubts: they name only what is left to do, in every combination of settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from streaming_pca import DoubtfulResultWarning, PrivatePCA
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.records import RecordKind
from streaming_pca.data.release import Release
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.estimators.remedies import Situation, advise, advise_on_release
from streaming_pca.estimators.warnings import ReleaseWarning as W
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.privacy.noise import SeededSampler

NEW = "a new stream with "
OPTIONS: dict[str, Any] = {
    "half_life": 1000.0,
    "clip_quantile": 0.5,
    "radius_range": (1.0, 2.0),
    "batch_size": 64,
    "route": "auto",
}
NAMES = {name for kind in ESTIMATORS.values() for name in kind.options_type.model_fields}


def situations() -> Iterator[Situation]:
    """Yield all combinations of settings that estimators accept, with up to one option each."""
    for name, kind in ESTIMATORS.items():
        known = set(kind.options_type.model_fields)
        options = [{}, *({key: value} for key, value in OPTIONS.items() if key in known)]
        for read in sorted(kind.kinds):
            is_plain = read is not RecordKind.FACTOR
            centerings = ("none",) if is_plain else (*kind.centerings, "public")
            yes_or_no = (False,) if is_plain else (False, True)
            for centering, bounds, scale, dim, rank, is_stream, unit, given in itertools.product(
                centerings,
                yes_or_no,
                yes_or_no,
                (20, 600),
                (1, 3),
                (False, True),
                ("message", "row"),
                options,
            ):
                if unit == "row" and (centering == "pairs" or not is_stream):
                    continue
                public = centering, bounds, scale, dim, rank
                yield Situation(name, *public, kind.info.private, is_stream, unit, read, given)


ALL = tuple(situations())


def occurs(doubt: W, s: Situation) -> bool:
    """Return whether a release with these settings can have the doubt."""
    if doubt is W.NO_RECORDS:
        return True
    if ESTIMATORS[s.estimator].info.releases == "tensor":
        return False
    if doubt is W.VARIANCE_LOST:
        return True
    if doubt is W.NOT_RESOLVED:
        return s.is_composed or s.estimator == "local-gaussian"
    if not s.is_composed:
        return False
    is_factor = s.kind is RecordKind.FACTOR
    return {
        W.MEAN_SWAMPS: s.centering == "auto",
        W.MEAN_UNKNOWN: is_factor and s.centering in ("auto", "none"),
        W.CLIPPED: True,
        W.DOMINATED: is_factor,
        W.UNSETTLED: s.estimator in ("adaptive", "block"),
        W.RESTARTED: True,
        W.CLAMPED: s.has_bounds,
        W.RANGE_ENDS: not s.has_bounds and (is_factor or s.has("radius_range")),
    }[doubt]


@pytest.mark.parametrize("doubt", W)
def test_each_possible_doubt_has_remedies_that_are_left(doubt: W) -> None:
    """One remedy a line, none of them applied already, ignored by the estimator, or about another cause."""
    count = 0
    for s in filter(lambda s: occurs(doubt, s), ALL):
        advice = advise([doubt], s)
        count += 1
        context = (doubt, s, advice)
        assert advice.remedies, context
        text = "\n".join(advice.remedies)
        for line in advice.remedies:
            joined = re.search(r"[\n;.]|, or a | or a larger| or more", line.replace("or none", ""))
            assert not joined, context
            assert len(line) <= 90, context
        assert len(set(advice.remedies)) == len(advice.remedies), context
        if s.has_bounds:
            assert "public bounds" not in text, context
        else:
            assert "public bounds" not in advice.given, context
            assert "narrower bounds" not in text, context
            assert "wider bounds" not in text, context
        if s.kind is not RecordKind.FACTOR:
            assert not re.search("bounds|scale|centre|centering|mean", text), context
        if doubt in (W.NOT_RESOLVED, W.VARIANCE_LOST, W.MEAN_SWAMPS):
            is_helpful = s.has_bounds and s.is_composed
            assert ("narrower bounds, if these are far wider" in text) == is_helpful, context
            assert ('scale = "bounds"' in text) == (is_helpful and not s.has_scale), context
        if 'scale = "bounds"' in text:
            assert s.has_bounds, context
            assert not s.has_scale, context
            assert "smaller scale" not in text, context
        if doubt in (W.DOMINATED, W.CLIPPED) and s.kind is RecordKind.FACTOR:
            assert ('scale = "bounds"' in text) == (s.has_bounds and not s.has_scale), context
            is_left = not (s.has_scale or s.has_bounds) or (s.has_scale and doubt is W.DOMINATED)
            assert ("smaller scale" in text) == is_left, context
        if s.has_scale:
            assert "smaller scale" not in text.replace("smaller scale than the one given", ""), context
        else:
            assert "the one given" not in text, context
        if s.rank == 1:
            assert not re.search("lower (rank|n_components)", text), context
        if not s.private:
            assert "epsilon" not in text, context
            assert advice.note is None, context
        if s.has("half_life"):
            assert "more records" not in text, context
        if doubt is W.NO_RECORDS:
            assert advice.remedies == ("reports" if s.kind is RecordKind.LOCAL else "records",)
        for word in re.findall(r"[a-z]+(?:_[a-z0-9]+)+|\broute\b", text):
            assert word in s.known_options | {"n_components"}, context
        assert ("n_components" in text) <= (not s.is_stream), context
        for centering in re.findall(r'centering = "(\w+)"', text):
            assert s.supports(centering), context
            assert centering != s.centering, context
    assert count


@pytest.mark.parametrize("doubt", W)
def test_a_stream_and_the_library_get_the_same_remedies(doubt: W) -> None:
    """Only the contract differs: a running stream cannot change it, so a new stream is named."""
    contract = re.compile(
        "epsilon|bounds|(?:lower|higher) rank|scale|centre|centering|logarithm|features,|estimator ="
    )
    for s in filter(lambda s: not s.is_stream and occurs(doubt, s), ALL):
        library, stream = (advise([doubt], replace(s, is_stream=each)) for each in (False, True))
        plain = [line.removeprefix(NEW).replace("rank", "n_components") for line in stream.remedies]
        assert plain == list(library.remedies)
        assert library.reasons == stream.reasons
        for line in stream.remedies:
            assert line.startswith(NEW) == bool(contract.search(line))
        assert not any(NEW in line for line in library.remedies)
        changes = any(NEW in line for line in stream.remedies) and s.private
        assert stream.note == ("a new stream charges its records again" if changes else None)


def test_a_mean_that_is_not_sought_is_not_found_with_more_records() -> None:
    cases = [s for s in ALL if s.centering == "none" and occurs(W.MEAN_UNKNOWN, s)]
    for s in cases:
        text = "\n".join(advise([W.MEAN_UNKNOWN], s).remedies)
        assert not re.search("records,|more records|epsilon|bounds|rank|n_components|half_life", text)
        assert 'centering = "auto"' in text
        assert "zeros, if the records are centred" in text
    assert cases


def test_pairs_are_named_where_they_can_be_used() -> None:
    swamped = [(s, "\n".join(advise([W.MEAN_SWAMPS], s).remedies)) for s in ALL if occurs(W.MEAN_SWAMPS, s)]
    for s, text in swamped:
        assert ('centering = "pairs"' in text) == (s.unit != "row")
        assert "a public centre" in text
    assert {s.unit for s, _ in swamped} == {"message", "row"}


@pytest.mark.parametrize(("dim", "estimator", "words"), [
    (20, "adaptive", 'route = "covariance"'),
    (20, "block", 'estimator = "analyze-gauss"'),
    (600, "adaptive", "at most 512 features"),
    (600, "block", "at most 512 features"),
])  # fmt: skip
def test_few_features_are_not_asked_for_where_they_are_few(dim: int, estimator: str, words: str) -> None:
    text = "\n".join(advise([W.UNSETTLED], Situation(estimator, "auto", False, False, dim, 2)).remedies)
    assert words in text
    assert ("features" in text) == (dim > 512)


def test_all_pairs_of_doubts_have_remedies_that_do_not_contradict_each_other() -> None:
    checked = 0
    for s in (s for s in ALL if s.is_composed):
        for first, second in itertools.combinations([doubt for doubt in W if occurs(doubt, s)], 2):
            both = advise([first, second], s)
            text = "\n".join(both.remedies)
            assert not ("wider bounds" in text and "narrower bounds" in text), (first, second, s)
            assert len(set(both.remedies)) == len(both.remedies)
            assert not set(both.given) & set(both.remedies)
            alone = {line for one in (first, second) for line in advise([one], s).remedies}
            assert set(both.remedies) <= alone
            checked += 1
    assert checked > 1000


def test_remedies_that_are_given_are_named_as_given() -> None:
    bounded = Situation("adaptive", "auto", True, False, 20, 1)
    advice = advise([W.NOT_RESOLVED], bounded)
    narrower = "narrower bounds, if these are far wider than the records"
    by_bounds = 'scale = "bounds", 2/(upper - lower), if features have different units'
    higher = "a higher n_components, if further variances are about as large"
    assert advice.remedies == ("more records", "a larger epsilon", narrower, by_bounds, higher)
    assert advice.given == ("public bounds", "one component")
    assert advice.lines == [
        "not-resolved: noise alone could have produced the components (the angle bound is 90 degrees)",
        "what helps (a new fit charges its records again):",
        "- more records",
        "- a larger epsilon",
        f"- {narrower}",
        f"- {by_bounds}",
        f"- {higher}",
        "already given: public bounds, one component",
    ]
    assert str(advice) == "\n".join(advice.lines)


def test_a_lower_rank_is_the_number_of_resolved_components() -> None:
    s = Situation("adaptive", "auto", False, False, 20, 5, is_stream=True)
    advice = advise([W.NOT_RESOLVED, "unheard-of"], s, resolved=2)
    assert "a new stream with a lower rank, such as 2" in advice.remedies
    assert advice.reasons[0].endswith("(the angle bound is 90 degrees), but not the first 2 of 5")
    assert advice.reasons[1] == "unheard-of"
    none = advise([W.NOT_RESOLVED], s, resolved=0)
    assert "a new stream with a lower rank" in none.remedies
    assert "first" not in none.reasons[0]


def test_a_dominant_feature_is_named_without_control_characters() -> None:
    s = Situation("adaptive", "auto", True, False, 20, 5)
    named = advise([W.DOMINATED, W.CLIPPED], s, feature="income")
    assert named.reasons[0] == "dominated: feature income has most of the squared norm of the largest records"
    assert 'scale = "bounds", 2/(upper - lower), if features have different units' in named.remedies
    without = advise([W.DOMINATED, W.CLIPPED], replace(s, has_bounds=False), feature="income")
    assert "a smaller scale for feature income" in without.remedies
    scaled = advise([W.DOMINATED, W.CLIPPED], replace(s, has_scale=True), feature="income")
    assert "a smaller scale than the one given for feature income" in scaled.remedies
    # Equal bounds would scale all features alike.
    equal = replace(s, bounds=np.array([[0.0] * 20, [1.0] * 20]))
    alike = advise([W.DOMINATED, W.CLIPPED], equal, feature="income")
    assert "a smaller scale for feature income" in alike.remedies
    assert "narrower bounds for feature income" in named.remedies
    assert not any("features of few large values" in line for line in named.remedies)
    assert "one feature has most" in str(advise([W.DOMINATED], s))
    assert "\x1b" not in str(advise([W.DOMINATED], s, feature="a\x1b]0;b\x07"))


def test_an_estimator_of_a_later_version_has_general_remedies() -> None:
    s = Situation("unheard-of", "auto", False, False, 20, 5, is_stream=True, options=None)
    expected = ("more records", f"{NEW}a larger epsilon", f"{NEW}a lower rank")
    assert advise([W.NOT_RESOLVED], s).remedies == expected
    for doubt in W:
        assert advise([doubt], s).reasons


def doubtful(**changes: Any) -> Release:
    values: dict[str, Any] = {"version": 6, "stream": "s", "batch": 1, "records": 10, "dim": 2, "rank": 1}
    values |= {"estimator": "adaptive", "components": [[1.0, 0.0]], "explained_variance": [1.0], "mean": None}
    values |= {"centering": "auto", "epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one"}
    values |= {"privacy_unit": "message", "created": "2026-01-01T00:00:00.000+00:00"}
    values |= {"doubts": ("variance-lost",)}
    return Release(**(values | changes))


def test_a_release_tells_the_settings_that_decide() -> None:
    assert advise_on_release(doubtful(doubts=())) is None
    plain = advise_on_release(doubtful())
    bounded = advise_on_release(doubtful(bounds=(-1.0, 1.0)))
    assert "a new stream with public bounds of the features" in plain.remedies
    assert bounded.given == ("public bounds", "one component")
    matrices = advise_on_release(doubtful(centering="none"), kind=RecordKind.MATRIX)
    assert matrices.remedies == ("more records", "a new stream with a larger epsilon")
    forgetful = advise_on_release(doubtful(), options={"half_life": "auto"})
    assert "more records" not in forgetful.remedies
    assert forgetful.remedies[0].startswith("a longer half_life")
    reports = advise_on_release(doubtful(estimator="local-gaussian", centering="none", local=True))
    assert reports.remedies == ("more reports", "a new stream with a larger epsilon of its reports")


def test_a_foreign_release_cannot_flood_a_reader() -> None:
    advice = advise_on_release(doubtful(doubts=tuple(f"word-{'a' * i}" for i in range(1, 60))))
    assert len(advice.reasons) == 16


def test_a_larger_epsilon_is_advised_up_to_ten_alone() -> None:
    for epsilon, is_advised in ((None, True), (1.0, True), (10.0, False), (30.0, False)):
        s = Situation("adaptive", "auto", False, False, 20, 5, epsilon=epsilon)
        assert ("a larger epsilon" in advise([W.NOT_RESOLVED], s).remedies) == is_advised


@pytest.mark.parametrize(
    ("feature", "lower", "is_advised"),
    [
        (None, None, True),
        (None, 0.0, True),
        (None, -1.0, False),
        ({"bounds": (0, 9)}, 0.0, True),
        ({"bounds": (0, 9), "transform": "log1p"}, 0.0, False),
        ({"bounds": (-1, 9)}, -1.0, False),
        ({"categories": ["a", "b"]}, 0.0, False),
        ({}, None, True),
    ],
)
def test_a_logarithm_is_advised_where_it_can_be_taken(
    feature: dict[str, Any] | None, lower: float | None, is_advised: bool
) -> None:
    features = () if feature is None else (Feature(name="first"), Feature(name="x", **feature))
    bounds = None if lower is None else np.array([[-9.0, lower, 0.0], [9.0, 9.0, 9.0]])
    s = Situation("adaptive", "auto", lower is not None, False, 3, 1, bounds=bounds, features=features)
    text = "\n".join(advise([W.DOMINATED], s, feature="x", column=1).remedies)
    assert ("the logarithm of feature x" in text) == is_advised
    assert ("and not given" in text) == (is_advised and feature is None)


def test_features_without_bounds_are_named_and_pairs_need_single_rows() -> None:
    some = (Feature(name="a", bounds=(0, 1)), Feature(name="b"), Feature(name="c"))
    s = Situation("adaptive", "auto", False, False, 3, 1, features=some)
    assert "public bounds of the features without any (b, c)" in advise([W.NOT_RESOLVED], s).remedies
    none = replace(s, features=some[1:])
    assert "public bounds of the features" in advise([W.NOT_RESOLVED], none).remedies
    for single in (True, False):
        text = str(advise([W.MEAN_UNKNOWN], replace(s, has_single_rows=single)))
        assert ('centering = "pairs"' in text) == single


def test_a_model_advises_by_its_features_and_the_rows_of_its_records() -> None:
    rng = np.random.default_rng(5)
    n = 20_000
    table = {"inc": rng.lognormal(9, 1.5, n), "a": rng.normal(40, 10, n), "b": rng.normal(size=n)}
    records = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    features = [
        {"name": "inc", "bounds": [0, 1e7], "transform": "log1p", "scale": 1.0},
        {"name": "a", "bounds": [0, 120], "scale": 0.001},
        {"name": "b", "bounds": [-5, 5], "scale": 0.001},
    ]
    with (
        replace_noise_sampler(SeededSampler(1)),
        pytest.warns(DoubtfulResultWarning, match="dominated: feature inc") as seen,
    ):
        PrivatePCA(2, features=features, random_state=1).fit(records)
    assert "- the logarithm" not in str(seen[0].message)
    assert "already given: a transform (inc)" in str(seen[0].message)
    with replace_noise_sampler(SeededSampler(1)), pytest.warns(DoubtfulResultWarning, match="mean") as seen:
        PrivatePCA(2, random_state=1).fit(rng.standard_normal((400, 5, 4)) + 3)
    assert "pairs" not in str(seen[0].message)


@pytest.mark.parametrize(("bounds", "is_advised"), [(None, True), ((-1.0, 1.0), False), ((0.0, 1.0), True)])
def test_one_pair_of_bounds_is_every_feature_s(bounds: Any, is_advised: bool) -> None:
    advice = advise_on_release(doubtful(version=7, doubts=("dominated",), dominant_feature=1, bounds=bounds))
    assert any("the logarithm" in line for line in advice.remedies) == is_advised


@pytest.mark.parametrize("doubts", [[W.DOMINATED], [W.CLIPPED], [W.CLIPPED, W.DOMINATED]])
def test_narrower_bounds_are_advised_with_the_same_scale(doubts: list[W]) -> None:
    """Under a scale by bounds, narrower bounds alone enlarge the column."""
    bounded = Situation("adaptive", "auto", True, False, 20, 5)
    for has_scale in (False, True):
        s = replace(bounded, has_scale=has_scale)
        (line,) = (line for line in advise(doubts, s, feature="price").remedies if "narrower" in line)
        assert line.endswith(", with the same scale") == has_scale


@pytest.mark.parametrize("doubt", [W.NOT_RESOLVED, W.VARIANCE_LOST, W.MEAN_SWAMPS, W.MEAN_UNKNOWN, W.CLIPPED])
def test_chunks_are_named_where_several_add_their_noise(doubt: W) -> None:
    for s in (s for s in ALL if occurs(doubt, s) and not s.is_stream and s.centering != "none"):
        assert "chunks" not in str(advise([doubt], s))
        found = advise([doubt], replace(s, has_chunks=True)).remedies
        assert ("fewer, larger chunks" in found) == s.is_composed


@pytest.mark.parametrize(
    ("options", "is_stream", "named"),
    [
        ({}, True, ()),
        ({"max_batch": 4096}, True, ("a larger max_batch",)),
        ({"first_batch": 64, "max_batch": 64}, True, ("a larger first_batch", "a larger max_batch")),
        ({"max_batch": 4096}, False, ()),  # fit does not use it
        ({"n_records": 9000, "n_batches": 30}, True, ("a lower n_batches",)),
        ({"n_records": 9000, "n_batches": 1}, True, ()),
        (None, True, ()),
    ],
)
def test_options_that_make_batches_small_are_named(
    options: dict[str, Any] | None, is_stream: bool, named: tuple[str, ...]
) -> None:
    s = Situation("adaptive", "auto", False, False, 20, 2, is_stream=is_stream, options=options)
    remedies = advise([W.NOT_RESOLVED], s).remedies
    assert remedies[: len(named)] == named
    assert remedies[len(named)] == "more records"


def test_a_model_of_many_small_chunks_names_them() -> None:
    X = np.random.default_rng(5).normal(5.0, [3.0, 2.0, 1.0, 0.5, 0.5, 0.5], (2000, 6))
    words = "\n- fewer, larger chunks\n"
    pca = PrivatePCA(2, random_state=1)
    calls = (pca.fit, False), (pca.partial_fit, True), (clone(pca).partial_fit, False)
    in_batches = PrivatePCA(2, options={"n_batches": 4}, random_state=1)
    for place, (learn, has_chunks) in enumerate(
        (*calls, (in_batches.fit, False), (in_batches.partial_fit, True))
    ):
        with replace_noise_sampler(SeededSampler(1)), pytest.warns(DoubtfulResultWarning) as seen:
            learn(X[200 * place : 200 * (place + 1)])
        assert (words in str(seen[0].message)) == has_chunks


def test_components_of_equal_variance_name_a_higher_rank() -> None:
    """A category of three words in equal shares has two directions of one variance."""
    X = np.column_stack([np.eye(3)[np.arange(30_000) % 3], np.random.default_rng(5).normal(0, 0.1, 30_000)])
    words = "\n- a higher n_components, if further variances are about as large"
    with replace_noise_sampler(SeededSampler(1)), pytest.warns(DoubtfulResultWarning) as seen:
        pca = PrivatePCA(1, random_state=1).fit(X)
    assert pca.doubts_ == ("not-resolved",)
    assert words in str(seen[0].message)
    with replace_noise_sampler(SeededSampler(1)):
        assert PrivatePCA(2, random_state=1).fit(X).doubts_ == ()
    for rank, dim, is_stream in itertools.product((1, 2), (1, 20), (False, True)):
        s = Situation("adaptive", "auto", False, False, dim, rank, is_stream=is_stream)
        named = "a higher rank" if is_stream else "a higher n_components"
        # Next to a lower one it would be a contradiction.
        assert (named in str(advise([W.NOT_RESOLVED], s))) == (rank == 1 < dim)


def test_a_public_clip_radius_is_named_as_a_cause() -> None:
    s = Situation("adaptive", "auto", True, False, 20, 2, options={"clip_radius": 1.0})
    words = "a clip_radius near the norms of the records, or none"
    assert words in advise([W.NOT_RESOLVED], s).remedies
    assert words not in advise([W.NOT_RESOLVED], replace(s, options={})).remedies


FIXED = [
    [
        {"name": "a", "categories": ["x", "y"]},
        {"name": "t", "parts": ["hour"]},
        {"name": "b", "bounds": (0, 1)},
    ],
    [{"name": "t", "parts": ["hour"]}],
]


@pytest.mark.parametrize("settings", FIXED)
@pytest.mark.parametrize("doubts", [[W.NOT_RESOLVED], [W.CLIPPED], [W.DOMINATED], [W.MEAN_SWAMPS]])
def test_words_times_and_booleans_have_no_bounds_to_narrow(
    settings: list[dict[str, Any]], doubts: list[W]
) -> None:
    features = tuple(Feature(**each) for each in settings)
    dim = sum(len(each.columns) for each in features)
    s = Situation("adaptive", "auto", True, True, dim, 1, features=features)
    for column in range(dim):
        text = str(advise(doubts, s, feature="named", column=column))
        assert not re.search("narrower|public bounds|logarithm|few large values", text)
    number = Feature(name="n", bounds=(0, 9))
    mixed = replace(s, dim=dim + 1, features=(*features, number))
    assert "narrower bounds" in str(advise(doubts, mixed, feature="n", column=dim))


@pytest.mark.parametrize(("lower", "is_advised"), [(0, True), (-1, False)])
def test_words_have_no_logarithms(lower: float, is_advised: bool) -> None:
    features = Feature(name="a", categories=("x", "y")), Feature(name="n", bounds=(lower, 9))
    s = Situation("adaptive", "auto", True, True, 3, 1, features=features, bounds=np.zeros((2, 3)))
    assert ("the logarithm" in str(advise([W.CLIPPED], s))) == is_advised


def test_settings_that_help_already_are_all_named_as_given() -> None:
    s = Situation("adaptive", "pairs", False, True, 20, 2)
    assert advise([W.VARIANCE_LOST], s).given == ("a scale", 'centering = "pairs"')
    assert advise([W.VARIANCE_LOST], replace(s, has_bounds=True)).given[0] == "public bounds and a scale"
    assert advise([W.VARIANCE_LOST], replace(s, has_scale=False)).given == ('centering = "pairs"',)
    # Others take "pairs" by themselves.
    assert advise([W.VARIANCE_LOST], replace(s, estimator="private-oja")).given == ()
    none = replace(s, has_scale=False, centering="none")
    assert advise([W.VARIANCE_LOST], none).given == ('centering = "none"',)
    assert advise([W.VARIANCE_LOST, W.MEAN_UNKNOWN], none).given == ()
    assert advise([W.VARIANCE_LOST], replace(none, centering="public")).given == ("a public centre",)
    # A share of the variance chose one component, not the user.
    alone = replace(s, rank=1, has_scale=False, has_share=True)
    assert advise([W.NOT_RESOLVED], alone).given == ()
    assert not any("lower n_components" in line for line in advise([W.NOT_RESOLVED], alone).remedies)


def test_transforms_are_given_for_any_doubt_about_noise() -> None:
    features = tuple(Feature(name=n, bounds=(0, 9), transform="log1p") for n in "abcd")
    s = Situation("adaptive", "auto", True, True, 4, 2, features=features)
    for doubt in (W.NOT_RESOLVED, W.CLIPPED, W.VARIANCE_LOST):
        assert "a transform (a, b, c, ...)" in advise([doubt], s).given


def test_narrower_bounds_are_named_once() -> None:
    s = Situation("adaptive", "auto", True, True, 20, 2)
    lines = advise([W.NOT_RESOLVED, W.CLIPPED], s).remedies
    found = [line for line in lines if "narrower" in line]
    assert found == ["narrower bounds for features of few large values, with the same scale"]


def test_a_scale_by_named_bounds_is_given_and_one_of_features_can_be_left_out() -> None:
    rng = np.random.default_rng(5)
    table = {"income": rng.lognormal(8, 1.5, 2000), "a": rng.normal(50, 20, 2000)}
    bounds = {"income": (0, 1e6), "a": (0, 120)}
    with replace_noise_sampler(SeededSampler(1)), pytest.warns(DoubtfulResultWarning) as seen:
        PrivatePCA(2, epsilon=0.05, bounds=bounds, scale="bounds", random_state=1).fit(table)
    assert "already given: public bounds and a scale" in str(seen[0].message)
    named = tuple(Feature(name=name, bounds=each, scale=1.0) for name, each in bounds.items())
    s = Situation("adaptive", "auto", True, True, 2, 1, features=named)
    scale, *_ = advise([W.DOMINATED], s, feature="income", column=0).remedies
    assert scale == "the default scale of features, by bounds (leave out scale)"
    bare = replace(s, has_bounds=False, features=(named[0], Feature(name="b")))
    scale, *_ = advise([W.DOMINATED], bare, feature="income", column=0).remedies
    assert scale == "a smaller scale than the one given for feature income"


def test_bounds_that_change_values_are_widened_first() -> None:
    X = np.random.default_rng(5).normal(2.0, 0.5, (5000, 4))
    with replace_noise_sampler(SeededSampler(1)), pytest.warns(DoubtfulResultWarning) as seen:
        PrivatePCA(2, bounds=(100, 200), random_state=1).fit(X)
    remedies = [line for line in str(seen[0].message).splitlines() if line.startswith("- ")]
    assert remedies[0] == "- wider bounds, in the units of the records"
