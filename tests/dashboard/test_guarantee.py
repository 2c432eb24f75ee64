"""The guarantee in words gives its claim and its unit, with the stream's numbers; nothing more."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from streaming_pca.dashboard.guarantee import guarantee_in_words
from streaming_pca.dashboard.models import Health, StreamDetail
from streaming_pca.dashboard.observing.streams import _claim
from tests.dashboard.offline import Offline, made_offline


def detail(**changes: Any) -> StreamDetail:
    fields: dict[str, Any] = {"name": "flights", "input": "flight-records", "estimator": "adaptive"}
    fields |= {"dim": 5, "rank": 2, "private": True, "epsilon": 0.5, "delta": 1e-6, "local": False}
    fields |= {"privacy_unit": "message", "adjacency": "replace-one", "guarantee": []}
    return StreamDetail(health=Health(level="ok"), **(fields | changes))


def words(**changes: Any) -> str:
    return " ".join(guarantee_in_words(detail(**changes)))


NONE = {"private": False, "epsilon": None, "delta": None, "adjacency": "none"}


@pytest.mark.parametrize(
    ("changes", "claims"),
    [
        (
            {},
            [
                "All releases of this stream together, past and future",
                "(0.5, 1e-06)-differentially private for each message",
                "at most 1.649 times as likely",
                "Delta = 1e-06",
                "Other streams that read topic flight-records",
                "several messages has this guarantee for each of them",
            ],
        ),
        ({"privacy_unit": "row"}, ["for each row of a message", "number of rows of a message is public"]),
        (
            {"privacy_unit": "user", "contributions_per_user": 3},
            ["all messages with the same key", "at most 3 batches", "for all of these together"],
        ),
        ({"privacy_unit": "user", "contributions_per_user": 1}, ["at most one batch,"]),
        (
            {"privacy_unit": "user", "user_field": "rider.{id}"},
            ["for each user: all messages with the same rider.{id}."],
        ),
        ({"local": True}, ["before it is sent", "No service is trusted", "several reports"]),
        (NONE, ["NOT private", "guarantee nothing"]),
        ({"epsilon": 1e12}, ["bounds next to nothing"]),
        ({"delta": 1e-300}, ["1e-300"]),
    ],
    ids=["message", "row", "user", "user once", "field", "local", "none", "huge epsilon", "tiny delta"],
)
def test_the_guarantee_names_its_claim_and_unit(changes: dict[str, Any], claims: list[str]) -> None:
    for claim in claims:
        assert claim in words(**changes)


def test_limits_are_named_and_other_guarantees_are_not() -> None:
    for uncovered in ("times of batches", "computed from the records", "backups", "duration"):
        assert uncovered in words().partition("Not covered:")[2]
    assert not re.search("readers of the input topic, of the state topic|All releases", words(local=True))
    first, *rest = guarantee_in_words(detail(**NONE))
    assert first.startswith("NOT private")
    assert not re.search("epsilon|delta|differentially", " ".join(rest), re.IGNORECASE)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 3.3, 6.9, 6.91, 10.0, 50.0])
def test_the_factor_is_no_smaller_than_it_is(epsilon: float) -> None:
    match = re.search(r"at most (1 \+ )?([\d.,e+-]+) times", words(epsilon=epsilon))
    assert match is not None, words(epsilon=epsilon)
    factor = float(match[2].replace(",", "")) + (1 if match[1] else 0)
    assert math.exp(epsilon) <= factor * (1 + 1e-12)
    assert factor <= math.exp(epsilon) * 1.011 + 1e-6


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "several messages has this guarantee for each"),
        ({"privacy_unit": "row"}, "several rows or messages has this guarantee for each"),
        ({"privacy_unit": "user", "contributions_per_user": 3}, "counts in at most 3 batches"),
        ({"local": True}, "several reports spends it for each"),
    ],
    ids=["message", "row", "user", "local"],
)
def test_three_sentences_give_claim_meaning_and_limit(changes: dict[str, Any], limit: str) -> None:
    """The pages show these three, and fold the rest."""
    claim, meaning, several = guarantee_in_words(detail(**changes))[:3]
    assert "(0.5, 1e-06)-differentially private" in claim
    assert "can hardly distinguish" in meaning
    assert limit in several
    for sentence in (claim, meaning, several):
        assert not re.search(r"[.!?] ", sentence), sentence


@pytest.mark.parametrize("changes", [{}, {"privacy_unit": "user"}, {"local": True}, {"private": False}])
def test_each_part_is_a_sentence_or_two(changes: dict[str, Any]) -> None:
    for part in guarantee_in_words(detail(**changes)):
        assert part[0].isupper()
        assert part.endswith(".")
        assert "\n" not in part
        assert len(part) < 330, part


@pytest.mark.parametrize(
    ("ours", "setting"),
    [
        ({"epsilon": 0.1}, "stream.epsilon is 0.1, but the ledger has 1.0"),
        ({"privacy_unit": "user", "contributions_per_user": 1}, "stream.privacy_unit is 'user'"),
    ],
    ids=["epsilon", "unit"],
)
def test_the_guarantee_is_the_ledger_s_where_settings_differ(ours: dict[str, Any], setting: str) -> None:
    theirs, made = made_offline("s", epsilon=1.0), made_offline("s", **({"epsilon": 1.0} | ours))
    offline, theirs.head = Offline(made), made.head
    offline.take(theirs.made_messages(3))
    offline.stand(at=0.0, waiting={})
    found = offline.observer.stream("s")
    claim = "are (1, 1e-06)-differentially private for each message, with all its rows."
    assert guarantee_in_words(found)[0].endswith(claim)
    assert found.health.level == "problem"
    assert found.problem is not None
    assert found.problem.startswith(setting)


@pytest.mark.parametrize(
    ("changes", "claims"),
    [
        ({}, (True, 0.5, 1e-6)),
        ({"epsilon": "1/2"}, (True, 0.5, 1e-6)),
        ({"private": False, "epsilon": "inf"}, (False, None, None)),
        *(({"epsilon": wrong}, (False, None, None)) for wrong in ("much", None, [1], {}, "1" * 10_000)),
    ],
    ids=repr,
)
def test_numbers_that_cannot_be_read_promise_nothing(
    changes: dict[str, Any], claims: tuple[Any, ...]
) -> None:
    contract = {"privacy_unit": "message", "epsilon": 0.5, "delta": 1e-6} | changes
    found = _claim(contract)
    assert (found["private"], found["epsilon"], found["delta"]) == claims
