"""scikit-learn's checks: all pass except comparisons of two fits, which noise alone breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sklearn.utils import Tags, estimator_checks

from streaming_pca import PrivatePCA
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import CASES, QUIET, RepeatingSampler
from tests.privacy.noise import SeededSampler

TWO_FITS = "it compares two fits on the same records, and no seed may make privacy noise repeat"
OF_TRANSFORMERS = ("check_transformer_data_not_an_array", "check_transformer_general")
IMPOSSIBLE = dict.fromkeys(("check_fit_idempotent", "check_pipeline_consistency", *OF_TRANSFORMERS), TWO_FITS)


class JudgedPCA(PrivatePCA):
    """PrivatePCA without the tag that makes scikit-learn skip most of these checks."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.non_deterministic
        tags.non_deterministic = False
        return tags


JUDGED = [JudgedPCA(**parameters) for parameters in CASES.values()]
FIRST = ("adaptive", "adaptive-bounded", "analyze-gauss-pairs", "block", "private-oja")
"""Covers every estimator and every centering once; all combinations run with repeated noise, below."""


@pytest.fixture(autouse=True)
def _with_array_api(monkeypatch: pytest.MonkeyPatch) -> None:
    # scikit-learn skips one check without this variable.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")


@pytest.fixture(autouse=True)
def _with_noise_of_one_seed() -> Iterator[None]:
    # Two fits still differ, but every run can release the same results from few noisy records.
    with replace_noise_sampler(SeededSampler(0)):
        yield


# Strict (pyproject.toml): an impossible check that passes is a failure.
@estimator_checks.parametrize_with_checks(
    [JudgedPCA(**CASES[name]) for name in FIRST], expected_failed_checks=lambda _: IMPOSSIBLE
)
def test_a_check_passes(estimator: PrivatePCA, check: Callable[[PrivatePCA], None]) -> None:
    check(estimator)


@pytest.mark.soak
@estimator_checks.parametrize_with_checks(
    [JudgedPCA(**CASES[name]) for name in CASES if name not in FIRST],
    expected_failed_checks=lambda _: IMPOSSIBLE,
)
def test_a_check_passes_whatever_is_set(estimator: PrivatePCA, check: Callable[[PrivatePCA], None]) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "estimator", JUDGED + [JudgedPCA(**parameters) for parameters in QUIET.values()], ids=[*CASES, *QUIET]
)
def test_with_noise_that_repeats_every_check_passes(estimator: PrivatePCA) -> None:
    with replace_noise_sampler(RepeatingSampler()):
        results = estimator_checks.check_estimator(estimator, on_skip=None)
    assert {result["status"] for result in results} == {"passed"}
    assert IMPOSSIBLE.keys() <= {result["check_name"] for result in results}


def impossible_checks() -> list[Any]:
    marks = {name: () if name in FIRST else pytest.mark.soak for name in CASES}
    return [
        pytest.param(estimator, check, id=f"{check.func.__name__}-{name}", marks=marks[name])
        for judged, name in zip(JUDGED, CASES, strict=True)
        for estimator, check in estimator_checks.estimator_checks_generator(judged)
        if check.func.__name__ in IMPOSSIBLE
    ]


@pytest.mark.parametrize(("estimator", "check"), impossible_checks())
def test_an_impossible_check_fails_because_two_fits_differ(estimator: PrivatePCA, check: Any) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(estimator)


def test_as_scikit_learn_sees_it_one_check_fails_and_the_others_that_compare_fits_are_skipped() -> None:
    results = estimator_checks.check_estimator(PrivatePCA(), on_fail=None, on_skip=None)
    by_status: dict[str, set[str]] = {"passed": set(), "skipped": set(), "failed": set()}
    for result in results:
        by_status[result["status"]].add(result["check_name"])
    assert by_status["failed"] == {"check_fit_idempotent"}
    assert by_status["skipped"] == IMPOSSIBLE.keys() - {"check_fit_idempotent"}
