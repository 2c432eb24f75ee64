"""Functions of rows that a fitted subspace defines: projection, density, covariance."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from streaming_pca.api.rows import Rows, check_numbers, check_rows, dense_parts
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.projection import Projection

_OF_THE_DENSITY = ("noise_variance_", "score", "score_samples", "get_covariance", "get_precision")

_OF_SEVERAL_ROWS = "a model of factors of several rows, whose variances are sums over a record's rows, has no"

Matrix = NDArray[np.float64]


def _has_density(model: SubspaceModel) -> bool:
    """Return whether a model has a density, or is not fitted yet."""
    return "components_" not in model.__dict__ or "noise_variance_" in model.__dict__


def _has_scores(model: SubspaceModel) -> bool:
    """Return whether a model has or may get a density about a known mean."""
    return _has_density(model) and not _is_of_pairs(model)


def _is_of_pairs(model: SubspaceModel) -> bool:
    """Return whether records are centred by differences, which leaves their mean unknown."""
    is_fitted = "components_" in model.__dict__
    centering = model._preprocessing.centering if is_fitted else model.__dict__.get("centering")
    return isinstance(centering, str) and centering == "pairs"


@dataclass(frozen=True, eq=False)
class GaussianModel:
    """Normal distribution of rows with a mean and the covariance of probabilistic PCA [TippingBishop1999].

    With D the factors of the features (``scale``), W the components, L their variances, each at
    least the noise variance s, the covariance of a row is D^-1 (W^T (L - s) W + s) D^-1.
    """

    projection: Projection
    """Its centre is the mean."""
    variances: Matrix
    """Explained variances, of the scaled features, (k,)."""
    noise: float
    """s: variance of every other direction; 0 for k = d."""

    @property
    def _along(self) -> Matrix:
        return np.maximum(self.variances, self.noise)

    @property
    def _factors(self) -> Matrix:
        return np.broadcast_to(np.asarray(self.projection.scale), (self.projection.components.shape[1],))

    def covariance(self) -> Matrix:
        """Return the (d, d) covariance of rows, in their own units."""
        return self._about(self._along - self.noise, self.noise, 1 / self._factors)

    def precision(self) -> Matrix:
        """Return the (d, d) inverse of the covariance; ValueError if it is singular."""
        self._check()
        outside = 1 / self.noise if self.noise else 0.0
        return self._about(1 / self._along - outside, outside, self._factors)

    def log_likelihoods(self, rows: Matrix) -> Matrix:
        """Return the log-density in nats of each row (m, d), clamped to the bounds."""
        self._check()
        projection, along = self.projection, self._along
        k, d = projection.components.shape
        coordinates = projection.transform(rows)
        # Logarithms of a change of units: densities are those of rows, not of scaled rows.
        logarithms = np.log(along).sum() - 2 * np.log(self._factors).sum()
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (coordinates**2 / along).sum(axis=1)
            if k < d:
                if projection.bounds is not None:
                    rows = np.clip(rows, *map(np.asarray, projection.bounds))
                rest = (rows - projection.inverse_transform(coordinates)) * self._factors
                squares += (rest**2).sum(axis=1) / self.noise
                logarithms += (d - k) * math.log(self.noise)
        return np.asarray(-0.5 * (squares + logarithms + d * math.log(2 * math.pi)))

    def _about(self, along: Matrix, outside: float, factors: Matrix) -> Matrix:
        components = self.projection.components
        matrix = (components.T * along) @ components
        matrix.flat[:: len(matrix) + 1] += outside
        return np.asarray(matrix * factors * factors[:, None])

    def _check(self) -> None:
        if not np.all(self._along > 0):
            count = int(np.count_nonzero(self._along > 0))
            raise ValueError(
                f"the covariance is singular: only {count} of its variances are above 0, "
                "the others are lost in the noise; fit fewer components, or with less noise"
            )


# scikit-learn has no type annotations.
class SubspaceModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fitted subspace in the manner of scikit-learn's PCA.

    A subclass sets the fitted attributes ``components_``, ``explained_variance_``,
    ``n_components_``, ``n_features_in_`` and, where known, ``explained_variance_error_``,
    ``noise_variance_``, ``mean_``, and the parameter ``whiten``.
    """

    whiten: bool
    _rows_per_record: int = 1
    """Most rows of a fitted record, over which variances are summed."""
    _has_vectors: bool = False
    """True after a call with vectors: each row was a record."""

    @property
    @abstractmethod
    def _preprocessing(self) -> Preprocessing:
        """Public transformation of the fitted records."""

    @property
    def _projection(self) -> Projection:
        scale, bounds = self._preprocessing.scale, self._preprocessing.bounds
        mean = getattr(self, "mean_", 0.0)
        return Projection(self.components_, mean, 1.0 if scale is None else scale, bounds)

    @property
    def _gaussian(self) -> GaussianModel:
        return GaussianModel(self._projection, self.explained_variance_, self.noise_variance_)

    def transform(self, X: ArrayLike) -> Any:
        """Project rows: clamp to ``bounds``, subtract ``mean_``, multiply by ``scale``, project.

        With ``whiten`` each coordinate is then divided by the root of its explained variance. The result is a
        function of X, not a private output. A model without ``mean_`` subtracts nothing.

        Parameters
        ----------
        X : (m, d) vectors, also sparse, or (m, r, d) factors

        Returns
        -------
        (m, k) or (m, r, k)
            Coordinates, in X's precision.

        Raises
        ------
        ValueError
            One line: the fault of X; or with ``whiten``, if a variance is lost in the noise, or the model
            is of factors of several rows.
        """
        check_is_fitted(self)
        array = self._checked(X, least=1)
        self._check_features(X, array, reset=False)
        projection, deviations = self._projection, self._deviations
        with np.errstate(over="ignore", invalid="ignore"):
            parts = [projection.transform(rows) / deviations for rows in dense_parts(array)]
        return np.concatenate(parts).astype(array.dtype, copy=False)

    def inverse_transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return the rows of the subspace with these coordinates, in units of the features.

        Without ``mean_`` the subspace contains 0.

        Parameters
        ----------
        X : (m, k) or (m, r, k)
            Whitened coordinates, with ``whiten``.

        Returns
        -------
        (m, d) or (m, r, d)
        """
        check_is_fitted(self)
        array = check_numbers(X, estimator=self)
        if array.shape[-1] != self.n_components_:
            raise ValueError(f"X has {array.shape[-1]} columns for {self.n_components_} components")
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self._projection.inverse_transform(array.astype(np.float64) * self._deviations)
            return np.asarray(rows.astype(array.dtype, copy=False))

    @available_if(_has_scores)  # type: ignore[untyped-decorator]
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log-likelihood of each row under the model of :meth:`get_covariance`.

        As in scikit-learn's PCA: a normal distribution about ``mean_``, or about 0 without
        it, in units of X. A model of ``centering="pairs"``, whose mean is unknown, has no density of
        rows, nor has a model of factors of several rows. Rows are clamped to ``bounds`` first, as
        in :meth:`transform`. The result, in nats, is a function of X, not a private output.

        Parameters
        ----------
        X : (m, d) vectors, also sparse

        Raises
        ------
        ValueError
            One line: the fault of X, a singular covariance, or factors of several rows.
        """
        check_is_fitted(self)
        if self._rows_per_record > 1:
            raise ValueError(f"{_OF_SEVERAL_ROWS} density of rows")
        array = self._checked(X, least=1)
        self._check_features(X, array, reset=False)
        if array.ndim != 2:
            raise ValueError(f"X must be vectors (m, d) to be scored, not factors of shape {array.shape}")
        model = self._gaussian
        return np.concatenate([model.log_likelihoods(rows.astype(np.float64)) for rows in dense_parts(array)])

    @available_if(_has_scores)  # type: ignore[untyped-decorator]
    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the mean of :meth:`score_samples`: not private for the rows of X.

        A choice based on it, such as the result of a parameter search, is not private either.
        """
        return float(np.mean(self.score_samples(X)))

    @available_if(_has_density)  # type: ignore[untyped-decorator]
    def get_covariance(self) -> NDArray[np.float64]:
        """Return the covariance (d, d) of clamped records by probabilistic PCA, in squared units.

        ``noise_variance_`` is the variance in every direction outside the components, and the least
        along them. Without ``mean_`` and with ``centering="none"`` it is a second moment. It
        is post-processing of the fitted attributes, so as private as they are.
        """
        check_is_fitted(self)
        return self._gaussian.covariance()

    @available_if(_has_density)  # type: ignore[untyped-decorator]
    def get_precision(self) -> NDArray[np.float64]:
        """Return the inverse of :meth:`get_covariance`, (d, d).

        ValueError if it is singular: all d variances are explained, and noise has left one of them 0.
        """
        check_is_fitted(self)
        return self._gaussian.precision()

    @property
    def _deviations(self) -> NDArray[np.float64]:
        """Divisors of whitened coordinates (k,); 1 without whitening."""
        if not self.whiten:
            return np.ones(1)
        self._check_whitening(self._rows_per_record)
        # A variance below its standard error is indistinguishable from 0, and would amplify noise.
        least = getattr(self, "explained_variance_error_", 0.0)
        variances = np.maximum(self.explained_variance_, least)
        if lost := np.flatnonzero(~(variances > 0)).tolist():
            raise ValueError(
                "whiten divides by the root of each explained variance, but noise hides the variance of "
                f"component {lost[0]}: take fewer components, or "
                "set_params(whiten=False) without a new fit"
            )
        return np.asarray(np.sqrt(variances))

    @property
    def _n_features_out(self) -> int:
        """Number of output columns that scikit-learn names."""
        return int(self.n_components_)

    def __getattr__(self, name: str) -> Any:
        # Called only for attributes that do not exist.
        is_fitted = "components_" in self.__dict__
        if name == "mean_" and is_fitted:
            text = "this model has no mean_: the mean was not found, or not estimated at all (see centering)"
        elif name in ("score", "score_samples") and _is_of_pairs(self):
            text = (
                f'{name} needs a mean, which centering="pairs" does not estimate: '
                'fit "adaptive" with "auto", or a public centre'
            )
        elif name in _OF_THE_DENSITY and is_fitted:
            text = (
                f"this model has no {name}: its estimator does not release the variance of all features; "
                "adaptive, analyze-gauss and block do"
            )
        else:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # No seed reaches the noise.
        tags.non_deterministic = True
        tags.input_tags.three_d_array = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def _checked(self, X: ArrayLike, least: int) -> Rows:
        """Return X as finite floats, with at least ``least`` records; sparse X as CSR."""
        return check_rows(X, least=least, estimator=self)

    def _check_whitening(self, rows_per_record: int) -> None:
        if self.whiten and rows_per_record > 1:
            raise ValueError(f"{_OF_SEVERAL_ROWS} whitening: set whiten=False")

    def _check_features(self, X: ArrayLike, array: Rows, reset: bool) -> None:
        """Set the number and names of features, or compare them with the model's."""
        schema: Any = getattr(X, "schema", None)
        if hasattr(schema, "empty_table"):
            # Of Arrow's batches scikit-learn reads no names.
            X = schema.empty_table()
        # It looks for features along the second axis.
        named = X if array.ndim == 2 else array[:, 0, :]
        validate_data(self, named, reset=reset, skip_check_array=True)
