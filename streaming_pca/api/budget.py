"""Budget of several fits: charges add up by the ledger's rule, and none may pass the total."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Self
from uuid import uuid4

import numpy as np

from streaming_pca.privacy.ledger.cap import remainder, within_cap
from streaming_pca.privacy.ledger.entries import Cap
from streaming_pca.privacy.parameters import Charge, parse_rational

_RULE = "basic"
"""The ledger's rule for adding charges unless its topic names another: epsilons and deltas add up."""

_lock = threading.RLock()
_active: list[BudgetAccountant] = []
_known: weakref.WeakValueDictionary[str, BudgetAccountant] = weakref.WeakValueDictionary()


class BudgetError(ValueError):
    """Refusal of a fit that a budget does not cover; nothing was drawn or charged for it."""


class BudgetAccountant:
    """Privacy budget of all fits on the same records together.

    Within ``with BudgetAccountant(...)`` every fit is charged, before it reads a record. A fit that
    the rest does not cover raises :class:`BudgetError`, and the model stays as it was.

    Parameters
    ----------
    epsilon, delta : number, Fraction or str
        The total. A float counts as the decimal that prints it, so ten fits of 0.1 are exactly 1.0.
        ``math.inf`` for both admits estimators that are not private.

    Attributes
    ----------
    total, spent, remaining : Charge
        Exact fractions. ``PrivatePCA(epsilon=budget.remaining.epsilon / 2)`` is valid, and rounded down.

    Notes
    -----
    **What adds up.** Fits, and models, are assumed to read the same records: their epsilons and deltas
    add up, as charges of one record do in the ledger (basic composition, valid for a choice of
    each fit after seeing the earlier results). Calls of ``partial_fit`` of one model are
    on disjoint records by contract: the model counts once, with its largest charge. A copy, a
    clone or a loaded model counts as another model. A fit that failed after its charge
    stays charged, and a later call of its model, which may be a retry, is charged in addition.
    ``transform``, ``score`` and the like are not charged: they release nothing of the fitted records.

    **Where it holds.** The block covers all fits of this process, in any thread, as long
    as it is open. A model with ``PrivatePCA(accountant=budget)`` is charged to that budget
    everywhere, and to each open block; blocks may be nested, and a fit is charged to all of
    them or to none. The budget itself stays: it can be opened again, and continues.

    **Processes.** A budget belongs to the process that made it. In another one, such as a worker of
    ``GridSearchCV(n_jobs=2)`` or a forked child, fits of models from within the block, and of
    models with this ``accountant``, are refused. A model that a function makes there
    itself cannot be seen: use ``n_jobs=1`` or joblib's threading backend.

    Examples
    --------
    >>> import numpy as np
    >>> from streaming_pca import BudgetAccountant, PrivatePCA
    >>> X = np.random.default_rng(0).standard_normal((50_000, 4)) * [4, 2, 1, 1]
    >>> with BudgetAccountant(1.0, 1e-6) as budget:
    ...     first = PrivatePCA(epsilon=0.25, delta=5e-7, bounds=(-15, 15)).fit(X)
    >>> float(budget.spent.epsilon), float(budget.remaining.epsilon)
    (0.25, 0.75)
    """

    def __init__(self, epsilon: Any, delta: Any) -> None:
        self._cap = Cap(epsilon=_exact("epsilon", epsilon), delta=_exact("delta", delta))
        if not self._cap.epsilon > 0:
            raise ValueError("epsilon of a budget must be above 0")
        self._spent = Charge.nothing()
        self._charges: dict[object, Charge] = {}
        self._process = os.getpid()
        self._id = uuid4().hex
        _known[self._id] = self

    @property
    def total(self) -> Charge:
        """The whole budget."""
        return Charge(epsilon=self._cap.epsilon, delta=self._cap.delta)

    @property
    def spent(self) -> Charge:
        """Sum of the charges so far."""
        return self._spent

    @property
    def remaining(self) -> Charge:
        """Part of the total that is not spent."""
        spent = self._spent
        return Charge.model_construct(
            epsilon=remainder(self._cap.epsilon, spent.epsilon), delta=remainder(self._cap.delta, spent.delta)
        )

    def __enter__(self) -> Self:
        self._check_process()
        with _lock:
            _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            # The block that was opened last; others of the same budget may still be open.
            del _active[next(i for i in range(len(_active) - 1, -1, -1) if _active[i] is self)]

    def __repr__(self) -> str:
        cap = self._cap
        return f"{type(self).__name__}(epsilon={_short(cap.epsilon)}, delta={_short(cap.delta)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, such as scikit-learn's clone makes of parameters, would be a second budget.
        return _unpickled, (self._id, str(self._cap.epsilon), str(self._cap.delta))

    @property
    def is_of_this_process(self) -> bool:
        """True where the budget was made, not in a fork or another program."""
        return self._process == os.getpid()

    def _check_process(self) -> None:
        if not self.is_of_this_process:
            raise BudgetError(
                "the BudgetAccountant belongs to another process, which cannot see charges of this one: "
                "fit there, with n_jobs=1 or joblib's threading backend"
            )

    def _excess(self, asked: Charge, spent: Charge) -> str:
        """Describe the shortfall if the charge prints like the remaining budget."""
        left, parts = self.remaining, []
        for name in ("epsilon", "delta"):
            above = getattr(spent, name) - getattr(self._cap, name)
            if above > 0 and _short(getattr(asked, name)) == _short(getattr(left, name)):
                parts.append(f"{name} {float(above):.2g}")
        return f", too few by {' and '.join(parts)}" if parts else ""

    def _after(self, model: object, charge: Charge) -> tuple[Charge, Charge]:
        """Return the model's charge and the sum after this charge; refuse a sum above the total."""
        before = self._charges.get(model, Charge.nothing())
        own = before | charge
        if model not in self._charges:
            spent = self._spent + own
        elif own == before:
            return own, self._spent
        else:
            spent = sum((c for m, c in self._charges.items() if m is not model), own)
        if not within_cap(spent, self._cap, _RULE):
            raise BudgetError(
                f"a fit of {_pair(charge)} is above the budget: {_pair(self.remaining)} are left of "
                f"{_pair(self._cap)}{self._excess(charge, spent)}"
            )
        return own, spent


def float_at_most(value: Any) -> Any:
    """Round a fraction down to a float, so that a budget covers it; return others."""
    if not isinstance(value, Fraction):
        return value
    number = float(value)
    # A float counts as the decimal that prints it.
    while Fraction(repr(number)) > value:
        number = math.nextafter(number, -math.inf)
    return number


def active_accountants() -> tuple[BudgetAccountant, ...]:
    """Return the budgets with open blocks, including blocks opened before a fork."""
    return tuple(_active)


def charged_accountants(own: Any) -> tuple[BudgetAccountant, ...]:
    """Return the budgets that a model with this parameter ``accountant`` is charged to."""
    if own is not None and not isinstance(own, BudgetAccountant):
        raise ValueError(f"accountant must be a BudgetAccountant or None, not {type(own).__name__}")
    return active_accountants() if own is None else (*active_accountants(), own)


def charge_all(accountants: Iterable[BudgetAccountant], model: object, charge: Charge) -> None:
    """Charge a model's batch to all of these budgets, each once, or to none.

    Charges under one identity of a model are on disjoint records. :class:`BudgetError` with the remaining
    budget, if one does not cover the charge.
    """
    accountants = tuple(accountants)
    for each in accountants:
        # Before the lock, which another thread may have held when this process was forked.
        each._check_process()
    with _lock:
        after = {id(each): (each, *each._after(model, charge)) for each in accountants}
        for each, own, spent in after.values():
            each._charges[model], each._spent = own, spent


def _unpickled(identity: str, epsilon: str, delta: str) -> BudgetAccountant:
    """Return the budget itself in its own process, elsewhere a stand-in that refuses every fit."""
    if (here := _known.get(identity)) is not None:
        return here
    foreign = BudgetAccountant(epsilon, delta)
    del _known[foreign._id]
    foreign._id, foreign._process = identity, -1
    return foreign


def _exact(name: str, value: Any) -> Any:
    try:
        # A number of numpy prints more than its decimal.
        return parse_rational(float(value) if isinstance(value, (float, np.floating)) else value)
    except ValueError as error:
        raise ValueError(f"{name} of a budget {error}") from None


def _pair(numbers: Charge | Cap) -> str:
    return f"epsilon {_short(numbers.epsilon)}, delta {_short(numbers.delta)}"


def _short(number: Any) -> str:
    return f"{float(number):.15g}"
