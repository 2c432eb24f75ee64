"""A wrong setting is one line that names it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from streaming_pca.api import PrivatePCA
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.loading import load_settings
from streaming_pca.privacy.parameters import Charge
from tests.config.refusals import refusal

Patch = pytest.MonkeyPatch
GOOD = """
[kafka]
bootstrap_servers = "127.0.0.1:9092"

[stream]
name = "s"
input = "in"
dim = 4
rank = 2
epsilon = 1.0
delta = 1e-6
"""


def load(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "stream.toml"
    path.write_text(text)
    return load_settings(path)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD + "bounds = [-5, 5]\n[stream.options]\nfirst_batch = 100\n")
    assert settings.stream.build_estimator().options.first_batch == 100
    assert settings.stream.ledger_topic == "in.ledger"
    assert settings.stream.privacy_contract["bounds"] == [-5.0, 5.0]


def test_a_user_may_count_as_often_as_the_estimator_is_calibrated_for(tmp_path: Path) -> None:
    unit = GOOD + 'privacy_unit = "user"\n'
    for text, expected in ((unit, 1), (unit + "contributions_per_user = 5\n", 5)):
        stream = load(tmp_path, text).stream
        assert stream.build_estimator().privacy.contributions == expected
        assert stream.privacy_contract["contributions_per_user"] == expected
        assert stream.privacy_contract["privacy_unit"] == "user"
    # Counts with another share in some of a user's batches would cost more than either share.
    shares = [load(tmp_path, unit + f"diagnostics_share = {share}\n") for share in (0.0, 0.5)]
    assert [settings.stream.privacy_contract["diagnostics_share"] for settings in shares] == [0.0, 0.5]
    # Other streams' promises stay unchanged: a changed promise is refused.
    assert "diagnostics_share" not in load(tmp_path, GOOD).stream.privacy_contract
    assert "contributions_per_user" not in load(tmp_path, GOOD).stream.privacy_contract


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("rank = 2", "rank = 5"), "rank = 5 is above dim = 4"),
        (("rank = 2", "rank = 0"), "stream.rank"),
        (("epsilon = 1.0", "epsilon = true"), "stream.epsilon: must be a number, not true or false"),
        (("dim = 4", "dim = true"), "stream.dim: must be a number, not true or false"),
        (("dim = 4", "dim = 4\nbounds = [false, [1, 1, true, 1]]"), "stream.bounds: must be a number"),
        (("dim = 4", "dim = 4\noptions.growth = true"), "growth: must be a number, not true or false"),
        (("[stream]", "[worker]\ntick_seconds = true\n[stream]"), "worker.tick_seconds: must be a number"),
        (('input = "in"', 'input = "s.state"'), "input = 's.state' is the stream's own output"),
        (('input = "in"', 'input = "s.releases"'), "input = 's.releases' is the stream's own output"),
        (("127.0.0.1:9092", "http://a:1"), "kafka.bootstrap_servers: must be HOST:PORT, without http"),
        (("epsilon = 1.0", "epsilon = 0"), "stream.epsilon: must be above 0, not 0"),
        (("epsilon = 1.0", "epsilon = inf"), "epsilon must be"),
        (("epsilon = 1.0", "epsilon = nan"), "stream.epsilon: must be above 0, not nan"),
        (("delta = 1e-6", "delta = 1"), "stream.delta: must be below 1, or inf with"),
        (("delta = 1e-6", "delta = 0"), "stream.delta: must be above 0, not 0"),
        (("delta = 1e-6", "delta = inf"), "delta must lie"),
        (("dim = 4", "dim = 4\ncontributions_per_user = 2"), 'needs privacy_unit = "user"'),
        (
            ("dim = 4", "dim = 4\nprivacy_unit = 'user'\ncontributions_per_user = 0"),
            "contributions_per_user: ",
        ),
        (("dim = 4", "dim = 'x'"), "stream.dim"),
        (("dim = 4\n", ""), "stream.dim: must be set"),
        (('name = "s"', 'name = "."'), "stream.name: must be"),
        (('name = "s"', 'name = ".."'), "stream.name: must be"),
        (
            ("dim = 4", "dim = 4\nestimator = 'magic'"),
            "no estimator 'magic' (the default is adaptive); known",
        ),
        (("dim = 4", "dim = 4\nestimator = 'private-oja'"), "clip_radius: must be set"),
        (("dim = 4", "dim = 4\nbounds = [5, -5]"), "lower below upper"),
        (("dim = 4", "dim = 4\nbounds = [[1, 2], [3, 4]]"), "4 features"),
        (("dim = 4", "dim = 4\ncentering = [1, 2]"), "4 features"),
        (("dim = 4", "dim = 4\ncentering = 'mean'"), "centering"),
        (("dim = 4", "dim = 4\nscale = 0"), "scale must be above 0"),
        (("dim = 4", "dim = 4\nrecord_kind = 'matrix'"), "centering"),
        (("dim = 4", "dim = 4\nprivacy_unit = 'person'"), "privacy_unit"),
        (("dim = 4", "dim = 4 4"), "is not TOML"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    assert change[0] in GOOD
    assert expected in refusal(ConfigurationError, load, tmp_path, GOOD.replace(*change))


@pytest.mark.parametrize("former", ["augment", "private-mean"])
def test_a_centring_of_earlier_versions_is_told_what_it_is_now(
    tmp_path: Path, monkeypatch: Patch, former: str
) -> None:
    now = f'centering = "{former}" is now "auto"'
    line = refusal(ConfigurationError, load, tmp_path, GOOD + f'centering = "{former}"\n')
    assert line.endswith(f"stream.centering: {now}")
    with pytest.raises(ValueError, match=f"^{now}$"):
        PrivatePCA(2, epsilon=1.0, delta=1e-6, centering=former).fit(np.zeros((4, 3)))
    monkeypatch.setenv("STREAMING_PCA_STREAM__CENTERING", former)
    with pytest.raises(ConfigurationError, match=now):
        load(tmp_path, GOOD)


PRIVATE_OJA = GOOD + "estimator = 'private-oja'\n"


@pytest.mark.parametrize("given", ["", "centering = 'auto'\n", "centering = 'pairs'\n"])
def test_auto_means_pairs_where_the_estimator_finds_no_mean(tmp_path: Path, given: str) -> None:
    """Contract, releases and batches name the same centring, however it was written."""
    options = "[stream.options]\nclip_radius = 1.0\n"
    stream = load(tmp_path, PRIVATE_OJA + given + options).stream
    assert stream.centering == stream.privacy_contract["centering"] == "pairs"
    assert stream.build_estimator().preprocessing.granularity == 2
    assert load(tmp_path, GOOD).stream.centering == "auto"
    tensor = PRIVATE_OJA.replace("private-oja", "tensor-private")
    if "pairs" not in given:
        with pytest.raises(ConfigurationError, match='tensor-private cannot use centering = "auto"'):
            load(tmp_path, tensor + given + options)


def test_rows_as_units_cannot_be_paired_by_default(tmp_path: Path) -> None:
    text = PRIVATE_OJA + "privacy_unit = 'row'\n"
    options = "[stream.options]\nclip_radius = 1.0\nbatch_size = 64\n"
    refused = 'privacy_unit = "row" cannot be used with centering = "pairs"'
    meaning = ', which "auto" (the default) means for private-oja: set "none" or numbers'
    for given in ("", "centering = 'auto'\n", "centering = 'pairs'\n"):
        assert refused + meaning in refusal(ConfigurationError, load, tmp_path, text + given + options)
    paired = GOOD + "privacy_unit = 'row'\ncentering = 'pairs'\n"
    assert f'{refused}: set "auto", "none" or numbers' in refusal(ConfigurationError, load, tmp_path, paired)
    assert load(tmp_path, text + "centering = 'none'\n" + options).stream.centering == "none"


OJA = GOOD.replace("epsilon = 1.0\ndelta = 1e-6", "epsilon = inf\ndelta = inf")
OJA += "private = false\nestimator = 'oja'\ncentering = 'none'\n"


def test_a_stream_that_is_not_private_promises_nothing(tmp_path: Path) -> None:
    stream = load(tmp_path, OJA).stream
    made = stream.build_estimator()
    assert made.plan(made.init(np.random.default_rng(0))).charge == Charge.unbounded()
    assert made.diagnostics is None
    promise = json.loads(json.dumps(stream.privacy_contract, allow_nan=False))
    assert [promise[name] for name in ("epsilon", "delta", "private")] == ["inf", "inf", False]
    # Other streams' promises stay unchanged: a changed promise is refused.
    usual = load(tmp_path, GOOD).stream.privacy_contract
    assert "private" not in usual
    assert load(tmp_path, GOOD + "private = true\n").stream.privacy_contract == usual


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OJA.replace("private = false\n", ""), "estimator 'oja' is not private: it runs only with private ="),
        (OJA.replace("private = false", "private = true"), "estimator 'oja' is not private"),
        (GOOD + "estimator = 'oja'\n", "estimator 'oja' is not private"),
        (GOOD + "private = false\n", "private = false is not for estimator 'adaptive', which is private"),
        (OJA.replace("epsilon = inf", "epsilon = 1.0"), "set epsilon = inf and delta = inf"),
        (OJA.replace("delta = inf", "delta = 0.5"), "set epsilon = inf and delta = inf"),
        (OJA.replace("delta = inf", "delta = 1.0"), "must be below 1, or inf with private = false"),
        (OJA.replace("private = false", "private = 'perhaps'"), "stream.private: "),
    ],
)
def test_what_is_not_private_is_meant(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(ConfigurationError, load, tmp_path, text)


def test_a_table_among_the_options_may_come_from_the_environment(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("STREAMING_PCA_STREAM__OPTIONS__WARM_OPTIONS", '{"batch_size": 512}')
    stream = load(tmp_path, GOOD + "estimator = 'tadadpo'\ncentering = 'none'\n").stream
    assert stream.build_estimator().options.warm_options == {"batch_size": 512}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file"):
        load_settings(tmp_path / "nowhere.toml")
