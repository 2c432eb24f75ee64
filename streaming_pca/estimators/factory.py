"""Construction of an estimator from the parameters of a call.

Each invalid parameter raises a ValueError whose one line names it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from pydantic import ValidationError

from streaming_pca.data.preprocessing import Preprocessing, present_centering, scale_of_bounds
from streaming_pca.estimators.base import Estimator, check_private, no_guarantee
from streaming_pca.estimators.registry import find
from streaming_pca.estimators.warnings import DoubtfulResultWarning
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.privacy.parameters import PrivacyParameters, guarantee_warnings
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.text import one_line, shown
from streaming_pca.validation_errors import error_lines, options_lines

MAX_FEATURES = 2**13
"""Largest dimension with exact products of quantised records; the limit of streams too."""

_CENTERINGS = ("auto", "pairs", "none")

Numbers = float | tuple[float, ...]
"""One number, or one for each feature."""


def configure(
    dim: int,
    *,
    n_components: Any,
    epsilon: Any,
    delta: Any,
    estimator: Any,
    centering: Any,
    bounds: Any,
    scale: Any,
    options: Any,
    private: Any = True,
    n_records: int | None = None,
    tensors: bool = True,
) -> Estimator[Any, Any]:
    """Build an estimator of vectors or factors; refuse one of a tensor unless ``tensors``.

    Parameters are those of :class:`~streaming_pca.api.PrivatePCA`; ``estimator`` may also be a class.
    ``n_records`` is the number of all records to come, if known. It becomes the estimator's option of this
    name, if that option exists and ``options`` do not set it. Records that do not fill a pair do not count.

    Raises ValueError with one line that names the parameter.
    """
    if not 1 <= dim <= MAX_FEATURES:
        raise ValueError(f"X has {dim} features, at most {MAX_FEATURES} are possible")
    k = _whole("n_components", n_components)
    if k > dim:
        raise ValueError(f"n_components = {k} is above the number of features, {dim}")
    kind = _kind(estimator)
    if not isinstance(private, (bool, np.bool_)):
        raise ValueError(f"private must be True or False, not {shown(private)}")
    # First, so that no other message leads to an estimator that is refused here.
    refused = kind.info.releases == "tensor" and not tensors
    fault = "finds components of a tensor, not of a subspace" if refused else ""
    if kind.info.local:
        fault = "learns from reports that producers have made private (streaming_pca.local)"
    if fault:
        raise ValueError(f"{kind.info.id} {fault}: take another estimator, or run it as a stream")
    check_private(kind.info, bool(private))
    try:
        privacy = no_guarantee()
        if private:
            privacy = PrivacyParameters(epsilon=_number("epsilon", epsilon), delta=_number("delta", delta))
        preprocessing = Preprocessing(
            dim=dim,
            centering=kind.resolve_centering(_centering(centering)),
            bounds=(limits := read_bounds(bounds, dim)),
            scale=read_scale(scale, limits),
        )
    except ValidationError as error:
        raise ValueError("; ".join(map(one_line, error_lines(error, Preprocessing)))) from None
    try:
        # Only exact rationals in a certain range can be charged.
        privacy.charge()
    except ValueError as error:
        raise ValueError(f"epsilon and delta {error}") from None
    given = _options(options)
    if n_records is not None and "n_records" in kind.options_type.model_fields:
        given.setdefault("n_records", n_records - n_records % preprocessing.granularity)
        if "n_batches" in kind.options_type.model_fields and "n_batches" not in given:
            # Only the last release is shown, and each batch adds noise.
            given["n_batches"] = 1
            if n_records > MAX_RECORDS:
                # Equal batches stay below the limit; a cut at even numbers adds at most 2 records.
                given["n_batches"] = math.ceil(n_records / (MAX_RECORDS - 2))
                given.setdefault("growth", 1.0)
    try:
        checked = kind.options_type(**given)
    except ValidationError:
        found = options_lines(kind.options_type, given)
        raise ValueError(f"options of {kind.info.id}: {'; '.join(found)}") from None
    return kind(dim, k, privacy, preprocessing, checked)


def _kind(estimator: Any) -> type[Estimator[Any, Any]]:
    if isinstance(estimator, type) and issubclass(estimator, Estimator):
        return estimator
    if not isinstance(estimator, str):
        raise ValueError(f"estimator must be the id of an estimator, not {estimator!r}")
    return find(estimator)


def usable_records(shape: tuple[int, ...], estimator: Estimator[Any, Any], is_first: bool = True) -> int:
    """Count the usable records of an array: whole pairs with ``centering = "pairs"``.

    ``is_first``: False for a later batch of a model, which need not have as many rows as components.

    Raises ValueError if records of several rows are to be paired, or there are fewer rows than components;
    warns with DoubtfulResultWarning if epsilon or delta protects too little.
    """
    granularity = estimator.preprocessing.granularity
    if is_first and (rows := math.prod(shape[:-1])) < estimator.k:
        raise ValueError(
            f"X has {rows} records, fewer than n_components = {estimator.k}: "
            "pass more records, or lower n_components"
        )
    if granularity > 1 and shape[1:-1] not in ((), (1,)):
        raise ValueError(
            f'centering = "pairs" needs records of one row each; X is {shape}: set "none" or a public centre'
        )
    privacy = estimator.privacy
    doubts = guarantee_warnings(privacy.epsilon, privacy.delta, shape[0]) if estimator.info.private else []
    for doubt in doubts:
        # Fitting methods call this function: the warning is about their caller.
        warnings.warn(f"the guarantee is doubtful: {doubt}", DoubtfulResultWarning, stacklevel=3)
    return shape[0] - shape[0] % granularity


def records_to_take(planned: int, left: int) -> int:
    """Return the size of the next batch of ``left`` records; the last absorbs a short remainder."""
    # A last batch of few records would be mostly noise, so the batch before it takes them.
    return left if 2 * left < 3 * planned and left <= MAX_RECORDS else planned


def changed_parameters(was: Estimator[Any, Any], now: Estimator[Any, Any]) -> list[str]:
    """List the parameters that differ between two estimators, compared by value."""
    before, after = _describe(was), _describe(now)
    return [name for name in before if before[name] != after[name]]


def _describe(estimator: Estimator[Any, Any]) -> dict[str, Any]:
    preprocessing = estimator.preprocessing
    return {
        "n_components": estimator.k,
        "epsilon": estimator.privacy.epsilon,
        "delta": estimator.privacy.delta,
        "estimator": estimator.info.id,
        "centering": preprocessing.centering,
        "bounds": preprocessing.bounds,
        "scale": preprocessing.scale,
        "options": estimator.options.model_dump(),
    }


def make_utility_generator(random_state: Any) -> np.random.Generator:
    """Make a generator of utility randomness.

    ``random_state`` is None, an int >= 0, or a numpy RandomState or Generator, which a seed is drawn from.
    Raises ValueError if it is anything else.
    """
    if random_state is None:
        return utility_generator(None)
    if _is_whole(random_state) and random_state >= 0:
        return utility_generator(int(random_state))
    for name in ("randint", "integers"):
        if callable(draw := getattr(random_state, name, None)):
            try:
                return utility_generator(int(draw(2**31 - 1)))
            except (TypeError, ValueError):
                break
    raise ValueError(
        "random_state must be None, a whole number of at least 0, or a generator of numpy, "
        f"not {shown(random_state)}"
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _whole(name: str, value: Any) -> int:
    if not _is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {shown(value)}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, not {shown(value)}")
    return float(value)


def _numbers(name: str, value: Any, words: str = "") -> Numbers:
    """Read one number, or one number for each feature; ``words`` name the other values of the parameter."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "iuf" or array.ndim > 1:
        raise ValueError(f"{name} must be {words}a number, or one number per feature, not {shown(value)}")
    return float(array) if array.ndim == 0 else tuple(float(x) for x in array)


def _centering(value: Any) -> Any:
    if isinstance(value, str):
        if present_centering(value) in _CENTERINGS:
            return value
    elif value is not None and not isinstance(value, bool):
        vector = _numbers("centering", value)
        if isinstance(vector, tuple):
            return vector
    names = ", ".join(f'"{name}"' for name in _CENTERINGS)
    raise ValueError(f"centering must be {names}, or one number per feature, not {shown(value)}")


def read_bounds(value: Any, dim: int) -> tuple[Numbers, Numbers] | None:
    """Read (lower, upper), each a number or one number for each feature.

    ValueError in one line, also for one pair for each feature. For two features [(a, b), (c, d)] could mean
    either. It is read only as a tuple of two lists or arrays, or if the other reading is impossible.
    """
    if value is None:
        return None
    try:
        pairs = [tuple(map(float, each)) for each in value]
    except (TypeError, ValueError):
        pairs = []
    is_by_feature = len(pairs) == dim and all(len(pair) == 2 and pair[0] < pair[1] for pair in pairs)
    try:
        lower, upper = value
    except (TypeError, ValueError):
        text = f"bounds must be a pair: the lower and the upper bound, not {shown(value)}"
        instead = f"; for one pair for each feature, write {_of_pairs(pairs)}" if is_by_feature else ""
        raise ValueError(f"{text}{instead}") from None
    is_marked = isinstance(value, tuple) and not any(isinstance(each, tuple) for each in value)
    if is_by_feature and pairs[0][1] != pairs[1][0]:
        by_feature = _of_pairs(pairs)
        if not all(low < high for low, high in zip(*pairs, strict=True)):
            raise ValueError(f"bounds has one pair for each feature: write {by_feature}, (lower, upper)")
        if not is_marked:
            raise ValueError(
                f"bounds = {shown(value)} has two meanings: if these are the bounds of one feature and of "
                f"the other, write {by_feature}; if these are the lower and the upper bounds, write "
                f"{_of_pairs(list(zip(*pairs, strict=True)))}"
            )
    return _numbers("bounds", lower), _numbers("bounds", upper)


def _of_pairs(pairs: list[tuple[float, ...]]) -> str:
    """Return bounds as code that has one meaning."""
    lower, upper = ([int(x) if x.is_integer() else x for x in side] for side in zip(*pairs, strict=True))
    return f"bounds=({shown(lower)}, {shown(upper)})"


def read_scale(value: Any, bounds: tuple[Numbers, Numbers] | None) -> Numbers | None:
    """Read one factor, one for each feature, or "bounds"."""
    if isinstance(value, str) and value == "bounds":
        return None if (factors := scale_of_bounds(bounds)) is None else _numbers("scale", factors)
    return None if value is None else _numbers("scale", value, '"bounds", None, ')


def _options(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"options must be a dict of the estimator's settings, not {shown(value)}")
    # Numbers of numpy, as scikit-learn's parameter searches pass them, become Python's own.
    return {key: item.item() if isinstance(item, np.generic) else item for key, item in value.items()}
