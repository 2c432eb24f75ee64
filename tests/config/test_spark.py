"""Settings of Spark: its own names as TOML has them, masked secrets, not part of a worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.loading import load_settings, load_together
from streaming_pca.config.schema import file_schema
from streaming_pca.config.spark import SparkSettings
from tests.cli.command import call
from tests.config.refusals import refusal
from tests.config.test_settings import GOOD
from tests.security.needles import secret

ROOT = Path(__file__).parents[2]


def write(tmp_path: Path, spark: str, name: str = "s") -> Path:
    path = tmp_path / f"{name}.toml"
    path.write_text(GOOD.replace('name = "s"', f'name = "{name}"') + spark)
    return path


def test_spark_s_own_settings_are_written_as_toml_has_them(tmp_path: Path) -> None:
    text = """
[spark.conf]
spark.executor.memory = "8g"
spark.executor.cores = 4
"spark.speculation" = true
"spark.speculation.multiplier" = 2.5
"""
    assert load_settings(write(tmp_path, text)).spark.conf == {
        "spark.executor.memory": "8g",
        "spark.executor.cores": "4",
        "spark.speculation": "true",
        "spark.speculation.multiplier": "2.5",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[spark.conf]\nexecutor.memory = "8g"', "conf: 'executor.memory' must begin with 'spark.'"),
        ('[spark.conf]\nspark.master = "yarn"', "conf: 'spark.master': set master"),
        ('[spark.conf]\nspark.app.name = "me"', "conf: 'spark.app.name': set app_name"),
        ('[spark.conf]\nspark.submit.deployMode = "x"', "conf: 'spark.submit.deployMode': is an option of"),
        ("[spark.conf]\nspark.jars = [1]", "conf: 'spark.jars' must be text, a number, true or false"),
        ('[spark]\nmaster = "10.0.0.5:7077"', "master: must be local[N], spark://HOST:PORT, yarn or k8s://"),
        ('[spark]\nmaster = "sc://10.0.0.5"', "master: Spark Connect (sc://) cannot run this"),
        ("[spark]\ncache_bytes = 1000", "cache_bytes: must be at least 1048576, not 1000"),
        ("[spark]\nsegment_bytes = true", "segment_bytes: must be a number, not true or false"),
        ('[spark]\nmasters = "yarn"', "masters: no such setting; did you mean master?"),
    ],
)
def test_a_wrong_setting_of_spark_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, f"\n{text}\n")
    assert refusal(ConfigurationError, load_settings, path).startswith(f"{path}: spark.{expected}")


def test_wrong_names_of_spark_are_told_together(tmp_path: Path) -> None:
    wrong = write(tmp_path, '\n[spark.conf]\na = 1\nspark.master = "yarn"\n')
    line = refusal(ConfigurationError, load_settings, wrong)
    assert line.endswith("conf: 'a' must begin with 'spark.'; 'spark.master': set master")


def test_a_variable_of_spark_s_settings_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "")
    monkeypatch.setenv("STREAMING_PCA_SPARK__CONF", "spark.executor.cores=4")
    line = refusal(ConfigurationError, load_settings, path)
    assert line == "environment: STREAMING_PCA_SPARK__CONF: is not JSON"


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*]", "local[*,4]", "yarn", "spark://a:1,b:2", "k8s://https://a:6443"],
)
def test_an_address_of_a_cluster_is_taken(master: str) -> None:
    assert SparkSettings(master=master).master == master


def test_a_secret_of_spark_is_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = f'"spark.authenticate.secret" = "{secret("spark")}"\n"spark.authenticate" = true\n'
    path = write(tmp_path, f"\n[spark.conf]\n{names}")
    assert load_settings(path).spark.conf["spark.authenticate.secret"] == secret("spark")
    for options in (["--json"], ["--verbose"]):
        shown = call(capfd, "config", "check", "--config", path, *options)
        assert shown.returncode == 0
        assert secret("spark") not in shown.stdout + shown.stderr
        assert "spark.authenticate.secret" in shown.stdout


def test_a_worker_ignores_spark_and_a_driver_does_not(tmp_path: Path) -> None:
    paths = [write(tmp_path, f'\n[spark]\nmaster = "local[{n}]"\n', f"s{n}") for n in (1, 2)]
    assert len(load_together(paths, ignored=("spark",))) == 2
    with pytest.raises(ConfigurationError, match="spark: differs from"):
        load_together(paths)


def test_the_example_is_good(capfd: pytest.CaptureFixture[str]) -> None:
    import tomllib

    path = ROOT / "deploy" / "spark" / "stream.toml"
    Draft202012Validator(file_schema()).validate(tomllib.loads(path.read_text(encoding="utf-8")))
    settings = load_settings(path)
    assert settings.spark.conf["spark.executor.memoryOverhead"] == "12g"
    assert json.loads(settings.spark.model_dump_json())["master"] == "spark://10.0.0.5:7077"
