"""Layers: each record is within each layer's sensitivity, exactly; together they are the clipped sums.

No noise is drawn; seeds are fixed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_sums import covariance_sensitivity, covariance_sum
from streaming_pca.estimators.covariance.layered_sums import Coordinates
from streaming_pca.kernels import threads
from streaming_pca.kernels.lattice import MATRIX_RADIUS, RADIUS, LatticeSum
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.randomness import utility_generator
from tests.estimators.suite import Floats

RADII = [0.5, 0.75, 2.0, 9.0, 9.5, 400.0]
D = 4
HUGE, TINY = 1.7e308, 5e-324


def turned(d: int = D, spread: float = 1e3, seed: int = 0) -> Floats:
    """Return orthonormal columns divided by square roots of weights with geometric mean 1."""
    basis = orthonormalise(utility_generator(seed).standard_normal((d, d)))
    return basis * np.geomspace(spread, 1 / spread, d)


def coordinates(how: str, d: int = D) -> Coordinates:
    """Return the records' own coordinates, turned ones, weights at the edge of floats, or matrices."""
    kind = RecordKind.MATRIX if how == "matrix" else RecordKind.FACTOR
    centering = "pairs" if "pairs" in how else "none"
    turn = turned(d) if "turned" in how else turned(d, 1e150) if "extreme" in how else None
    return Coordinates(Preprocessing(dim=d, kind=kind, centering=centering), turn)


HOWS = ["own", "turned", "extreme", "pairs", "turned pairs", "matrix"]
every_way = pytest.mark.parametrize("how", HOWS)


def layers(where: Coordinates, batch: ArrayBatch, radii: list[float] | None = None) -> list[LatticeSum]:
    return where.layers(batch, RADII if radii is None else radii, where.norms(batch))


def batch_of(where: Coordinates, items: list[Any]) -> ArrayBatch:
    return ArrayBatch.of_records(items, where.dim, where.preprocessing.kind)


def check_one(where: Coordinates, items: list[Any], radii: list[float] | None = None) -> None:
    """Check that one record's or pair's integers are symmetric, clipped and, except matrices, PSD."""
    for layer in layers(where, batch_of(where, items), radii):
        total = layer.total
        assert np.array_equal(total, total.T)
        assert layer.clipped in (0, 1)
        if where.preprocessing.kind is RecordKind.MATRIX:
            assert sum(int(x) ** 2 for x in total.flat) <= MATRIX_RADIUS**2
            assert layer.sensitivity == 2 * MATRIX_RADIUS
            continue
        assert 0 <= sum(int(x) for x in np.diagonal(total)) <= RADIUS**2
        assert np.linalg.eigvalsh(total.astype(np.float64)).min() >= -1e-12 * RADIUS**2
        # Two of these are within sqrt(2) RADIUS**2 of each other.
        assert Fraction(layer.sensitivity) ** 2 >= 2 * RADIUS**4


numbers = st.one_of(
    st.sampled_from([0.0, TINY, -TINY, 1e-310, 1e-160, 1.0, -3.0, 1e150, HUGE, -HUGE]),
    st.floats(-1e3, 1e3),
    st.floats(allow_nan=False, allow_infinity=False),
)
rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=4)
rising = st.lists(
    st.one_of(st.floats(1e-12, 1e12), st.sampled_from([1e-70, 1.0, math.nextafter(1.0, 2), 1e70])),
    min_size=1,
    max_size=10,
    unique=True,
).map(sorted)


@pytest.mark.parametrize("how", ["own", "turned", "extreme"])
@settings(deadline=None)
@given(record=rows, radii=rising)
def test_no_record_passes_the_radius_of_any_layer(how: str, record: Any, radii: list[float]) -> None:
    check_one(coordinates(how, 3), [np.array(record)], radii)


@settings(max_examples=100, deadline=None)
@given(first=rows, second=rows, radii=rising, turn=st.booleans())
def test_no_pair_passes_the_radius_of_any_layer(
    first: Any, second: Any, radii: list[float], turn: bool
) -> None:
    check_one(coordinates("turned pairs" if turn else "pairs", 3), [np.array(first), np.array(second)], radii)


@settings(deadline=None)
@given(values=st.lists(numbers, min_size=6, max_size=6), radii=rising)
def test_no_matrix_passes_the_radius_of_any_layer(values: list[float], radii: list[float]) -> None:
    a = np.zeros((3, 3))
    a[np.triu_indices(3)] = values
    check_one(coordinates("matrix", 3), [np.triu(a) + np.triu(a, 1).T], radii)


@pytest.mark.parametrize("how", ["own", "turned", "matrix"])
@pytest.mark.parametrize("radius", RADII)
def test_records_at_a_radius_and_a_bit_off_it_are_within_every_layer(how: str, radius: float) -> None:
    """Records on both sides of an edge count nearly alike: no record gains by its layer."""
    where = coordinates(how)
    rng = utility_generator(1)
    for _ in range(50):
        x = rng.standard_normal((2, D))
        if how == "matrix":
            x = rng.standard_normal((D, D))
            x = x + x.T
        item = batch_of(where, [x])
        size = float(value_array(where.norms(item))[0])
        scale = radius / size if how == "matrix" else math.sqrt(radius / size)
        for off in (1.0, 1 - 1e-15, 1 + 1e-15, 1 - 1e-9, 1 + 1e-9):
            check_one(where, [scale * off * x])
        below, above = (layers(where, batch_of(where, [scale * f * x])) for f in (1 - 1e-9, 1 + 1e-9))
        for a, b in zip(below, above, strict=True):
            assert np.abs(a.total - b.total).max() <= (RADIUS * 0.01 if how != "matrix" else 3) * 1e3


def reference(where: Coordinates, batch: ArrayBatch, radii: list[float]) -> list[Floats]:
    """Return the sums clipped at each radius, by numpy."""
    p = where.preprocessing
    found = [np.zeros((D, D)) for _ in radii]
    read = p.apply(batch)
    for a, b in zip(read.starts[:-1], read.starts[1:], strict=True):
        f = read.rows[a:b]
        if a == b:
            continue
        f = f if where.own else f @ where.turn
        matrix = f if p.kind is RecordKind.MATRIX else f.T @ f
        size = float(np.linalg.norm(matrix)) if p.kind is RecordKind.MATRIX else float(np.trace(matrix))
        for total, radius in zip(found, radii, strict=True):
            if size > 0:
                total += matrix * min(1.0, radius / size)
    return found


def some_records(how: str, m: int, seed: int = 0, d: int = D) -> list[Any]:
    """Return records of all sizes, some of them null."""
    rng = utility_generator(seed)
    items: list[Any] = []
    for i in range(m):
        size = 10.0 ** rng.uniform(-2, 2)
        x = size * rng.standard_normal((1 if "pairs" in how else 1 + i % 3, d))
        if how == "matrix":
            x = size * rng.standard_normal((d, d))
            x = x + x.T
        items.append(None if rng.random() < 0.1 else x)
    return items


@every_way
def test_the_first_layers_add_up_to_the_clipped_sum(how: str) -> None:
    where = coordinates(how.replace("extreme", "turned"))
    m = 600
    batch = batch_of(where, some_records(how, m))
    found = layers(where, batch)
    total = np.zeros((D, D))
    at_all = reference(where, batch, RADII)
    for i, (layer, wanted) in enumerate(zip(found, at_all, strict=True)):
        total = total + layer.total * layer.unit
        # Half a unit per entry: for factors, of at most 12 entries, relative to the clip.
        error = m * RADII[i] * (2.0**-19 * math.sqrt(12) if how != "matrix" else 2.0**-26)
        assert np.abs(total - wanted).max() <= error
        (alone,) = layers(where, batch, [RADII[i]])
        assert np.abs(alone.total * alone.unit - wanted).max() <= error
        sizes = value_array(where.norms(batch))
        assert layer.clipped == np.count_nonzero(sizes > RADII[i])
        if where.own:
            by_itself = covariance_sum(batch, where.preprocessing, RADII[i])
            assert np.array_equal(alone.total, by_itself.total)
            assert layer.clipped == by_itself.clipped
    assert all(layer.sensitivity == covariance_sensitivity(where.preprocessing.kind) for layer in found)


@every_way
def test_null_records_and_zeros_add_nothing(how: str) -> None:
    where = coordinates(how)
    items = some_records(how, 100)
    step = where.preprocessing.units
    zero = np.zeros((D if how == "matrix" else 1, D))
    with_nulls: list[Any] = []
    for i in range(0, 100, step):
        with_nulls += [*items[i : i + step], *[None] * step, *[zero] * step]
    plain, nulls = (layers(where, batch_of(where, each)) for each in (items, with_nulls))
    for a, b in zip(plain, nulls, strict=True):
        assert np.array_equal(a.total, b.total)
    for nothing in ([None, zero] * 2, []):
        for layer in layers(where, batch_of(where, nothing)):
            assert not layer.total.any()
            assert layer.clipped == 0


def parts_of(where: Coordinates, batch: ArrayBatch) -> list[tuple[ArrayBatch, ...]]:
    """Return a batch split by position, and parts of picked records."""
    m, step = len(batch), where.preprocessing.granularity
    cut = m // 3 // step * step
    chosen = np.repeat(utility_generator(3).random(m // step) < 0.4, step)
    return [
        batch.split([cut, m - cut]),
        (batch.only(chosen), batch.only(~chosen)),
        (batch.keeping(chosen), batch.keeping(~chosen)),
    ]


@every_way
def test_a_batch_is_the_sum_of_its_parts_to_the_bit(how: str) -> None:
    where = coordinates(how)
    batch = batch_of(where, some_records(how, 3000, 5))
    whole = layers(where, batch)
    (alone,) = layers(where, batch, [2.0])
    for first, second in parts_of(where, batch):
        of_first, of_second = layers(where, first), layers(where, second)
        for a, b, c in zip(whole, of_first, of_second, strict=True):
            assert np.array_equal(a.total, b.total + c.total)
            assert a.clipped == b.clipped + c.clipped
        of_parts = sum(layers(where, part, [2.0])[0].total for part in (first, second))
        assert np.array_equal(alone.total, of_parts)


@pytest.mark.parametrize("how", HOWS)
def test_threads_change_no_bit(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take shares of 7 records; floats hold fewer records at a time than there are."""
    where = coordinates(how)
    batch = batch_of(where, some_records(how, 9001 - 1, 6))
    step = where.preprocessing.granularity
    picked = batch.only(np.arange(len(batch)) // step % 9 < 4)
    found = []
    monkeypatch.setattr("streaming_pca.estimators.common.clipped_sums.worth_a_thread", lambda *_: 7)
    for count in (1, 2, 3):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        sums = [*layers(where, picked), *layers(where, batch, [2.0])]
        found.append([value_array(where.norms(picked)).tobytes(), *(s.total.tobytes() for s in sums)])
    assert found[0] == found[1] == found[2]


@every_way
def test_a_size_is_that_of_its_record_alone(how: str) -> None:
    where = coordinates(how)
    items = some_records(how, 200, 8)
    step = where.preprocessing.units
    together = value_array(where.norms(batch_of(where, items)))
    parts = [batch_of(where, items[i : i + step]) for i in range(0, 200, step)]
    assert together.tolist() == [float(value_array(where.norms(part))[0]) for part in parts]


@pytest.mark.parametrize("how", ["own", "turned", "extreme"])
@pytest.mark.parametrize("value", [HUGE, 1e200, 1e-170, TINY])
def test_sizes_at_the_ends_of_floats_are_no_nan(how: str, value: float) -> None:
    where = coordinates(how)
    batch = batch_of(where, [np.full((r, D), value) for r in (1, 2, 3)] + [np.eye(1, D) * value, None])
    with np.errstate(all="raise"):
        sizes = value_array(where.norms(batch))
        layers(where, batch)
    assert not np.isnan(sizes).any()
    assert (sizes >= 0).all()


def test_records_beyond_floats_squares_are_clipped_to_every_radius() -> None:
    where = coordinates("own")
    for layer in layers(where, batch_of(where, [1e200 * np.eye(1, D)])):
        assert layer.total[0, 0] == RADIUS**2


def test_coordinates_must_be_a_finite_square() -> None:
    p = Preprocessing(dim=3, centering="none")
    bad = np.eye(3)
    bad[1, 1] = math.inf
    for turn in (bad, np.eye(2), np.ones((3, 2))):
        with pytest.raises(ValueError, match="coordinates must be a finite matrix of 3 x 3"):
            Coordinates(p, turn)
    with pytest.raises(ValueError, match="no other coordinates"):
        Coordinates(Preprocessing(dim=3, kind=RecordKind.MATRIX, centering="none"), np.eye(3))


@pytest.mark.parametrize("radii", [[1.0, 1.0], [2.0, 1.0], [0.0, 1.0], [-1.0], [1.0, math.nan]])
def test_radii_must_rise(radii: list[float]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        layers(coordinates("own"), ArrayBatch.of_vectors(np.ones((2, D))), radii)
