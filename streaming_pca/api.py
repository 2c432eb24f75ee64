"""`PrivatePCA`: the private estimators behind the interface of scikit-learn."""

from __future__ import annotations

import os
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Batch
from streaming_pca.estimators.base import Estimator, Plan, State, Subspace
from streaming_pca.estimators.common.error_bounds import explained_ratio
from streaming_pca.estimators.doubts import (
    Doubt,
    DoubtfulResultWarning,
    describe_doubts,
    doubts,
    remedies,
    resolved_components,
)
from streaming_pca.estimators.factory import (
    changed_parameters,
    configure,
    records_to_take,
    usable_records,
    utility_generator_of,
)
from streaming_pca.estimators.forecast.forecast import forecast_of
from streaming_pca.estimators.forecast.result import Forecast
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.model_file import decode_model_state, read_model, write_model
from streaming_pca.privacy.errors import require_count
from streaming_pca.privacy.parameters import Charge

__all__ = ["ATTRIBUTES", "DEFAULT_ESTIMATOR", "PrivatePCA", "fitted_attributes"]


ATTRIBUTES = (
    "components_",
    "explained_variance_",
    "explained_variance_error_",
    "explained_variance_ratio_",
    "total_variance_",
    "total_variance_error_",
    "angle_bound_",
    "outcome_",
    "doubts_",
    "mean_",
    "n_components_",
    "n_records_seen_",
)


def fitted_attributes(estimator: Estimator[Any, Any], state: State) -> dict[str, Any]:
    """Return the known fitted attributes of :data:`ATTRIBUTES` by name.

    An unknown attribute is absent rather than None, as in scikit-learn
    (``feature_names_in_``, a forest's ``oob_score_``): ``hasattr`` tells, and its
    use is an AttributeError that names it.
    """
    with np.errstate(all="ignore"):
        release = estimator.release(state)
    preprocessing = estimator.preprocessing
    ratio = None
    if release.total_variance is not None:
        ratio = explained_ratio(release.explained_variance, release.total_variance)
    values = (
        release.components,
        release.explained_variance,
        release.explained_variance_error,
        ratio,
        release.total_variance,
        release.total_variance_error,
        release.angle_bound,
        None if release.outcome is None else release.outcome.value,
        tuple(doubt.value for doubt in doubts(release, preprocessing, state.records)),
        _mean(release, preprocessing),
        estimator.k,
        state.records,
    )
    return {name: value for name, value in zip(ATTRIBUTES, values, strict=True) if value is not None}


def _mean(release: Subspace, preprocessing: Preprocessing) -> NDArray[np.float64] | None:
    """Return the public centre plus the estimated one, in units of the features; None without both."""
    public = None if isinstance(preprocessing.centering, str) else np.array(preprocessing.centering)
    if release.mean is None:
        return public
    learnt = release.mean / (1.0 if preprocessing.scale is None else np.asarray(preprocessing.scale))
    return learnt if public is None else public + learnt


DEFAULT_ESTIMATOR = "adaptive"

Rows = NDArray[np.floating]

_FLOATS = [np.float64, np.float32]


# scikit-learn has no type annotations.
class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal components under differential privacy for each record.

    Parameters
    ----------
    n_components : int, default=2
        Number k of components, at most the number of features d.
    epsilon, delta : float, default=1.0 and 1e-6
        Privacy guarantee for each record; see Privacy below.
    private : bool, default=True
        False allows an estimator that is not private ("oja"): epsilon and delta are
        then ignored, and each record is charged infinity.
    estimator : str, default="adaptive"
        Id of the estimator; ``streaming-pca estimators`` lists them.
    centering : {"auto", "pairs", "none"} or array of d numbers, default="auto"
        "auto" estimates the mean with a small part of the budget. "pairs" uses
        differences of two records, (x - y)/sqrt(2); of an odd number the last
        record stays unused and uncharged. An array is a public centre. "none"
        keeps second moments.
    bounds : (lower, upper) or None, default=None
        Public bounds of the features, each a number or d numbers, to which records
        are clamped. They improve accuracy more than any other parameter. Bounds
        computed from the records are not public.
    scale : float, array of d numbers or None, default=None
        Public factors of the features, applied after centring.
    random_state : int, numpy RandomState or Generator, or None, default=None
        Seed of randomness that privacy does not depend on: the order in which
        ``fit`` reads the records, and an initial basis. It never seeds the noise, so
        two fits differ.
    options : dict or None, default=None
        Options of the estimator. ``fit`` adds ``n_records`` if the estimator has
        that option and this dict does not, and uses as few batches as possible:
        one release needs no more, and each batch adds noise.

    Attributes
    ----------
    components_ : (k, d) float64
        Orthonormal rows by decreasing explained variance. Signs and order are
        stable between calls of ``partial_fit``. With ``scale`` they are directions
        of the scaled features.
    explained_variance_ : (k,) float64
        Private estimates, in squared units of the scaled features.
    explained_variance_error_ : (k,) float64
        Standard errors from the noise alone. This and the next four attributes
        exist only if the estimator releases them.
    total_variance_, total_variance_error_ : float
        Variance of all features, private (so possibly below 0), and its error.
    explained_variance_ratio_ : (k,) float64
        ``explained_variance_`` over ``total_variance_``, or over its own sum if noise
        has made that larger: at least 0, with a sum of at most 1.
    angle_bound_ : float
        Upper bound in radians, with probability 0.95 over the noise, on the largest
        principal angle to the subspace of the same clipped records without noise.
        The trivial bound is pi/2.
    mean_ : (d,) float64
        Vector that ``transform`` subtracts, in units of X: the private mean for
        "auto", the given centre for an array. Absent if no mean was found, and for
        "pairs" and "none", which estimate none.
    outcome_ : str
        Outcome of the last batch, if the estimator can learn nothing from one.
    doubts_ : tuple of str
        Reasons not to rely on the model, derived from its other attributes: ids of
        :class:`~streaming_pca.estimators.doubts.Doubt`. If there are any, ``fit``
        and ``partial_fit`` warn. An empty tuple does not prove a good model: without
        ``angle_bound_`` and ``explained_variance_error_`` few doubts can be detected.
    n_components_, n_features_in_ : int
    feature_names_in_ : (d,) str
        Names of X's columns, if it had names.
    n_records_seen_ : int
        Number of records in the present model.
    privacy_spent_ : Charge
        Charge of each of these records, as exact fractions:
        ``float(pca.privacy_spent_.epsilon)``.

    Notes
    -----
    **Privacy.** A record is one row of X, or one factor F_i of an (m, r, d) array
    with the matrix F_i^T F_i. All fitted attributes together, after every
    ``partial_fit``, are (epsilon, delta)-differentially private for each record
    under replace-one adjacency, with a public number of records. Each call of
    ``partial_fit``, and each batch of ``fit``, is charged to its own records
    before it is computed, and disjoint records compose in parallel. Therefore
    *no record may be passed twice*; the caller must ensure it, because it cannot
    be checked here. ``privacy_spent_`` covers the present model only: ``fit``
    forgets earlier fits, but the charges of fits on the same records add up, so a
    parameter search with n fits costs n times as much. Records of a call that
    failed after it was charged are spent too.

    ``transform`` and ``inverse_transform`` are functions of the given rows;
    their results are not private for those rows.

    As scikit-learn requires, a NaN, an infinity or a wrong shape raises
    ValueError, an error that only the holder of X may see. A stream
    (``streaming-pca worker``) takes such records as null instead.

    Examples
    --------
    >>> import numpy as np
    >>> from streaming_pca import PrivatePCA
    >>> X = np.random.default_rng(0).standard_normal((50_000, 4)) * [4, 2, 1, 1]
    >>> pca = PrivatePCA(n_components=2, epsilon=1.0, delta=1e-6, bounds=(-15, 15)).fit(X)
    >>> pca.components_.shape, float(pca.privacy_spent_.epsilon)
    ((2, 4), 1.0)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        private: bool = True,
        estimator: str = DEFAULT_ESTIMATOR,
        centering: str | ArrayLike = "auto",
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        scale: ArrayLike | None = None,
        random_state: Any = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.private = private
        self.estimator = estimator
        self.centering = centering
        self.bounds = bounds
        self.scale = scale
        self.random_state = random_state
        self.options = options

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Fit a new model to X, in disjoint batches that the estimator plans.

        Parameters
        ----------
        X : (m, d) vectors or (m, r, d) factors
            At least two records. They are read in an order that depends on
            ``random_state`` and m only.
        y : ignored

        Raises
        ------
        ValueError
            One line that names the parameter, or the fault of X. The earlier model
            is kept.

        Warns
        -----
        DoubtfulResultWarning
            Once, if the model has ``doubts_``.
        """
        array = self._checked(X, least=2)
        estimator = self._configured(array.shape[-1], len(array))
        n_usable = usable_records(array.shape, estimator)
        rng = self._begin(X, array, estimator, len(array))
        order = rng.permutation(len(array))[:n_usable]
        first = 0
        while first < n_usable:
            plan = estimator.plan(self._state)
            count = records_to_take(plan.count, n_usable - first)
            self._learn(array[order[first : first + count]], plan)
            first += count
        return self._finish()

    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Update the model by one batch of records that were in no call before.

        Parameters
        ----------
        X : (m, d) vectors or (m, r, d) factors
            At least two records.
        y : ignored

        Raises
        ------
        ValueError
            As in :meth:`fit`; nothing is charged.

        Warns
        -----
        DoubtfulResultWarning
            As in :meth:`fit`.
        """
        array = self._checked(X, least=2)
        if len(array) > MAX_RECORDS:
            raise ValueError(f"X has {len(array)} records, a batch at most {MAX_RECORDS}: pass it in parts")
        begun = hasattr(self, "_state")
        if begun:
            self._check_features(X, array, reset=False)
            estimator = self._unchanged()
        else:
            estimator = self._configured(array.shape[-1], None)
        n_usable = usable_records(array.shape, estimator)
        if not begun:
            self._begin(X, array, estimator, None)
        self._learn(array[:n_usable], estimator.plan(self._state))
        return self._finish()

    def plan(
        self, n_features: int, n_samples: int, *, batches: int | None = None, tail: float = 1.0
    ) -> Forecast:
        """Forecast noise and attainable errors for these parameters; nothing is spent.

        Parameters
        ----------
        n_features, n_samples : int
            Shape of X; both numbers are public.
        batches : int, optional
            Number of equal batches, one for each call of ``partial_fit``; by default
            as many as ``fit`` makes.
        tail : float, default=1.0
            Ratio of the clip radius of |x|^2 to the mean of |x|^2: 1 for records of
            equal norm, 2 to 5 if few directions hold most of the variance or tails are
            heavy.

        Returns
        -------
        Forecast
            Effects of the noise alone, in units of the total variance. ``print`` shows
            them; ``error_at(gap)``, ``gap_for(error)`` and ``records_for(gap, error)``
            answer further questions.

        Raises
        ------
        ValueError
            One line that names the parameter, or an estimator without a forecast.
        """
        for name, value, least in (("n_features", n_features, 1), ("n_samples", n_samples, 2)):
            require_count(name, int(value) if isinstance(value, np.integer) else value, least)
        estimator = self._configured(int(n_features), int(n_samples))
        count = n_samples - n_samples % estimator.preprocessing.granularity
        return forecast_of(estimator, int(count), batches=batches, tail=tail)

    def _configured(self, dim: int, n_records: int | None) -> Estimator[Any, Any]:
        parameters = self.get_params(deep=False)
        del parameters["random_state"]
        estimator = configure(dim, n_records=n_records, **parameters)
        if estimator.info.releases == "tensor":
            raise ValueError(
                f"{estimator.info.id} finds the components of a tensor, which span no subspace of their own: "
                "take another estimator, or run it as a stream"
            )
        return estimator

    def _unchanged(self) -> Estimator[Any, Any]:
        """Return the model's estimator; raise ValueError if parameters have changed since."""
        now = self._configured(self.n_features_in_, self._n_records_told)
        if changed := changed_parameters(self._estimator, now):
            raise ValueError(
                f"{', '.join(changed)} changed since the model was begun: "
                "set the old value again, or begin a model with fit or clone"
            )
        return self._estimator

    def _begin(
        self, X: ArrayLike, array: Rows, estimator: Estimator[Any, Any], n_records: int | None
    ) -> np.random.Generator:
        """Begin a new model, unless something is wrong; return utility randomness."""
        rng = utility_generator_of(self.random_state)
        state = estimator.init(rng)
        # Plan before the old model is dropped: a plan refuses, for example, noise that no scale can give.
        estimator.plan(state)
        self._check_features(X, array, reset=True)
        self._set_fitted({})
        self._estimator, self._state, self._n_records_told = estimator, state, n_records
        self.privacy_spent_ = Charge.nothing()
        return rng

    def _learn(self, rows: Rows, plan: Plan) -> None:
        batch = Batch.of_vectors(rows)
        # Charged before the update, because its records are spent even if it fails.
        self.privacy_spent_ = self.privacy_spent_ | plan.charge
        with np.errstate(all="ignore"):
            self._state = self._estimator.update(self._state, batch)

    def _set_fitted(self, attributes: dict[str, Any]) -> None:
        """Replace all fitted attributes by these."""
        for name in ATTRIBUTES:
            self.__dict__.pop(name, None)
        self.__dict__.update(attributes)

    def _finish(self) -> Self:
        """Set the fitted attributes, and warn the caller's caller of doubts."""
        self._set_fitted(fitted_attributes(self._estimator, self._state))
        if found := [Doubt(doubt) for doubt in self.doubts_]:
            resolved = resolved_components(self._estimator.release(self._state))
            warnings.warn(
                f"the result is doubtful: {describe_doubts(found, resolved, self.n_components_)}. "
                f"What helps: {remedies(found)}.",
                DoubtfulResultWarning,
                stacklevel=3,
            )
        return self

    def __getattr__(self, name: str) -> Any:
        # Called only for attributes that do not exist.
        if name == "mean_" and "components_" in self.__dict__:
            text = "this model has no mean_: none was found, or none was looked for (see centering)"
        else:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=self)

    def transform(self, X: ArrayLike) -> Any:
        """Project rows: clamp to ``bounds``, subtract ``mean_``, multiply by ``scale``, project.

        The result is a function of X, not a private output. A model without ``mean_``
        subtracts nothing.

        Parameters
        ----------
        X : (m, d) vectors or (m, r, d) factors

        Returns
        -------
        (m, k) or (m, r, k)
            Coordinates, in X's precision.
        """
        check_is_fitted(self)
        array = self._checked(X, least=1)
        self._check_features(X, array, reset=False)
        rows = array.astype(np.float64)
        if (bounds := self._estimator.preprocessing.bounds) is not None:
            np.clip(rows, *(np.asarray(bound) for bound in bounds), out=rows)
        with np.errstate(over="ignore", invalid="ignore"):
            rows -= self._centre
            rows *= self._scale
            return (rows @ self.components_.T).astype(array.dtype, copy=False)

    def inverse_transform(self, X: ArrayLike) -> Rows:
        """Return the rows of the subspace with these coordinates, in units of the features.

        Without ``mean_`` the subspace contains 0.

        Parameters
        ----------
        X : (m, k) or (m, r, k)

        Returns
        -------
        (m, d) or (m, r, d)
        """
        check_is_fitted(self)
        array = check_array(X, dtype=_FLOATS, allow_nd=True, input_name="X", estimator=self)
        if array.shape[-1] != self.n_components_:
            raise ValueError(f"X has {array.shape[-1]} columns for {self.n_components_} components")
        with np.errstate(over="ignore", invalid="ignore"):
            rows = array.astype(np.float64) @ self.components_ / self._scale + self._centre
            return np.asarray(rows.astype(array.dtype, copy=False))

    @property
    def _centre(self) -> NDArray[np.float64]:
        """Centre of rows; 0 if no mean is known."""
        return np.asarray(getattr(self, "mean_", 0.0))

    @property
    def _scale(self) -> NDArray[np.float64]:
        scale = self._estimator.preprocessing.scale
        return np.asarray(1.0 if scale is None else scale)

    @property
    def _n_features_out(self) -> int:
        """Number of output columns that scikit-learn names."""
        return int(self.n_components_)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, state and feature names to one .npz file, without pickle.

        The file holds the estimator's whole state, such as noisy sums, which are
        outputs of mechanisms under the (epsilon, delta) guarantee. It holds no
        record. Readers who may see every release may see the file; but it reveals
        more than the last release, and cannot be taken back.

        Parameters
        ----------
        path : path
            No suffix is added. An earlier file is replaced when the new one is complete.

        Raises
        ------
        ValueError
            If the file cannot be written, or ``random_state`` is a generator.
        """
        check_is_fitted(self)
        self._unchanged()
        if not isinstance(self.random_state, (int, np.integer, type(None))):
            raise ValueError("random_state must be an int or None to be saved: set_params(random_state=None)")
        names = getattr(self, "feature_names_in_", None)
        header = {
            "parameters": self.get_params(deep=False),
            "n_features_in": self.n_features_in_,
            "feature_names_in": None if names is None else list(names),
            "n_records_told": self._n_records_told,
            "privacy_spent": self.privacy_spent_.model_dump(mode="json"),
        }
        write_model(path, header, self._state)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote; it continues as before.

        Nothing in the file is executed. Arrays among the parameters become lists.

        Raises
        ------
        ValueError
            One line that names the file, if it cannot be read or holds no model.
        """
        return read_model(path, cls._restored)

    @classmethod
    def _restored(cls, header: dict[str, Any], data: bytes) -> Self:
        model = cls(**header["parameters"])
        dim, names = header["n_features_in"], header["feature_names_in"]
        if names is not None and (len(names) != dim or not all(isinstance(name, str) for name in names)):
            raise ValueError("its feature names do not fit its number of features")
        model._n_records_told = header["n_records_told"]
        model._estimator = model._configured(dim, model._n_records_told)
        model._state = decode_model_state(model._estimator, data)
        model.privacy_spent_ = Charge.model_validate(header["privacy_spent"])
        model.n_features_in_ = dim
        if names is not None:
            model.feature_names_in_ = np.array(names, dtype=object)
        model._set_fitted(fitted_attributes(model._estimator, model._state))
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # No seed reaches the noise.
        tags.non_deterministic = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def _checked(self, X: ArrayLike, least: int) -> Rows:
        """Return X as finite floats, with at least ``least`` records."""
        array = check_array(
            X, dtype=_FLOATS, allow_nd=True, ensure_min_samples=least, input_name="X", estimator=self
        )
        if array.ndim > 3 or not array.size:
            raise ValueError(f"X must be vectors (m, d) or factors (m, r, d), not of shape {array.shape}")
        return np.asarray(array)

    def _check_features(self, X: ArrayLike, array: Rows, reset: bool) -> None:
        """Set the number and names of features, or compare them with the model's."""
        # scikit-learn looks for features along the second axis.
        named = X if array.ndim == 2 else array[:, 0, :]
        validate_data(self, named, reset=reset, skip_check_array=True)
