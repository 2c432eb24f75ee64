"""The batch that fills, from counts and times alone; no broker is needed."""

from __future__ import annotations

from typing import Any

import pytest

from streaming_pca.dashboard.models import NextBatch
from streaming_pca.privacy.ledger.entries import Charged, OffsetRange, OffsetSpan, Paused, Reserved, Resumed
from streaming_pca.privacy.parameters import Charge
from tests.dashboard.offline import Offline, made_offline
from tests.dashboard.streams import PARAMETERS

GROWING = {"n_records": 2800, "n_batches": 3, "growth": 2.0}
"""Batches of 400, 800 and 1,600 records."""


def watched(options: dict[str, Any] = GROWING, **stream: Any) -> Offline:
    return Offline(made_offline("flights", options=options, **stream))


def next_batch(offline: Offline) -> NextBatch | None:
    return offline.observer.stream("flights").next_batch


def reserved(offline: Offline, batch: int, count: int) -> Reserved:
    made = offline.streams["flights"]
    own = {"topic_id": made.topic_id, "job": "flights", "batch": batch, "previous": made.head}
    how = {"parameters": PARAMETERS, "charge": Charge(epsilon="1", delta="1e-6")}
    ranges = (OffsetRange(partition=0, start=0, end=count, count=count),)
    return Reserved(**own, ranges=ranges, promise=made.settings.stream.privacy_contract, **how)


def test_a_batch_fills_with_the_records_that_no_batch_has_read() -> None:
    offline = watched()
    assert next_batch(offline) is None
    offline.stand(0.0, {"flights": 150})
    assert next_batch(offline) == NextBatch(planned=400, waiting=150)
    offline.stand(2.0, {"flights": 450})
    assert next_batch(offline) == NextBatch(planned=400, waiting=400)


@pytest.mark.parametrize("read", [None, 0, 400])
def test_while_a_worker_learns_the_batch_after_it_fills(read: int | None) -> None:
    """Its group has read the batch's records only after the commit."""
    offline = watched()
    offline.append("flights", reserved(offline, 1, 400))
    offline.stand(0.0, {"flights": 50}, read=read)
    assert next_batch(offline) == NextBatch(planned=800, waiting=50)


def test_the_rate_is_that_of_the_topic_whatever_the_worker_reads() -> None:
    offline = watched()
    for second in range(0, 20, 2):
        offline.stand(float(second), {"flights": 15 * second})
    offline.append("flights", reserved(offline, 1, 270))
    offline.stand(20.0, {"flights": 30})
    assert next_batch(offline) == NextBatch(planned=800, waiting=30, per_second=15.0)


def test_a_forecast_ends_when_nothing_has_arrived_for_longer_than_it_predicts() -> None:
    offline = watched()
    rates: list[float | None] = []
    for second in range(0, 122, 2):
        # At 18 seconds 130 records are missing: 13 seconds at the rate so far.
        offline.stand(float(second), {"flights": 90 + 10 * min(second, 18)})
        found = next_batch(offline)
        assert found is not None
        rates.append(found.per_second)
    assert rates[9] == 10.0
    assert all(rates[9:16])
    # For most of two minutes the next record may only be late.
    assert set(rates[16:45]) == {None}
    assert set(rates[45:]) == {0.0}
    offline.stand(122.0, {"flights": 280})
    found = next_batch(offline)
    assert found is not None
    assert found.per_second


def test_the_first_minute_between_rare_records_is_not_a_pause() -> None:
    offline = watched()
    rates = []
    for second in range(0, 240, 2):
        offline.stand(float(second), {"flights": 20 + (max(second, 20) - 20) // 25})
        found = next_batch(offline)
        assert found is not None
        rates.append(found.per_second)
    assert 0.0 not in rates
    assert rates[-1] == pytest.approx(0.04, rel=0.2)


def test_no_batch_fills_while_a_stream_is_paused() -> None:
    offline = watched()
    own = {"topic_id": offline.streams["flights"].topic_id, "job": "flights"}
    head = offline.streams["flights"].head
    offline.append("flights", Paused(**own, previous=head, reason="broker upgrade"))
    offline.stand(0.0, {"flights": 150})
    assert next_batch(offline) is None
    offline.append("flights", Resumed(**own, previous=offline.streams["flights"].head, reason="done"))
    offline.stand(2.0, {"flights": 150})
    assert next_batch(offline) == NextBatch(planned=400, waiting=150)


def test_settings_that_allow_no_batch_do_not_hide_other_streams() -> None:
    options = {"clip_radius": 3.0, "batch_size": 4096}
    noisy = made_offline("noisy", estimator="output-perturbation", epsilon=1e-9, options=options)
    offline = Offline(noisy, made_offline("flights", options=GROWING))
    offline.stand(0.0, {"noisy": 10, "flights": 150})
    assert offline.observer.stream("noisy").next_batch is None
    assert next_batch(offline) == NextBatch(planned=400, waiting=150)


@pytest.mark.parametrize(("unit", "level"), [("message", "problem"), ("user", "ok")])
def test_null_messages_of_users_are_not_a_problem(unit: str, level: str) -> None:
    offline = watched(privacy_unit=unit)
    offline.publish("flights", 1, null_records=90.0)
    offline.stand(0.0, {"flights": 150})
    health = offline.observer.stream("flights").health
    assert (health.level, len(health.reasons)) == (level, 1)


def test_a_stream_shows_the_field_that_names_its_users() -> None:
    features = [{"name": "speed", "bounds": [0, 9]}, {"name": "length", "bounds": [0, 9]}]
    offline = watched(privacy_unit="user", dim=2, rank=1, features=features, user_field="rider.id")
    assert offline.observer.stream("flights").user_field == "rider.id"
    assert watched().observer.stream("flights").user_field is None


def test_a_stream_without_a_leader_names_the_group_of_its_workers() -> None:
    offline = watched()
    offline.stand(0.0, {"flights": 150}, led=False)
    (reason,) = offline.observer.stream("flights").health.reasons
    assert reason.startswith("No worker of group 'workers-flights' leads it. 150 offsets wait.")


def levels(offline: Offline, waiting: int, seconds: range) -> list[str]:
    """Return the level of health at each second, a batch's records waiting."""
    found = []
    for second in seconds:
        offline.stand(float(second), {"flights": waiting})
        found.append(offline.observer.stream("flights").health.level)
    return found


def test_a_batch_that_fills_needs_no_attention_and_a_full_one_does_after_a_minute() -> None:
    options = {"n_records": 100_000, "n_batches": 100, "growth": 1.0}
    offline = watched(options)
    # Their releases are weeks old, a minute apart.
    offline.publish("flights", 4)
    assert set(levels(offline, 999, range(0, 600, 10))) == {"ok"}
    assert levels(offline, 1000, range(600, 670, 10)) == ["ok"] * 6 + ["warning"]
    # A release starts the minute again.
    offline.publish("flights", 1)
    assert levels(offline, 1000, range(670, 740, 10)) == ["ok"] * 6 + ["warning"]


def test_a_batch_that_closes_early_is_late_after_its_wait() -> None:
    options = {"n_records": 100_000, "n_batches": 100, "growth": 1.0}
    offline = watched(options, max_wait_seconds=120.0)
    offline.publish("flights", 4)
    # The last batch had 100 records: as many can close after two minutes, and are late a minute later.
    assert set(levels(offline, 99, range(0, 600, 10))) == {"ok"}
    assert levels(offline, 100, range(600, 790, 10)) == ["ok"] * 18 + ["warning"]


def test_an_allowed_batch_and_a_refused_one_differ_in_the_budget() -> None:
    first = made_offline("first", input="shared")
    second = made_offline("second", input="shared")
    offline = Offline(first, second)
    offline.publish("first", 2)
    offline.stand(0.0, {"first": 150})
    for name, allowed in (("first", True), ("second", False)):
        budget = offline.observer.stream(name).budget
        assert budget is not None
        assert (budget.spent_share, budget.allows_next) == (1.0, allowed)
    (reason,) = offline.observer.stream("second").health.reasons
    # A paused stream charges nothing.
    own = {"topic_id": second.topic_id, "job": "second"}
    offline.append("second", Paused(**own, previous=second.head, reason="broker upgrade"))
    offline.stand(2.0, {"first": 150})
    after = offline.observer.stream("second").budget
    assert after is not None
    assert after.allows_next
    assert reason.endswith('begin after them with `stream.start = "latest"`')


def shared() -> Offline:
    """Return two streams of one topic: the first has charged 200 records."""
    offline = Offline(
        made_offline("first", input="shared"), made_offline("second", input="shared", options=GROWING)
    )
    offline.publish("first", 2)
    return offline


def is_allowed(offline: Offline, name: str) -> bool:
    """Return whether a stream shows that the cap allows its next batch, in its budget and its health."""
    shown = offline.observer.stream(name)
    assert shown.budget is not None
    refused = [reason for reason in shown.health.reasons if "does not allow its next batch" in reason]
    assert shown.budget.allows_next == (not refused)
    return not refused


def test_charged_records_that_retention_deleted_are_no_obstacle() -> None:
    offline = shared()
    offline.stand(0.0, {"first": 150}, first=199)
    assert not is_allowed(offline, "second")
    offline.stand(2.0, {"first": 150}, first=200)
    assert is_allowed(offline, "second")


def test_charged_records_beyond_the_next_batch_are_not_announced() -> None:
    offline = shared()
    made = offline.streams["second"]
    own = {"topic_id": made.topic_id, "job": "by hand", "previous": made.head, "reason": "x"}
    whole = Charge(epsilon="1", delta="1e-6")
    offline.append(
        "second", Charged(**own, ranges=(OffsetSpan(partition=0, start=600, end=700),), charge=whole)
    )
    # Its batch of 400 records begins at 200.
    offline.stand(0.0, {"first": 10_000}, first=200)
    assert is_allowed(offline, "second")
    offline.stand(2.0, {"first": 10_000}, first=201)
    assert not is_allowed(offline, "second")


def test_a_stream_that_will_begin_at_the_latest_records_waits_for_none() -> None:
    offline = Offline(
        made_offline("first", input="shared"), made_offline("second", input="shared", start="latest")
    )
    offline.publish("first", 2)
    offline.stand(0.0, {"first": 150})
    shown = offline.observer.stream("second")
    assert shown.lag is not None
    assert shown.lag.total == 0
    assert shown.budget is not None
    assert shown.budget.allows_next
    assert "budget" not in " ".join(shown.health.reasons)
