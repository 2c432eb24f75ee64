"""Several fits share one budget: sums, refusals, and charges per model."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from streaming_pca import BudgetAccountant, BudgetError, PrivatePCA
from streaming_pca.api import private_pca
from streaming_pca.api.budget import float_at_most
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.adaptive import AdaptivePCA
from streaming_pca.privacy.parameters import Charge, parse_rational
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import RepeatingSampler, spiked
from tests.data.refusals import refuses

X = spiked(40)


def pca(epsilon: Any = 0.1, delta: Any = 1e-7, **parameters: Any) -> PrivatePCA:
    return PrivatePCA(epsilon=epsilon, delta=delta, bounds=(-2, 2), **parameters)


def left(budget: BudgetAccountant) -> tuple[Any, Any]:
    return budget.remaining.epsilon, budget.remaining.delta


class Counted:
    """Number of updates of the estimator; only updates draw noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        update = AdaptivePCA.update

        def counted(estimator: AdaptivePCA, state: Any, batch: ArrayBatch) -> Any:
            self.count += 1
            return update(estimator, state, batch)

        monkeypatch.setattr(AdaptivePCA, "update", counted)


def test_ten_fits_of_a_tenth_are_all_and_the_next_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = Counted(monkeypatch)
    with BudgetAccountant(1.0, 1e-6) as budget:
        for _ in range(10):
            model = pca().fit(X)
        assert left(budget) == (0, 0)
        before = {name: np.copy(value) for name, value in vars(model).items() if name.endswith("_")}
        for refused, call in ((model, "fit"), (pca(), "fit"), (pca(), "partial_fit"), (clone(model), "fit")):
            with pytest.raises(BudgetError) as caught:
                getattr(refused, call)(spiked(50, d=9) if refused is model else X)
            assert str(caught.value) == (
                "a fit of epsilon 0.1, delta 1e-07 is above the budget: "
                "epsilon 0, delta 0 are left of epsilon 1, delta 1e-06"
            )
            assert refused is model or not hasattr(refused, "privacy_spent_")
    assert updates.count == 10
    # The earlier model is unchanged; outside the block nothing is counted.
    assert all(np.array_equal(before[name], getattr(model, name)) for name in before)
    pca().fit(X)
    assert budget.spent == budget.total.model_copy(update={"rho": budget.spent.rho})


def test_floats_count_as_their_decimals_and_deltas_count_too() -> None:
    with BudgetAccountant("3/10", 1e-6) as budget:
        for epsilon in (0.1, np.float64(0.1)):
            pca(epsilon, 4e-7).fit(X)
        # In floats, 0.1 + 0.1 + 0.1 exceeds 0.3.
        assert left(budget) == (Fraction(1, 10), Fraction(2, 10**7))
        refuses(r"epsilon 0\.1, delta 2e-07 are left", pca(0.1, 4e-7).fit, X, error=BudgetError)
        pca(0.1, 2e-7).fit(X)
    assert left(budget) == (0, 0)


def test_what_is_left_can_be_given_out() -> None:
    with BudgetAccountant(1, 3e-6) as budget:
        pca(0.3, 1e-6).fit(X)
        third = budget.remaining.epsilon / 3
        for _ in range(3):
            pca(third, budget.total.delta / 7).fit(X)
        assert 0 <= budget.remaining.epsilon < 1e-12
    for ratio in (Fraction(2, 3), Fraction(7, 30), Fraction(1, 10), 1 - Fraction(1, 10**17)):
        found = float_at_most(ratio)
        assert parse_rational(found) <= ratio < parse_rational(math.nextafter(math.nextafter(found, 2), 2))


def test_the_batches_of_a_model_count_once_and_each_model_counts() -> None:
    with BudgetAccountant(1.0, 1e-3) as budget:
        model = pca(0.25, 1e-4).fit(X)
        for seed in range(3):
            model.partial_fit(spiked(40, seed=seed))
        assert budget.spent.epsilon == model.privacy_spent_.epsilon == Fraction(1, 4)
        # A fit, a copy, a pickle and a clone are other models: they may read the same records again.
        for other in (model.fit(X), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            before = budget.spent.epsilon
            other.partial_fit(X)
            assert budget.spent.epsilon - before == (0 if other is model else Fraction(1, 4))
        with pytest.raises(BudgetError):
            clone(model).partial_fit(X)
        # Batches of the model that has paid stay free.
        model.partial_fit(X)


def test_several_batches_of_one_fit_count_once() -> None:
    with BudgetAccountant(0.1, 1e-7) as budget:
        pca(options={"n_batches": 4, "growth": 1}).fit(spiked(200))
    assert left(budget) == (0, 0)


def test_a_loaded_model_counts_from_its_next_batch_on(tmp_path: Path) -> None:
    pca(accountant=BudgetAccountant(1, 1)).fit(X).save(tmp_path / "model.npz")
    with BudgetAccountant(0.1, 1e-6) as budget:
        model = PrivatePCA.load(tmp_path / "model.npz")
        assert (model.accountant, budget.spent.epsilon) == (None, 0)
        model.partial_fit(X).partial_fit(X)
        with pytest.raises(BudgetError):
            PrivatePCA.load(tmp_path / "model.npz").partial_fit(X)
    # In another block the same model pays again, from that budget.
    with BudgetAccountant(0.5, 1e-6) as other:
        model.partial_fit(X)
    assert (other.spent.epsilon, budget.spent.epsilon) == (Fraction(1, 10), Fraction(1, 10))


def test_a_fit_that_fails_after_its_charge_stays_charged() -> None:
    class Broken(RepeatingSampler):
        def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
            raise OSError

    with BudgetAccountant(0.3, 1e-6) as budget:
        with replace_noise_sampler(Broken()), pytest.raises(OSError):  # noqa: PT011
            pca().fit(X)
        assert budget.spent.epsilon == Fraction(1, 10)
        for bad in (np.full((10, 8), np.nan), spiked(1)):
            with pytest.raises(ValueError):  # noqa: PT011
                pca().fit(bad)
    assert budget.spent.epsilon == Fraction(1, 10)
    # The exception closed the block.
    with pytest.raises(ZeroDivisionError), budget:
        raise ZeroDivisionError
    pca().fit(X)
    assert budget.spent.epsilon == Fraction(1, 10)


@pytest.mark.parametrize("where", ["update", "release"])
def test_a_retry_of_a_failed_batch_is_charged(where: str, tmp_path: Path, monkeypatch: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with BudgetAccountant(0.3, 1e-6) as budget:
        model = pca(0.1, 1e-7).partial_fit(X)
        target, name = (model._estimator, "update") if where == "update" else (model, "_refresh")
        with monkeypatch.context() as broken:
            broken.setattr(target, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                model.partial_fit(X)
        assert budget.spent.epsilon == model.privacy_spent_.epsilon == Fraction(1, 10)
        model.save(tmp_path / "model.npz")
        for _ in range(2):
            model.partial_fit(X)
            assert budget.spent.epsilon == model.privacy_spent_.epsilon == Fraction(2, 10)
        # A refused batch is never charged, neither now nor later.
        with BudgetAccountant(0.01, 1e-6), pytest.raises(BudgetError):
            model.partial_fit(X)
        model.partial_fit(X)
    assert budget.spent.epsilon == model.privacy_spent_.epsilon == Fraction(2, 10)
    assert PrivatePCA.load(tmp_path / "model.npz").partial_fit(X).privacy_spent_.epsilon == Fraction(2, 10)


def test_what_follows_a_fit_that_failed_between_its_batches_is_charged(monkeypatch: Any) -> None:
    counts = [10]

    def take(*_: int) -> int:
        if not counts:
            raise MemoryError
        return counts.pop()

    with BudgetAccountant(0.3, 1e-6) as budget:
        model = pca(0.1, 1e-7)
        with monkeypatch.context() as broken:
            broken.setattr(private_pca, "records_to_take", take)
            with pytest.raises(MemoryError):
                model.fit(X)
        assert budget.spent.epsilon == model.privacy_spent_.epsilon == Fraction(1, 10)
        model.partial_fit(X)
        assert budget.spent.epsilon == model.privacy_spent_.epsilon == Fraction(2, 10)


def test_nested_budgets_are_charged_both_or_neither() -> None:
    with BudgetAccountant(1.0, 1e-6) as outer:
        with BudgetAccountant(0.1, 1e-6) as inner, outer:
            # Entering the same budget twice charges once; it stays open after the inner block ends.
            pca(accountant=inner).fit(X)
            refuses(r"epsilon 0, delta 9e-07 are left of epsilon 0\.1", pca().fit, X, error=BudgetError)
        assert (outer.spent, inner.spent) == (inner.spent, outer.spent)
        pca().fit(X)
    assert (outer.spent.epsilon, inner.spent.epsilon) == (Fraction(2, 10), Fraction(1, 10))


def test_a_model_without_privacy_has_no_finite_budget() -> None:
    oja = PrivatePCA(estimator="oja", private=False, centering="none")
    with BudgetAccountant(100, 0.5), pytest.raises(BudgetError, match="a fit of epsilon inf, delta inf"):
        oja.fit(X)
    with BudgetAccountant(math.inf, math.inf) as budget:
        oja.fit(X)
        clone(oja).fit(X)
    assert (budget.spent, budget.remaining.epsilon) == (Charge.unbounded(), math.inf)


def test_all_threads_draw_on_the_open_budget_and_none_draws_twice() -> None:
    found: list[Any] = []

    def work() -> None:
        for _ in range(4):
            try:
                pca().fit(X)
                found.append(1)
            except BudgetError:
                found.append(0)

    with BudgetAccountant(1.0, 1e-6) as budget:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (sum(found), len(found)) == (10, 16)
    assert left(budget) == (0, 0)


def test_a_search_pays_for_each_fit_and_stops_at_the_total() -> None:
    grid = {"privatepca__n_components": [1, 2]}
    with BudgetAccountant(0.5, 1e-6) as budget:
        # Two folds, two candidates, and the refit.
        search = GridSearchCV(make_pipeline(pca()), grid, cv=2, error_score="raise").fit(X)
        assert left(budget) == (0, Fraction(5, 10**7))
        with pytest.raises(BudgetError):
            search.best_estimator_.fit(X)
    # Every clone shares the accountant parameter.
    budget = BudgetAccountant(0.4, 1e-6)
    with pytest.raises(BudgetError):
        GridSearchCV(make_pipeline(pca(accountant=budget)), grid, cv=2, error_score="raise").fit(X)
    assert left(budget)[0] == 0
    assert clone(pca(accountant=budget)).accountant is budget
    assert pickle.loads(pickle.dumps(pca(accountant=budget))).accountant is budget


ELSEWHERE = """
import pickle, sys
import numpy as np
from sklearn.base import clone
from streaming_pca import BudgetError
for model in pickle.load(open(sys.argv[1], "rb")):
    for each in (model, clone(model), pickle.loads(pickle.dumps(model))):
        for call in ("fit", "partial_fit"):
            try:
                getattr(each, call)(np.eye(8))
                sys.exit("fitted")
            except BudgetError as error:
                assert "belongs to another process" in str(error), error
    if hasattr(model, "components_"):
        model.transform(np.eye(8))
"""


def test_fits_in_another_process_are_refused_for_they_could_not_be_counted(tmp_path: Path) -> None:
    with BudgetAccountant(1.0, 1e-6) as budget:
        (tmp_path / "models").write_bytes(pickle.dumps([pca(), pca().fit(X), pca(accountant=budget)]))
        child = os.fork()
        if not child:
            try:
                pca().fit(X)
            except BudgetError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "models")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert budget.spent.epsilon == Fraction(1, 10)


@pytest.mark.parametrize(
    ("total", "words"),
    [
        ((0, 1e-6), "epsilon of a budget must be above 0"),
        ((-1, 1e-6), "epsilon of a budget must not be negative"),
        (("much", 1e-6), "epsilon of a budget must be a number"),
        ((1, None), "delta of a budget must be a number"),
        ((math.nan, 0), "epsilon of a budget must be a number"),
        ((Decimal("Infinity"), 0), "epsilon of a budget must be a number"),
    ],
)
def test_a_total_that_is_none_is_refused(total: tuple[Any, Any], words: str) -> None:
    refuses(words, BudgetAccountant, *total)


def test_something_else_is_no_accountant() -> None:
    refuses("accountant must be a BudgetAccountant or None, not float", pca(accountant=1.0).fit, X)
    assert repr(BudgetAccountant(0.5, 1e-6)) == "BudgetAccountant(epsilon=0.5, delta=1e-06)"
    assert BudgetAccountant(np.float32(0.5), 0).total.epsilon == Fraction(1, 2)


def test_a_refusal_shows_by_how_much_even_where_both_numbers_print_alike() -> None:
    """Epsilon and the remaining budget are the same number when converted to float."""
    total = BudgetAccountant(Fraction(1, 11) - Fraction(1, 10**20), "1e-6")
    with total, pytest.raises(BudgetError, match=r"are left of .*, too few by epsilon \d\.?\d?e-1\d$"):
        PrivatePCA(epsilon=1 / 11, delta=1e-7, bounds=(-9, 9)).fit(spiked(400))


@pytest.mark.parametrize("call", ["fit", "partial_fit", "second"])
def test_an_interrupt_at_any_line_leaves_no_answer_without_a_charge(call: str) -> None:
    lines = Path(private_pca.__file__).read_text().splitlines()
    drew, left, interrupts = False, 0, 0

    class Counting(RepeatingSampler):
        def rounded_gaussian(self, total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
            nonlocal drew
            drew = True
            return super().rounded_gaussian(total, sigma)

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("api/private_pca.py", "api/budget.py")):
            return None
        # Python handles signals after calls and at jumps back: not between the statement that restores the
        # charges and the return after it.
        if event == "line" and lines[frame.f_lineno - 1] != "        return self":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    while True:
        budget = BudgetAccountant(10, 1e-3)
        model = pca(1, 1e-7, accountant=budget, estimator="analyze-gauss", centering="none")
        if call == "second":
            model.partial_fit(X[::2])
        drew, left = False, interrupts
        with replace_noise_sampler(Counting()):
            sys.settrace(trace)
            try:
                (model.fit if call == "fit" else model.partial_fit)(X)
                break
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                sys.settrace(None)
            answers = 1 + drew
            model.partial_fit(X)
        assert budget.spent.epsilon >= answers
        assert model.privacy_spent_.epsilon >= answers
    assert interrupts > 50
    assert drew
