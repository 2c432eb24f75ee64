"""Public transformations of records: bounds, scale and centring.

Each is a function of one record (or of one pair of records) and of public
numbers, so neighbours stay neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from streaming_pca.data.records import Block, RecordKind, row_starts
from streaming_pca.kernels.reading import PublicMap


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


Numbers = Annotated[float | tuple[float, ...], BeforeValidator(_listed)]


_FORMER_CENTERINGS = ("augment", "private-mean")


def present_centering(value: Any) -> Any:
    """Return the value; raise ValueError with the present name for a former one."""
    if isinstance(value, str) and value in _FORMER_CENTERINGS:
        raise ValueError(f'centering = "{value}" is now "auto"')
    return value


class Preprocessing(BaseModel):
    """Public transformation of every record before clipping."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    dim: int
    """Number d of features."""
    kind: RecordKind = RecordKind.FACTOR
    centering: Annotated[Literal["auto", "pairs", "none"] | tuple[float, ...], BeforeValidator(_listed)] = (
        "auto"
    )
    """"auto" subtracts a mean that the estimator finds with a part of its budget
    (:mod:`streaming_pca.estimators.common.centre`). "pairs" replaces two neighbouring records x, y of one
    partition by (x - y)/sqrt(2), which has the records' covariance; it expects shuffled records of one row. A
    vector of length d is a public centre. "none" keeps second moments."""
    bounds: tuple[Numbers, Numbers] | None = None
    """(lower, upper), each a number or one number per feature. Rows are clamped to them."""
    scale: Numbers | None = None
    """Factor(s) of the rows after centring."""
    centre: tuple[float, ...] | None = None
    """Mean (d,) that "auto" subtracts now, an earlier output; see :meth:`about`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass whose records kernels would read differently."""
        super().__init_subclass__(**kwargs)
        if "apply" in vars(cls) and "public_map" not in vars(cls):
            raise TypeError(f"{cls.__name__} overrides apply(): override public_map to match")

    @model_validator(mode="after")
    def _check(self) -> Preprocessing:
        if self.kind is not RecordKind.FACTOR:
            if self.centering != "none" or self.bounds is not None or self.scale is not None:
                raise ValueError(
                    f"records of kind '{self.kind}' need centering = \"none\" and no bounds or scale"
                )
            return self
        if not isinstance(self.centering, str):
            self._vector("centering", self.centering)
        if self.centre is not None:
            if self.centering != "auto":
                raise ValueError('only centering = "auto" has a centre')
            self._vector("centre", self.centre)
        if self.scale is not None and not np.all(self._vector("scale", self.scale) > 0):
            raise ValueError("scale must be above 0 for every feature")
        if self.bounds is not None:
            lower, upper = (self._vector("bounds", b) for b in self.bounds)
            if len(wrong := np.flatnonzero(~(lower < upper))):
                raise ValueError(
                    "bounds must have lower below upper for every feature: first all lower bounds, then all "
                    f"upper bounds; equal or reversed, counted from 0: {wrong[:9].tolist()}"
                )
        return self

    def _vector(self, name: str, value: float | Sequence[float]) -> NDArray[np.float64]:
        array = np.asarray(value, dtype=np.float64)
        if array.ndim == 1 and array.shape != (self.dim,):
            raise ValueError(f"{name} has {array.size} numbers for {self.dim} features")
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name} must be finite")
        return np.broadcast_to(array, (self.dim,))

    def about(self, mean: NDArray[np.float64]) -> Preprocessing:
        """Return the same preprocessing with this centre (d,), for the centring "auto".

        Nothing else changes, not even :attr:`largest_squared_norm`: plans and
        reservations from before the mean was known remain valid.
        """
        return Preprocessing(**{**dict(self), "centre": tuple(mean.tolist())})

    @property
    def granularity(self) -> int:
        """Number of messages that stay together in batches and parts."""
        return 2 if self.centering == "pairs" else 1

    def whole_count(self, count: int) -> int:
        """Round ``count`` messages down to a multiple of the granularity, at least one."""
        return max(count // self.granularity, 1) * self.granularity

    @property
    def units(self) -> int:
        """Input records for each transformed record."""
        return self.granularity

    @property
    def largest_squared_norm(self) -> float | None:
        """Public bound on |row|**2 after the transformation; None without bounds.

        For "auto" it holds with any centre within the bounds.
        """
        if self.bounds is None:
            return None
        lower, upper = (self._vector("bounds", b) for b in self.bounds)
        scale = self._vector("scale", 1.0 if self.scale is None else self.scale)
        with np.errstate(all="ignore"):
            if self.centering == "pairs":
                reach = (upper / 2 - lower / 2) * np.sqrt(2)
            elif self.centering == "auto":
                reach = upper - lower
            else:
                centre = 0.0 if isinstance(self.centering, str) else self._vector("centering", self.centering)
                reach = np.maximum(np.abs(lower - centre), np.abs(upper - centre))
            return float(np.sum((reach * scale) ** 2))

    def public_map(self) -> PublicMap | None:
        """Return :meth:`apply` as a map for kernels that transform records while reading.

        None if :meth:`apply` is more than a map of features; kernels then read its output. Errors are those
        of :meth:`apply`.
        """
        # Copies, because kernels are compiled for contiguous writable arrays, not for broadcast views.
        lower, upper, shift, factor = (np.array(numbers) for numbers in self._numbers())
        return PublicMap(lower, upper, shift, factor, self.centering == "pairs")

    def _numbers(self) -> tuple[NDArray[np.float64], ...]:
        """Return both bounds, shift and factor of the rows, (d,) each; (0,) for a missing one."""
        if self.centering == "auto" and self.centre is None:
            raise ValueError('centering = "auto" has no centre yet: use about(mean)')
        lower = upper = shift = factor = np.zeros(0)
        if self.bounds is not None:
            lower, upper = (self._vector("bounds", b) for b in self.bounds)
        if self.centre is not None:
            shift = self._vector("centre", self.centre)
        elif not isinstance(self.centering, str):
            shift = self._vector("centering", self.centering)
        if self.scale is not None:
            factor = self._vector("scale", self.scale)
        return lower, upper, shift, factor

    def apply(self, batch: Block) -> Block:
        """Transform a block of m records to m in float64; for pairs, m is even and halved.

        A record is null where a source was null or where a value overflowed. ValueError if the centring is
        "auto", without a centre yet.
        """
        lower, upper, shift, factor = self._numbers()
        batch = batch.packed()
        rows = np.ascontiguousarray(batch.rows, dtype=np.float64)
        # A warning, or an error that the host turns it into, would reveal that a record over- or underflowed.
        with np.errstate(all="ignore"):
            if self.kind is RecordKind.MATRIX:
                # Exactly symmetric, because mechanisms read one triangle only.
                a = rows.reshape(-1, self.dim, self.dim)
                rows = (0.5 * a + 0.5 * a.transpose(0, 2, 1)).reshape(-1, self.dim)
                return Block(rows, batch.starts, batch.kind)
            if lower.size:
                rows = np.clip(rows, lower, upper)
            if shift.size:
                rows = rows - shift
            if factor.size:
                rows = rows * factor
        starts = batch.starts
        if self.centering == "pairs":
            rows, starts = _pair(rows, starts)
        return _drop_overflow(Block(rows, starts, batch.kind))


def _pair(
    rows: NDArray[np.float64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    lengths = np.diff(starts)
    if len(lengths) % 2:
        raise ValueError("pairs need an even number of records")
    whole = (lengths[0::2] == 1) & (lengths[1::2] == 1)
    first, second = starts[0:-1:2][whole], starts[1::2][whole]
    with np.errstate(all="ignore"):
        paired = (rows[first] - rows[second]) * np.sqrt(0.5)
    return paired, row_starts(whole.astype(np.int64))


def _drop_overflow(batch: Block) -> Block:
    """Make records null that overflowed in the transformation."""
    finite = np.isfinite(batch.rows).all(axis=1)
    if finite.all():
        return batch
    good = np.ones(len(batch), dtype=np.bool_)
    good[np.repeat(np.arange(len(batch)), np.diff(batch.starts))[~finite]] = False
    return batch.keeping(good).packed()


def scale_of_bounds(bounds: Any) -> Any:
    """Return factors that scale each range to width 2; None for malformed bounds."""
    if bounds is None:
        raise ValueError('scale = "bounds" needs bounds')
    try:
        lower, upper = (np.asarray(each, dtype=np.float64) for each in bounds)
        with np.errstate(all="ignore"):
            factors = 2 / (upper - lower)
    except (TypeError, ValueError):
        # The check of bounds reports this error.
        return None
    if (upper > lower).all() and not ((factors > 0).all() and np.isfinite(factors).all()):
        raise ValueError(
            'scale = "bounds" needs bounds that are neither too close together nor too far apart'
        )
    return factors.tolist() if (upper > lower).all() else None


def transformed(preprocessing: Preprocessing, block: Block) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return starts and float64 rows of a block's transformed records.

    The rows are read-only, so that payloads, which are read-only, use the same compiled kernels.
    """
    if preprocessing.kind is RecordKind.MATRIX:
        # Records without d rows become null: reshaped, they would shift the rows of the next.
        lengths = np.diff(block.starts)
        whole = lengths == block.dim
        if not np.all(whole | (lengths == 0)):
            block = block.keeping(whole)
    transformed = preprocessing.apply(block)
    rows = np.asarray(transformed.rows, dtype=np.float64).view()
    rows.flags.writeable = False
    return transformed.starts, rows
