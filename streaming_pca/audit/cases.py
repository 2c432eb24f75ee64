"""Cases of every estimator and mechanism, found by name.

Streams of few, small records go through ``plan`` and ``update`` as they do in the service: a
batch is the plan's count of records in their order. The score is a function of the state, and
every release is a post-processing of the state. Neighbours differ in one record, where the clip lets
them be as far apart as it ever does.

If records meet several mechanisms, no pair of neighbours shows all of the cost. Each case then has
records that differ in one mechanism alone, and claims the cost of that mechanism: a noise of the wrong
scale or a clip that is not applied shows there, while a case of the whole would let the others hide it.

The cases: :mod:`~streaming_pca.estimators.worst_cases`, :mod:`~streaming_pca.estimators.common.worst_sums`.
"""

from __future__ import annotations

from streaming_pca.audit.bounds import Case, repeated
from streaming_pca.audit.mechanisms import LOCAL_CASES, MECHANISM_CASES, mechanism_cases
from streaming_pca.errors import UserError
from streaming_pca.estimators.common.worst_sums import AnyEstimator, Cut, Target, by_count
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.privacy.errors import ParameterError


def estimator_cases(
    estimator_type: type[AnyEstimator], epsilon: float, delta: float, cut: Cut = by_count
) -> list[Case]:
    """Build the cases of one estimator at a claim of (epsilon, delta).

    ``cut(stream, count)`` is the end of the next batch. UserError if the estimator has no cases.
    """
    name = estimator_type.info.id
    if not estimator_type.worst_cases:
        raise UserError(f"{name} has no worst cases: set worst_cases of {estimator_type.__name__}")
    target = Target(estimator_type, epsilon, delta, cut)
    trials = {case: trial(target) for case, trial in estimator_type.worst_cases.items()}
    return [Case(f"{name}/{case}", claim, repeated(run)) for case, (claim, run) in trials.items()]


def find_cases(estimator: str | None, mechanism: str | None, epsilon: float, delta: float) -> list[Case]:
    """Build the cases of an estimator and of a mechanism; all cases if both are None.

    UserError if a name is not known, or no noise is large enough for (epsilon, delta).
    """
    everything = estimator is None and mechanism is None
    if estimator is not None and estimator not in ESTIMATORS:
        raise UserError(f"no estimator {estimator!r}; known: {', '.join(sorted(ESTIMATORS))}")
    known = sorted(MECHANISM_CASES | LOCAL_CASES)
    if mechanism is not None and mechanism not in known:
        raise UserError(f"no mechanism {mechanism!r}; known: {', '.join(known)}")
    mechanisms = known if everything else [] if mechanism is None else [mechanism]
    private = sorted(i for i, kind in ESTIMATORS.items() if kind.info.private and not kind.info.local)
    if estimator is not None and ESTIMATORS[estimator].info.local:
        reports = " or ".join(f"--mechanism {name}" for name in sorted(LOCAL_CASES))
        raise UserError(f"{estimator} has no mechanism: its records are private already, see {reports}")
    if estimator is not None and estimator not in private:
        raise UserError(f"{estimator} is not private: there is nothing to audit")
    estimators = private if everything else [] if estimator is None else [estimator]
    cases: list[Case] = []
    try:
        for name in mechanisms:
            cases += mechanism_cases(name, epsilon, delta)
        for name in estimators:
            cases += estimator_cases(ESTIMATORS[name], epsilon, delta)
    except ParameterError as error:
        raise UserError(f"no audit at this epsilon and delta: {error}") from error
    return cases
