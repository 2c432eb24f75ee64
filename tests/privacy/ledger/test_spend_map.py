from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.privacy.ledger.spend_map import SpendMap
from streaming_pca.privacy.parameters import Charge

LAST = 24
Steps = list[tuple[int, int, Charge]]


def charge(epsilon: object, rho: object = None) -> Charge:
    return Charge(epsilon=epsilon, delta=0, rho=rho)


charges = st.sampled_from(
    [charge(1), charge(2), charge("1/3"), charge(1, 1), Charge.nothing(), charge(0), Charge.unbounded()]
)
additions = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, LAST), charges), max_size=12)


def both(steps: Steps) -> tuple[SpendMap, dict[int, Charge]]:
    spend, naive = SpendMap(), {offset: Charge.nothing() for offset in range(-1, LAST + 2)}
    for start, end, cost in steps:
        spend.add(start, end, cost)
        for offset in range(start, end):
            naive[offset] = naive[offset] + cost
    return spend, naive


@settings(deadline=None)
@given(additions)
def test_every_offset_bears_what_a_naive_sum_says(steps: Steps) -> None:
    spend, naive = both(steps)
    assert {offset: spend.at(offset) for offset in naive} == naive


@settings(deadline=None)
@given(additions, st.integers(0, LAST), st.integers(0, LAST))
def test_over_names_exactly_the_charges_that_occur(steps: Steps, start: int, end: int) -> None:
    spend, naive = both(steps)
    found = spend.over(start, end)
    expected = [naive[offset] for offset in range(start, end)]
    runs = [c for i, c in enumerate(expected) if i == 0 or expected[i - 1] != c]
    assert found == runs


@settings(deadline=None)
@given(additions)
def test_intervals_are_the_longest_runs_of_equal_charges(steps: Steps) -> None:
    spend, naive = both(steps)
    runs: list[tuple[int, int, Charge]] = []
    for offset in range(LAST + 1):
        cost = naive[offset]
        if cost == Charge.nothing():
            continue
        if runs and runs[-1][1:] == (offset, cost):
            runs[-1] = (runs[-1][0], offset + 1, cost)
        else:
            runs.append((offset, offset + 1, cost))
    assert list(spend.intervals()) == runs


@settings(deadline=None)
@given(additions, st.randoms(use_true_random=False))
def test_the_order_of_charges_does_not_matter(steps: Steps, random: object) -> None:
    shuffled = list(steps)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert both(steps)[0] == both(shuffled)[0]


def test_an_empty_range_and_a_free_mechanism_charge_nothing() -> None:
    spend = SpendMap()
    spend.add(3, 3, charge(1))
    spend.add(5, 4, charge(1))
    spend.add(0, 9, Charge.nothing())
    assert spend == SpendMap()
    assert spend.over(3, 3) == []
