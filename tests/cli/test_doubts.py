"""Library, commands and dashboard show the same texts about doubts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streaming_pca.admin import broker_status
from streaming_pca.admin.watch import advice_on
from streaming_pca.cli import common, watch
from streaming_pca.config.settings import StreamSettings
from streaming_pca.dashboard.models import DoubtAdvice
from streaming_pca.dashboard.observing.health import Facts, judge
from streaming_pca.dashboard.observing.releases import ReleaseHistory
from streaming_pca.data.release import Release
from streaming_pca.estimators.remedies import Advice, Situation, advise
from streaming_pca.estimators.warnings import ReleaseWarning
from tests.cli.test_watch import DOUBTFUL, release

Capture = pytest.CaptureFixture[str]


def settings(**changes: Any) -> StreamSettings:
    values = {"name": "s", "input": "in", "dim": 3, "rank": 2, "epsilon": 1.0, "delta": 1e-6}
    return StreamSettings(**values | {"estimator": "analyze-gauss"} | changes)


def doubted(**changes: Any) -> Release:
    doubts = tuple(doubt.value for doubt in ReleaseWarning if doubt is not ReleaseWarning.NO_RECORDS)
    values = DOUBTFUL | {"version": 7, "centering": "auto", "doubts": doubts, "dominant_feature": 1}
    return release(1, **(values | changes))


@pytest.mark.parametrize(
    ("stream", "changes"),
    [
        ({}, {}),
        ({"bounds": [-1, 1], "scale": 2.0}, {"bounds": (-1.0, 1.0), "scale": 2.0}),
        ({"centering": "none"}, {"centering": "none"}),
        ({"options": {"half_life": 100}}, {}),
    ],
)
def test_every_place_shows_the_same_lines(
    stream: dict[str, Any], changes: dict[str, Any], capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common.out, "_width", 400)
    configured, found = settings(**stream), doubted(**changes)
    advice = advice_on(found, configured)
    assert advice is not None
    lines = advice.lines
    assert ("already given: public bounds" in lines[-1]) == ("bounds" in stream)
    assert ("- more records" in lines) == ("options" not in stream)

    watch._print_release(SimpleNamespace(release=found, principal_angle=None), False, configured)  # type: ignore[arg-type]
    shown = [line.strip().removeprefix("doubtful: ") for line in capfd.readouterr().out.splitlines()]
    assert shown[1:] == lines

    described = broker_status._described(found, configured)
    assert described["doubts"] == list(found.doubts)
    common.say(common.record_text({"doubts": Advice(**described["advice"]).lines}))
    assert [line[8:] for line in capfd.readouterr().out.splitlines()] == lines

    history = ReleaseHistory(configured, 10)
    assert history.add(0, found.to_bytes()) is not None
    assert history.advice == advice
    assert judge(Facts(doubts=advice.reasons)).reasons == [f"The last release: {r}." for r in advice.reasons]
    answered = json.loads(DoubtAdvice(**described["advice"]).model_dump_json())
    expected = [line for line in lines if not line.startswith(("what helps", "already given"))]
    assert [*answered["reasons"], *(f"- {remedy}" for remedy in answered["remedies"])] == expected

    bounds = None if found.bounds is None else [np.broadcast_to(each, 3) for each in found.bounds]
    library = advise(
        found.doubts,
        Situation("analyze-gauss", str(found.centering), "bounds" in stream, "scale" in stream, 3, 2,
                  options=configured.options, bounds=bounds),
        1,
        found.dominant_name,
        found.dominant_feature,
    )  # fmt: skip
    assert list(library.reasons) == list(advice.reasons)
    new = [line.removeprefix("a new stream with ") for line in advice.remedies]
    assert [line.replace("rank", "n_components") for line in new] == list(library.remedies)


def test_settings_of_another_estimator_count_as_unknown() -> None:
    other = settings(estimator="adaptive", options={"half_life": 100})
    known = settings(options={"half_life": 100})
    found = doubted(doubts=("not-resolved",))
    remedies = [getattr(advice_on(found, each), "remedies", ()) for each in (other, None, known)]
    assert remedies[0] == remedies[1]
    assert "more records" in remedies[0]
    assert remedies[2][0] == "a new stream with a lower rank, such as 1"
    assert remedies[2][1].startswith("a longer half_life")


def test_a_release_without_doubts_has_no_advice() -> None:
    found = release(1)
    assert advice_on(found, settings()) is None
    assert broker_status._described(found, settings())["advice"] is None
    history = ReleaseHistory(settings(dim=2, rank=1), 10)
    assert history.add(0, doubted(dim=2, rank=1, components=[[1.0, 0.0]], explained_variance=[1.0],
                                  explained_variance_error=[1.0]).to_bytes()) is not None  # fmt: skip
    assert history.advice is not None
    assert history.add(1, found.to_bytes()) is not None
    assert history.advice is None
