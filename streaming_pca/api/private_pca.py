"""`PrivatePCA`: the private estimators with the interface of scikit-learn."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from streaming_pca.api.budget import (
    BudgetAccountant,
    active_accountants,
    charge_all,
    charged_accountants,
    float_at_most,
)
from streaming_pca.api.feature_map import MappedModel, map_parameters, plain_features, restored_features
from streaming_pca.api.fitted import (
    ATTRIBUTES,
    chosen_release,
    configured_components,
    fitted_attributes,
    is_share,
    read_release,
    release_attributes,
    release_charge,
    release_parameters,
    with_rank,
)
from streaming_pca.api.model_file import decode_model_state, read_model, write_model
from streaming_pca.api.rows import Rows, planned_shape, record_rows, refuse_mixture
from streaming_pca.data.array_batch import ArrayBatch, SparseBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Estimator, Plan, State, Subspace
from streaming_pca.estimators.factory import (
    changed_parameters,
    configure,
    make_utility_generator,
    records_to_take,
    usable_records,
)
from streaming_pca.estimators.forecast.forecast import Batches, forecast_estimator
from streaming_pca.estimators.forecast.result import Forecast
from streaming_pca.estimators.registry import DEFAULT_ESTIMATOR
from streaming_pca.estimators.remedies import advise_on_model
from streaming_pca.estimators.warnings import DoubtfulResultWarning, find_warnings
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.privacy.parameters import Charge

_MECHANISM_FREE = ("random_state", "whiten", "accountant")  # parameters that no mechanism depends on


class PrivatePCA(MappedModel):
    """Principal components under differential privacy for each record.

    Parameters
    ----------
    n_components : int, float in (0, 1) or None, default=2
        Number k of components, at most the number of features d. None takes all: d, or the number
        of records so far if that is less (of the first call, with the block route and estimators without a
        covariance). A share takes the fewest components whose ``explained_variance_ratio_`` sums to it, by
        the noisy variances, again after each batch; this costs nothing. Noise adds to the leading variances,
        so the share is overstated where ``doubts_`` has "not-resolved". It needs estimator "adaptive" (with
        its covariance route) or "analyze-gauss", and d of at most 512.
    epsilon : float, default=1.0
        Privacy guarantee for each record, together with ``delta``; see Privacy below.
    delta : float, default=1e-6
        Second number of the guarantee, far below 1/n for n records.
    private : bool, default=True
        False allows an estimator that is not private ("oja"): it ignores epsilon, and charges infinity.
    estimator : str, default="adaptive"
        Id of the estimator; ``streaming-pca estimators`` lists them.
    centering : {"auto", "pairs", "none"} or array of d numbers, default="auto"
        "auto" estimates the mean with a small part of the budget ("adaptive", "analyze-gauss", "block"), and
        is "pairs" for others. "pairs" uses differences of two records, (x - y)/sqrt(2); the last of an odd
        number stays unused and uncharged. An array is a public centre. "none" keeps second moments.
    bounds : (lower, upper), dict of column to (lower, upper), or None, default=None
        Public bounds of the features, each a number, or a list or array of d numbers: records are clamped
        to them. They improve accuracy more than any other parameter. Bounds computed from the records,
        such as their least and largest value, are not public. With names, X is a table of these columns.
    scale : float, array of d numbers, "bounds" or None, default=None
        Public factors of the features, applied after centring; "bounds": 2/(upper - lower).
    random_state : int, numpy RandomState or Generator, or None, default=None
        Seed of randomness that privacy does not depend on: the order of the records in ``fit``, and an
        initial basis. It never seeds the noise, so two fits differ.
    features : FeatureMap, list of Feature or dict, or None, default=None
        Public map of a table's columns, or of records with named fields, to rows: X is then such a
        table, d the number of the map's columns, and bounds and scale are the map's. A scaler or an
        imputer that is fitted on X before this model is not private; the map is.
    options : dict or None, default=None
        Options of the estimator. ``fit`` adds ``n_records`` if the estimator has that option and this
        dict does not, and uses as few batches as possible: each batch adds noise.
    whiten : bool, default=False
        Divide coordinates by the roots of the explained variances, each at least its error. It may be
        changed on a fitted model, at no cost. Not for factors of several rows.
    accountant : BudgetAccountant or None, default=None
        Budget that each fit is charged to, in addition to budgets of open ``with`` blocks.
        :class:`~streaming_pca.BudgetAccountant` explains how charges add up. It is not saved.

    Attributes
    ----------
    components_ : (k, d) float64
        Orthonormal rows by decreasing explained variance. Signs and order are stable between calls of
        ``partial_fit``. With ``scale`` they are directions of the scaled features.
    explained_variance_ : (k,) float64
        Private estimates, in squared units of the scaled features.
    explained_variance_error_ : (k,) float64
        Standard errors, of noise, mean, and clips as far as noisy counts show clipped records. This and the
        next four attributes exist only if the estimator releases them.
    total_variance_, total_variance_error_ : float
        Variance of all features, private (so possibly below 0), and its error.
    explained_variance_ratio_ : (k,) float64
        ``explained_variance_`` over ``total_variance_``, or over its own sum if noise
        has made that larger: at least 0, with a sum of at most 1.
    noise_variance_ : float
        Mean variance outside the components, (total - sum of explained)/(d - k), in squared units of the
        scaled features; 0 for k = d. Absent without ``total_variance_``. Noise can make this difference
        negative, so it is at least f/(d - k), f the smaller of ``total_variance_error_`` and sqrt(d - k)
        times the least ``explained_variance_error_``. Its own error is not estimated.
    singular_values_ : (k,) float64
        sqrt(n ``explained_variance_``) of n = ``n_samples_seen_`` centred, scaled records.
    angle_bound_ : float
        Upper bound in radians, with probability 0.95 over the noise, on the largest principal angle to the
        same records' subspace (the clipped records' if "clipped" is in ``doubts_``, or with ``clip_radius``;
        the pairs' with "pairs"), without large records too few to be counted; 4 to 26 times a mean angle.
    mean_ : (d,) float64
        Vector that ``transform`` subtracts, in units of X (of the map's columns with ``features``): the
        private mean for "auto", the given centre for an array. Absent if no mean was found or sought.
    outcome_ : str
        Outcome of the last batch, if the estimator can learn nothing from one.
    doubts_ : tuple of str
        Reasons not to rely on the model, derived from its other attributes: ids of
        :class:`~streaming_pca.estimators.warnings.ReleaseWarning`. If there are any, ``fit`` and
        ``partial_fit`` warn.
        Without ``angle_bound_`` and ``explained_variance_error_`` few doubts can be detected.
    n_components_, n_features_in_ : int
    feature_names_in_ : (d,) str
        Names of X's columns, if it had names.
    n_records_seen_, n_samples_seen_ : int
        Number of records in the present model, which is public.
    privacy_spent_ : Charge
        Charge of each of these records, as exact fractions: ``float(pca.privacy_spent_.epsilon)``.

    See Also
    --------
    streaming_pca.plots : Figures of a model; docs/gallery has scripts that draw them.

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
    forgets earlier fits, but charges of fits on the same records add up: a parameter search with n
    fits costs n times as much. Records of a call that failed after it was charged are spent too.

    ``transform``, ``inverse_transform``, ``score`` and ``score_samples`` are functions of the
    given rows; their results are not private for those rows. ``get_covariance`` and
    ``get_precision`` are post-processing of the fitted attributes.

    **Factors.** The matrix of a factor is a sum over its r rows, and so are all variances. For r > 1
    they are not variances of a row: ``score``, ``score_samples`` and ``whiten`` are refused.

    **Units.** ``components_`` and all variances are of the scaled features. ``mean_``, ``bounds``,
    the rows of ``inverse_transform``, ``get_covariance`` and densities are in units of X.

    **Sparse X.** Vectors may be a scipy matrix or array of any sparse format. Rows become dense a block
    at a time, at most 8 MiB or 256 rows for each thread. Bits equal those of dense rows, but for the noise.

    As scikit-learn requires, a NaN, an infinity or a wrong shape raises ValueError, an error that only the
    holder of X may see. A stream (``streaming-pca worker``) takes such records as null instead.

    Examples
    --------
    >>> import numpy as np
    >>> from streaming_pca import PrivatePCA
    >>> X = np.random.default_rng(0).standard_normal((50_000, 4)) * [4, 2, 1, 1]
    >>> pca = PrivatePCA(n_components=2, epsilon=1.0, delta=1e-6, bounds=(-15, 15)).fit(X)
    >>> pca.components_.shape, float(pca.privacy_spent_.epsilon)
    ((2, 4), 1.0)
    """

    _estimator: Estimator[Any, Any]
    _state: State
    _charged_as: object
    privacy_spent_: Charge
    _spent_before: Charge = Charge.nothing()
    """Charges of the batches up to the last that failed; charges of later batches add to them."""

    def __init__(
        self,
        n_components: int | float | None = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        private: bool = True,
        estimator: str = DEFAULT_ESTIMATOR,
        centering: str | ArrayLike = "auto",
        bounds: tuple[ArrayLike, ArrayLike] | Mapping[str, tuple[float, float]] | None = None,
        scale: ArrayLike | str | None = None,
        features: Any = None,
        random_state: Any = None,
        options: dict[str, Any] | None = None,
        whiten: bool = False,
        accountant: BudgetAccountant | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.private = private
        self.estimator = estimator
        self.centering = centering
        self.bounds = bounds
        self.scale = scale
        self.features = features
        self.random_state = random_state
        self.options = options
        self.whiten = whiten
        self.accountant = accountant

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Fit a new model to X, in disjoint batches that the estimator plans.

        Parameters
        ----------
        X : (m, d) vectors, also sparse, or (m, r, d) factors
            At least two records, read in an order that depends on ``random_state`` and m only.
        y : ignored

        Raises
        ------
        ValueError
            One line that names the parameter, or the fault of X. The earlier model is kept.
        BudgetError
            If a budget does not cover the fit; the earlier model is kept too.

        Warns
        -----
        DoubtfulResultWarning
            Once, if the model has ``doubts_``.
        """
        array = self._checked(X, least=2)
        self._check_whitening(record_rows(array))
        m = array.shape[0]
        estimator = self._configured(array.shape[-1], m, m)
        n_usable = usable_records(array.shape, estimator)
        rng = self._begin(X, array, estimator, m)
        charged_as = self._charged_as, self._spent_before
        order = rng.permutation(m)[:n_usable]
        first = 0
        while first < n_usable:
            plan = estimator.plan(self._state)
            count = records_to_take(plan.count, n_usable - first)
            self._learn(array[order[first : first + count]], plan, *charged_as)
            first += count
        self._finish()
        self._charged_as, self._spent_before = charged_as
        return self

    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Update the model by one batch of records that were not in any earlier call.

        Each call adds noise, so few large batches are best. The first one decides the first clip radius:
        permute sorted records. Cut batches by position, never by value: docs/guide/differential-privacy.md.

        Parameters
        ----------
        X : (m, d) vectors, also sparse, or (m, r, d) factors
            In the first call at least two records, and as many rows as components.
        y : ignored

        Errors and warnings are as in :meth:`fit`; a call that is refused is not charged.
        """
        array = self._checked(X, least=1 if (begun := hasattr(self, "_state")) else 2)
        self._check_whitening(record_rows(array))
        if (m := array.shape[0]) > MAX_RECORDS:
            raise ValueError(f"X has {m} records, a batch at most {MAX_RECORDS}: pass it in parts")
        if begun:
            self._check_features(X, array, reset=False)
            refuse_mixture(array, self._rows_per_record, self._has_vectors)
            estimator = self._unchanged()
        else:
            if hasattr(self, "_published"):
                raise ValueError("a model from a release is read-only: start a new model with fit or clone")
            estimator = self._configured(array.shape[-1], None, m)
        n_usable = usable_records(array.shape, estimator, is_first=not begun)
        if not begun:
            self._begin(X, array, estimator, None)
        charged_as = self.__dict__.get("_charged_as", object()), self._spent_before
        self._learn(array[:n_usable], estimator.plan(self._state), *charged_as)
        self._finish()
        self._charged_as, self._spent_before = charged_as
        return self

    def plan(
        self,
        n_features: int | None = None,
        n_samples: int | None = None,
        *,
        batches: Batches | None = None,
        tail: float = 1.0,
    ) -> Forecast:
        """Forecast noise and attainable errors for these parameters; nothing is spent.

        Parameters
        ----------
        n_features, n_samples : int
            Public numbers of features and of records: not in the order of ``X.shape``. Named ``features`` or
            ``bounds`` give the first. UserWarning for fewer records than features.
        batches : int or sequence of int, optional
            Number of equal batches, or the records of each, one for each call of ``partial_fit``; by
            default as many as ``fit`` makes.
        tail : float, default=1.0
            Ratio of the clip radius of |x|^2 to the mean of |x|^2: 1 for records of equal norm, 2 to 5 if few
            directions hold most of the variance or tails are heavy.

        Returns
        -------
        Forecast
            Effects of the noise alone, in units of the total variance. ``print`` shows
            expected angles against epsilon and against records; ``angle_at(gap)``, ``error_at(gap)``,
            ``gap_for(error)`` and ``records_for(gap, error)`` answer further questions.

        Raises
        ------
        ValueError
            One line that names the parameter, or an estimator without a forecast.
        """
        rows = self._row_map()
        dim, count = planned_shape(rows.dim if rows and n_features is None else n_features, n_samples)
        estimator = self._configured(dim, count, count)
        if self.n_components is None:
            # The mechanisms may be set up for fewer.
            estimator = with_rank(estimator, min(dim, count))
        count -= count % estimator.preprocessing.granularity
        return forecast_estimator(estimator, count, batches=batches, tail=tail)

    def _configured(self, dim: int, n_records: int | None, rank: int | None = None) -> Estimator[Any, Any]:
        """Return the estimator of these parameters; all components are at most ``rank``."""
        parameters = self.get_params(deep=False)
        for name in _MECHANISM_FREE:
            del parameters[name]
        if not isinstance(self.whiten, (bool, np.bool_)):
            raise ValueError(f"whiten must be True or False, not {self.whiten!r}")
        charged_accountants(self.accountant)
        for name in ("epsilon", "delta"):
            parameters[name] = float_at_most(parameters[name])
        parameters["n_components"], parameters["options"] = configured_components(
            self.n_components, self.estimator, self.options, dim, rank
        )
        return configure(dim, n_records=n_records, tensors=False, **self._mapped_parameters(parameters, dim))

    def _unchanged(self) -> Estimator[Any, Any]:
        """Return the model's estimator; raise ValueError if parameters have changed since."""
        self._check_map()
        now = self._configured(self.n_features_in_, self._n_records_told, self._estimator.k)
        if changed := changed_parameters(self._estimator, now):
            raise ValueError(
                f"{', '.join(changed)} changed since the model was started: "
                "set the old value again, or start a new model with fit or clone"
            )
        return self._estimator

    def _begin(
        self, X: ArrayLike, array: Rows, estimator: Estimator[Any, Any], n_records: int | None
    ) -> np.random.Generator:
        """Begin a new model, unless something is wrong; return utility randomness."""
        rng = make_utility_generator(self.random_state)
        state = estimator.init(rng)
        # Plan before the old model is dropped: a plan refuses, for example, noise that no scale can give.
        plan = estimator.plan(state)
        earlier = dict(self.__dict__)
        try:
            self._check_features(X, array, reset=True)
            self._charge(model := object(), plan.charge)
        except BaseException:
            self.__dict__ = earlier
            raise
        kept = {name: self.__dict__[name] for name in self.__dict__.keys() - {*ATTRIBUTES, "_published"}}
        # In one step, so that an interrupt leaves a whole model.
        self.__dict__ = kept | {
            "_estimator": estimator,
            "_state": state,
            "_n_records_told": n_records,
            "_rows_per_record": 1,
            "_has_vectors": False,
            "privacy_spent_": Charge.nothing(),
            "_spent_before": Charge.nothing(),
            "_charged_as": model,
        }
        return rng

    def _charge(self, model: object, charge: Charge) -> None:
        foreign = getattr(self, "_foreign_budgets", ())
        charge_all((*charged_accountants(self.accountant), *foreign), model, charge)

    def _learn(self, rows: Rows, plan: Plan, model: object, spent_before: Charge) -> None:
        """Learn a batch, charged as a model's beyond ``spent_before``.

        Later charges add to it until the caller's last statement restores ``_charged_as`` and
        ``_spent_before``: if the call raises before, even by an interrupt, its records may come again.
        """
        batch = SparseBatch.of_rows(rows) if issparse(rows) else ArrayBatch.of_vectors(rows, complete=True)
        # Charged before the update, because its records are spent even if it fails.
        self._charge(model, plan.charge)
        self.__dict__.pop("_charged_as", None)
        self.privacy_spent_ = self._spent_before = self.privacy_spent_ | (spent_before + plan.charge)
        with np.errstate(all="ignore"):
            self._state = self._estimator.update(self._state, batch)
            before = self.__dict__.get("components_", ())
            if len(before) > self._estimator.k:
                # The estimator is made for fewer, and knows only their signs.
                self._state = replace(self._state, components=before)
            self._rows_per_record = max(self._rows_per_record, record_rows(rows))
            self._has_vectors = self._has_vectors or rows.ndim == 2

    def _set_fitted(self, attributes: dict[str, Any]) -> None:
        for name in ATTRIBUTES:
            self.__dict__.pop(name, None)
        self.__dict__.update(attributes)

    def _finish(self) -> None:
        """Set the fitted attributes, and warn the caller's caller of doubts."""
        release = self._refresh()
        if self.doubts_:
            names, index = getattr(self, "feature_names_in_", None), release.dominant_feature
            dominant = index if names is None or index is None else names[index]
            rows, records = self._row_map(), self._state.records
            of = {
                "features": rows.features if rows and self.features is not None else (),
                "has_single_rows": self._rows_per_record == 1,
                "has_chunks": self._state.batch > 1 and records > (self._n_records_told or 0),
                "has_share": is_share(self.n_components),
            }
            advice = advise_on_model(self.doubts_, self._estimator, release, dominant, **of)
            warnings.warn(f"the result is doubtful:\n{advice}", DoubtfulResultWarning, stacklevel=3)

    def _refresh(self) -> Subspace:
        release = chosen_release(self._estimator, self._state, self.n_components)
        preprocessing, records = self._preprocessing, self._state.records
        found = find_warnings(release, preprocessing, records, self._estimator.norm_range[1])
        self._set_fitted(fitted_attributes(release, preprocessing, records, [doubt.value for doubt in found]))
        return release

    @property
    def _preprocessing(self) -> Preprocessing:
        published: Preprocessing | None = self.__dict__.get("_published")
        return self._estimator.preprocessing if published is None else published

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_charged_as", None)  # a copy is another model, also in another process's open blocks
        if budgets := (*active_accountants(), *state.get("_foreign_budgets", ())):
            state["_foreign_budgets"] = budgets
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The defaults are for pickles of earlier versions.
        super().__setstate__({"whiten": False, "accountant": None, "features": None, **state})
        self._adopt_budgets(self.__dict__.pop("_foreign_budgets", ()))

    def __sklearn_clone__(self) -> Self:
        model: Self = super().__sklearn_clone__()
        model._adopt_budgets(getattr(self, "_foreign_budgets", ()))
        return model

    def _adopt_budgets(self, budgets: tuple[BudgetAccountant, ...]) -> None:
        """Keep the budgets of other processes, which will refuse each fit."""
        if foreign := tuple(each for each in budgets if not each.is_of_this_process):
            self._foreign_budgets = foreign

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, state and feature names to one .npz file, without pickle.

        The file holds the estimator's whole state, such as noisy sums, which are outputs of mechanisms under
        the (epsilon, delta) guarantee. It holds no record. Readers who may see every release may see the
        file; but it reveals more than the last release, and cannot be taken back.

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
        if hasattr(self, "_published"):
            raise ValueError("a model from a release has no state to save: keep the release's bytes")
        self._unchanged()
        if not isinstance(self.random_state, (int, np.integer, type(None))):
            raise ValueError("random_state must be an int or None to be saved: set_params(random_state=None)")
        names = getattr(self, "feature_names_in_", None)
        parameters = self.get_params(deep=False)
        del parameters["accountant"]
        parameters["features"] = plain_features(self.features)
        header = {
            "rank": self._estimator.k,
            "parameters": parameters,
            "n_features_in": self.n_features_in_,
            "feature_names_in": None if names is None else list(names),
            "n_records_told": self._n_records_told,
            "privacy_spent": self.privacy_spent_.model_dump(mode="json"),
            "spent_before": self._spent_before.model_dump(mode="json"),
            "rows_per_record": self._rows_per_record,
            "has_vectors": self._has_vectors,
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
    def from_release(
        cls,
        release: Release | bytes | Mapping[str, Any] | str | os.PathLike[str],
        *,
        centering: str | ArrayLike | None = None,
        scale: ArrayLike | str | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        features: Any = None,
    ) -> Self:
        """Make a fitted model of a stream's release, for its functions of rows.

        It is post-processing: nothing is charged. ``partial_fit`` and ``save`` refuse, for a release
        holds no state. ``privacy_spent_`` is the stream's guarantee, for its unit of privacy. ``score``
        and ``whiten`` are for streams of vectors only: a release does not give the rows of a record.

        Parameters
        ----------
        release : Release, bytes, dict, or path
            A release, its message's value or JSON object, or a file that holds one.
        centering, scale, bounds : optional
            Settings of the stream, as the parameters of :class:`PrivatePCA`. Only needed if
            the release has their digests, or is older than version 6: such a release names its mean
            only, without a public centre and in scaled units.
        features : FeatureMap, list of Feature or dict, optional
            Features of the stream: the functions of rows then take tables and records.

        Raises
        ------
        ValueError
            One line: not a release, a tensor, or settings that are not the release's.

        Warns
        -----
        UserWarning
            If the release is older than version 6 and no setting is given.
        """
        given = {"centering": centering, "scale": scale, "bounds": bounds}
        published, preprocessing = read_release(release, given)
        parameters = release_parameters(published, preprocessing)
        model = cls(**(parameters | map_parameters(features, published, preprocessing)))
        model._published, model.n_features_in_ = preprocessing, published.dim
        model._restore_features(published.feature_names)
        model.privacy_spent_ = release_charge(published)
        model._set_fitted(release_attributes(published, preprocessing))
        return model

    @classmethod
    def _restored(cls, header: dict[str, Any], data: bytes) -> Self:
        model = cls(**restored_features(header["parameters"], header["feature_names_in"]))
        dim, names = header["n_features_in"], header["feature_names_in"]
        if names is not None and (len(names) != dim or not all(isinstance(name, str) for name in names)):
            raise ValueError("its feature names do not fit its number of features")
        model._n_records_told = header["n_records_told"]
        model._estimator = model._configured(dim, model._n_records_told, header.get("rank"))
        model._state = decode_model_state(model._estimator, data)
        model.privacy_spent_ = Charge.model_validate(header["privacy_spent"])
        if "spent_before" in header:
            model._spent_before = Charge.model_validate(header["spent_before"])
        model._rows_per_record = int(header.get("rows_per_record", 1))
        model._has_vectors = bool(header.get("has_vectors", model._rows_per_record == 1))
        model.n_features_in_ = dim
        model._restore_features(names)
        model._refresh()
        return model
