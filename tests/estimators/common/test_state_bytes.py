"""Every bit of a state survives encoding to bytes, and a foreign state is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.estimators.base import State
from streaming_pca.estimators.common.state import decode_state, encode_state, state_values


@dataclass(frozen=True)
class Inner:
    a: float
    b: NDArray[np.float64]
    c: float | None = None
    d: float = 0.25


@dataclass(frozen=True)
class Outer(State):
    a: float
    b: float
    c: float | None
    d: str
    e: NDArray[np.float64]
    f: NDArray[np.float64] | None
    one: Inner
    other: Inner = field(default_factory=lambda: Inner(1.0, np.zeros(2)))


STATE = Outer(
    1,
    2**60,
    0.1,
    math.inf,
    None,
    "0x1p3",
    np.array([[-0.0, np.nan], [1, 5e-324]]).T,
    None,
    Inner(math.nan, np.array([0.1])),
    Inner(-0.0, np.zeros((0, 3)), 1e-300, 1 / 3),
)


def test_every_bit_comes_back() -> None:
    again = decode_state(Outer, encode_state(STATE))
    before, after = state_values(STATE), state_values(again)
    assert before.keys() == after.keys() > {"a", "one.a", "other.b"}
    for name, value in before.items():
        assert type(after[name]) is type(value), name
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape, value.tobytes()) == (
                after[name].dtype,
                after[name].shape,
                after[name].tobytes(),
            )
        else:
            assert repr(after[name]) == repr(value), name
    assert encode_state(again) == encode_state(STATE)


@dataclass(frozen=True)
class Shorter(State):
    a: float
    one: Inner


@dataclass(frozen=True)
class Flat(State):
    a: float
    one: float


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (STATE, Shorter),
        (Shorter(0, 0, 1.0, STATE.one), Outer),
        (Shorter(0, 0, 1.0, STATE.one), Flat),
        (Flat(0, 0, 1.0, 2.0), Shorter),
    ],
    ids=["more", "fewer", "nested for a number", "a number for nested"],
)
def test_the_bytes_of_another_state_are_refused(state: State, kind: type[State]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        decode_state(kind, encode_state(state))


@dataclass(frozen=True)
class Part:
    c: float = 0.5


def test_values_that_a_later_release_added_take_their_defaults() -> None:
    @dataclass(frozen=True)
    class Before(State):
        a: float

    @dataclass(frozen=True)
    class After(Before):
        b: float = 0.25
        part: Part = Part()

    assert decode_state(After, encode_state(Before(1, 2, 0.1))) == After(1, 2, 0.1, 0.25, Part())
