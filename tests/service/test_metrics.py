"""Gauges of budgets agree with the filter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Outcome
from streaming_pca.privacy.ledger.entries import Cap, OffsetRange, Opened, Reserved
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.metrics import Metrics, StreamMetrics
from streaming_pca.service.projection.worker import ProjectionMetrics
from tests.data.test_release import ACCURATE, accurate, counted, of_a_tensor

PROMISE = {"epsilon": 0.5, "delta": 1e-300, "privacy_unit": "message"}
NOT_PRIVATE = {"private": False, "privacy_unit": "message"}


def shown(filter: str, cap: tuple[str, str], *charges: tuple[int, int, Charge]) -> dict[str, float]:
    """Return the gauges for a ledger with jobs that each charged offsets of partition 0."""
    ledger, (epsilon, delta) = Ledger("id"), cap
    opened: Any = {"topic": "t", "cap": Cap(epsilon=epsilon, delta=delta), "filter": filter}
    ledger.apply(Opened(topic_id="id", **opened))
    for number, (start, end, charge) in enumerate(charges):
        job = f"job{number}"
        how = {
            "ranges": (OffsetRange(partition=0, start=start, end=end, count=end - start),),
            "promise": NOT_PRIVATE if charge == Charge.unbounded() else PROMISE,
            "parameters": {"mechanism": "private-oja", "sigma_over_sensitivity": 1000.0},
        }
        entry = Reserved(topic_id="id", job=job, batch=1, previous=ledger.job(job).head, charge=charge, **how)
        assert ledger.apply(entry).accepted
    metrics = Metrics()
    StreamMetrics(metrics, "s").show_ledger(ledger, 1 + len(charges))
    families = text_string_to_metric_families(metrics.text().decode())
    return {s.name.removeprefix("streaming_pca_"): s.value for f in families for s in f.samples}


def lines_of(metrics: Metrics, *begins: str) -> list[str]:
    """Return the lines of series that begin with one of these words, without the prefix."""
    lines = [line.removeprefix("streaming_pca_") for line in metrics.text().decode().splitlines()]
    return [line for line in lines if line.startswith(begins)]


def charge(epsilon: str, delta: str = "1e-300", rho: str | None = None) -> Charge:
    return Charge(epsilon=epsilon, delta=delta, rho=rho)


def test_the_largest_charge_of_any_record_is_shown() -> None:
    found = shown("basic", ("3", "1e-6"), (0, 10, charge("1", "1e-7")), (5, 20, charge("1/2", "1e-7")))
    assert (found["charged_epsilon"], found["remaining_epsilon"]) == (1.5, 1.5)
    assert math.isclose(found["charged_delta"], 2e-7)
    assert math.isclose(found["remaining_delta"], 8e-7)
    assert found["ledger_entries"] == 3


def test_each_series_belongs_to_a_metric_of_the_reference() -> None:
    """Otherwise a `_created` series of each counter and histogram is listed nowhere."""
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    metrics = Metrics()
    StreamMetrics(metrics, "s").count_batch("committed", 5)
    families = list(text_string_to_metric_families(metrics.text().decode()))
    assert len(families) > 10
    for family in families:
        name = family.name + "_total" * (family.type == "counter")
        assert f"| `{name}` |" in page
        known = {name, *(f"{name}_{part}" for part in ("bucket", "sum", "count"))}
        assert {sample.name for sample in family.samples} <= known
    projection = ProjectionMetrics("s")
    assert b"_created" not in projection.text()


def test_nothing_is_charged_at_first() -> None:
    found = shown("basic", ("inf", "1"))
    assert (found["charged_epsilon"], found["remaining_epsilon"]) == (0, math.inf)


def test_under_zcdp_the_largest_rho_is_shown_whatever_the_epsilons_are() -> None:
    found = shown("zcdp", ("10", "1e-6"), (0, 5, charge("2", rho="1/100")), (5, 9, charge("1", rho="1")))
    expected = 1 + 2 * math.sqrt(-math.log(1e-6))
    assert math.isclose(found["charged_epsilon"], expected)
    assert math.isclose(found["remaining_epsilon"], 10 - expected)


@pytest.mark.parametrize("delta", ["1e-400", "1", "0"])
def test_a_cap_that_no_float_holds_is_no_error(delta: str) -> None:
    found = shown("zcdp", ("100", delta), *([] if delta == "0" else [(0, 5, charge("1", rho="1/100"))]))
    assert 0 <= found["charged_epsilon"] < 100


def test_an_infinite_charge_leaves_infinity_under_an_infinite_cap() -> None:
    for rule in ("basic", "zcdp"):
        found = shown(rule, ("inf", "inf"), (0, 5, Charge.unbounded()))
        names = ("charged_epsilon", "charged_delta", "remaining_epsilon", "remaining_delta")
        assert [found[name] for name in names] == [math.inf] * 4, rule


def test_outcomes_are_counted_as_releases_tell_them() -> None:
    metrics = Metrics()
    stream, other = StreamMetrics(metrics, "s"), StreamMetrics(metrics, "other")
    other.show_release(Release(**accurate()))
    assert b"batch_outcomes_total{" not in metrics.text()
    for outcome in ("no-scale", "learnt", "learnt"):
        stream.show_release(Release(**accurate(version=3, outcome=outcome)))
        stream.count_release(None, outcome)
    counts = {"learnt": 2.0, "no-scale": 1.0, "no-gap": 0.0, "too-few-records": 0.0}
    assert counts.keys() == set(Outcome)
    expected = {
        f'batch_outcomes_total{{outcome="{name}",stream="s"}} {count}' for name, count in counts.items()
    }
    assert set(lines_of(metrics, "batch_outcomes_total{")) == expected


def test_no_process_metrics_are_shown() -> None:
    assert not [name for name in shown("basic", ("1", "1")) if name.startswith(("process_", "python_"))]


def test_noisy_counts_are_shown_with_their_error_once_there_are_any() -> None:
    metrics = Metrics()
    stream = StreamMetrics(metrics, "s")
    names = ("batch_null", "batch_counts", "batch_clipped")
    assert not any(name.encode() in metrics.text() for name in names[:2])
    stream.set_noisy_counts(Release(**counted(null_records=-3.0)), 299)
    stream.set_noisy_counts(Release(**counted(null_records=5.0, clipped_records=-1.0)), 299)
    values = {"null_records": 5, "clipped_records": -1, "clipped_of": 2200}
    values |= {"counts_error": 299, "counts_standard_error": 10, "counts_records": 2200}
    expected = {f'batch_{name}{{stream="s"}} {float(value)}' for name, value in values.items()}
    assert expected <= set(lines_of(metrics, *names))


def test_what_a_release_says_of_itself_is_shown_until_another_says_nothing() -> None:
    metrics = Metrics()
    stream, other = StreamMetrics(metrics, "s"), StreamMetrics(metrics, "other")
    series = ("angle_bound_radians{", "total_variance{", "total_variance_error{")
    assert lines_of(metrics, *series) == []
    stream.show_release(Release(**accurate(angle_bound=0.25)))
    other.show_release(Release(**accurate(total_variance=None, total_variance_error=None)))
    of_other = f'angle_bound_radians{{stream="other"}} {ACCURATE["angle_bound"]}'
    assert set(lines_of(metrics, *series)) == {
        'angle_bound_radians{stream="s"} 0.25',
        'total_variance{stream="s"} -0.5',
        f'total_variance_error{{stream="s"}} {ACCURATE["total_variance_error"]}',
        of_other,
    }
    stream.show_release(Release(**accurate(version=1, **dict.fromkeys(ACCURATE))))
    assert lines_of(metrics, *series) == [of_other]


def test_each_component_of_a_subspace_has_its_variance_and_a_tensor_has_none() -> None:
    metrics = Metrics()
    subspace = accurate(rank=2, components=[[1.0, 0.0], [0.0, 1.0]], dim=2)
    subspace |= {"explained_variance": [2.0, -0.5], "explained_variance_error": [0.1, 0.1]}
    StreamMetrics(metrics, "s").show_release(Release(**subspace))
    StreamMetrics(metrics, "t").show_release(Release(**of_a_tensor()))
    assert lines_of(metrics, "explained_variance{") == [
        'explained_variance{component="1",stream="s"} 2.0',
        'explained_variance{component="2",stream="s"} -0.5',
    ]
