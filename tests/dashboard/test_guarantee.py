"""The guarantee in words gives its claim and its unit, with the stream's numbers; nothing more."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from streaming_pca.dashboard.guarantee import guarantee_in_words
from streaming_pca.dashboard.models import Health, StreamDetail


def detail(**changes: Any) -> StreamDetail:
    fields: dict[str, Any] = {
        "name": "flights",
        "input": "flight-records",
        "estimator": "adaptive",
        "dim": 5,
        "rank": 2,
        "private": True,
        "epsilon": 0.5,
        "delta": 1e-6,
        "privacy_unit": "message",
        "health": Health(level="ok"),
        "guarantee": [],
        "adjacency": "replace-one",
        "local": False,
    }
    return StreamDetail(**(fields | changes))


def words(**changes: Any) -> str:
    return " ".join(guarantee_in_words(detail(**changes)))


def test_all_releases_together_for_each_message() -> None:
    said = words()
    assert "All releases of this stream together, past and future" in said
    assert "(0.5, 1e-06)-differentially private for each message" in said
    assert "at most 1.649 times as likely" in said
    assert "Delta = 1e-06" in said
    assert "Other streams that read topic flight-records" in said
    assert "several messages has this guarantee for each of them" in said
    for uncovered in ("times of batches", "computed from the records", "backups", "duration"):
        assert uncovered in said.partition("Not covered:")[2]


def test_the_unit_is_the_row_or_the_user() -> None:
    said = words(privacy_unit="row")
    assert "for each row of a message" in said
    assert "number of rows of a message is public" in said
    said = words(privacy_unit="user", contributions_per_user=3)
    assert "all messages with the same key" in said
    assert "at most 3 batches" in said
    assert "for all of these together" in said
    assert "at most one batch," in words(privacy_unit="user", contributions_per_user=1)


def test_without_a_guarantee_nothing_is_said_to_hold() -> None:
    first, *rest = guarantee_in_words(detail(private=False, epsilon=None, delta=None, adjacency="none"))
    assert first.startswith("NOT private")
    assert "guarantee nothing" in first
    assert not re.search("epsilon|delta|differentially", " ".join(rest), re.IGNORECASE)


def test_reports_are_private_before_they_are_sent() -> None:
    said = words(local=True)
    assert "before it is sent" in said
    assert "No service is trusted" in said
    assert "several reports" in said
    assert "readers of the input topic, of the state topic" not in said
    assert "All releases" not in said


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 3.3, 6.9, 6.91, 10.0, 50.0])
def test_the_factor_is_no_smaller_than_it_is(epsilon: float) -> None:
    said = re.search(r"at most (1 \+ )?([\d.,e+-]+) times", words(epsilon=epsilon))
    assert said is not None, words(epsilon=epsilon)
    factor = float(said[2].replace(",", "")) + (1 if said[1] else 0)
    assert math.exp(epsilon) <= factor * (1 + 1e-12)
    assert factor <= math.exp(epsilon) * 1.011 + 1e-6


def test_absurd_numbers_have_words_too() -> None:
    assert "bounds next to nothing" in words(epsilon=1e12)
    assert "1e-300" in words(delta=1e-300)


@pytest.mark.parametrize("changes", [{}, {"privacy_unit": "user"}, {"local": True}, {"private": False}])
def test_each_part_is_a_sentence_or_two(changes: dict[str, Any]) -> None:
    for part in guarantee_in_words(detail(**changes)):
        assert part[0].isupper()
        assert part.endswith(".")
        assert "\n" not in part
        assert len(part) < 330, part
