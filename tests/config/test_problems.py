"""Misspelt settings are named together with the intended ones, and nothing else is."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.loading import load_streams, load_together
from tests.cli.command import call
from tests.config.test_loading import SEVERAL
from tests.config.test_settings import GOOD
from tests.security.needles import secret

Capture = pytest.CaptureFixture[str]


def problems(tmp_path: Path, text: str) -> list[str]:
    """Return lines of the error, without the file's name."""
    path = tmp_path / "stream.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_streams(path)
    return [line.removeprefix(f"{path}: ") for line in caught.value.lines]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("epsilon = 1.0", "epslion = 1.0"), "stream.epslion: no such setting; did you mean epsilon?"),
        (("epsilon = 1.0", "Epsilon = 1.0"), "stream.Epsilon: no such setting; did you mean epsilon?"),
        (("[stream]", "[strem]"), "strem: no such setting; did you mean [stream]?"),
        (("[kafka]", "[kakfa]"), "kakfa: no such setting; did you mean [kafka]?"),
        (
            ("bootstrap_", "boostrap-"),
            "kafka.boostrap-servers: no such setting; did you mean bootstrap_servers?",
        ),
        ("first_batch = 10", "stream.first_batch: no such setting; it belongs in [stream.options]"),
        ("port = 1", "stream.port: no such setting; it belongs in [http]"),
        (
            "options.growht = 2.0",
            "stream: options of adaptive: growht: no such setting; did you mean growth?",
        ),
        ("cap = { epsilon = 1, dleta = 0 }", "stream.cap.dleta: no such setting; did you mean delta?"),
        (
            'estimator = "adaptve"',
            "stream: no estimator 'adaptve' (the default is adaptive); did you mean adaptive?",
        ),
        # Without a similar name, no suggestion is made.
        ("colour = 1", "stream.colour: no such setting"),
        # A required option under a wrong name does not count as missing.
        (
            'estimator = "private-oja"\ncentering = "none"\noptions = { clip_radus = 2.0 }',
            "stream: options of private-oja: clip_radus: no such setting; did you mean clip_radius?",
        ),
        (("[kafka]", "epsilom = 2\n[kafka]"), "epsilom: no such setting; did you mean epsilon in [stream]?"),
    ],
)
def test_a_misspelt_name_is_the_only_problem(
    tmp_path: Path, change: tuple[str, str] | str, expected: str
) -> None:
    """A single text is one more line of the stream."""
    old, new = ("rank = 2", f"rank = 2\n{change}") if isinstance(change, str) else change
    assert old in GOOD
    assert problems(tmp_path, GOOD.replace(old, new)) == [expected]


def test_all_problems_are_told_at_once_and_unknown_names_first(tmp_path: Path) -> None:
    text = """
[kafka]
bootstrap_servers = ""
[strem]
name = "s"
input = "in"
dim = 4
rank = 7
epslion = -1e0
delta = 2.50e0
[strem.options]
growht = 2
clip_quantile = 1e1
[worker]
tick_seconds = 9e1
give_up_second = 3
"""
    assert problems(tmp_path, text) == [
        "strem: no such setting; did you mean [stream]?",
        "stream.epslion: no such setting; did you mean epsilon?",
        "worker.give_up_second: no such setting; did you mean give_up_seconds?",
        "stream: options of adaptive: growht: no such setting; did you mean growth?",
        "kafka.bootstrap_servers: must be HOST:PORT, or several with commas between; PORT is from 1 to 65535",
        "stream.epsilon: must be above 0, not -1.0",
        "stream.delta: must be below 1, or inf with private = false",
        "worker.tick_seconds: must be at most 60, not 90.0",
        "stream: options of adaptive: clip_quantile: must be below 1, not 10.0",
    ]


def test_each_section_s_problems_are_told_whatever_the_others_are(tmp_path: Path, capfd: Capture) -> None:
    """Values are judged one by one, and what belongs together where all values of its section are right."""
    path = tmp_path / "stream.toml"
    path.write_text("""
[kafka]
security_protocol = "SASL_SSL"
sasl_mechanism = "PLAIN"
sasl_password_file = "/nowhere/password"
[stream]
name = "a b/c"
input = ""
dim = 0
rank = 1.5
epsilon = -1
delta = 0
[http]
host = "0.0.0.0"
certificate = "/nowhere/certificate"
private_key = "/nowhere/key"
[registry]
url = "https://registry.test"
token_file = "/nowhere/token"
username = "me"
""")
    result = call(capfd, "config", "check", "--config", path)
    assert (result.returncode, result.stdout) == (2, "")
    topic = "must be 1 to 200 letters, digits, '.', '_' or '-', and not '.' or '..'"
    assert [each.removeprefix("error: ").replace(f"{path}: ", "") for each in result.stderr.splitlines()] == [
        "kafka: sasl_mechanism PLAIN needs sasl_username",
        f"stream.name: {topic}",
        f"stream.input: {topic}",
        "stream.dim: must be at least 1, not 0",
        "stream.rank: must be a whole number",
        "stream.epsilon: must be above 0, not -1",
        "stream.delta: must be above 0, not 0",
        "registry: set token_file or username with a password, not both",
        "registry: username needs password_file, or STREAMING_PCA_REGISTRY__PASSWORD",
        "http.host = '0.0.0.0' is not loopback: set http.token_file, the variable "
        "STREAMING_PCA_HTTP__TOKEN, or http.client_authority (mutual TLS); or listen on 127.0.0.1",
        "http.certificate: /nowhere/certificate: No such file or directory",
    ]


def test_the_program_prints_a_line_for_each(tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "stream.toml"
    path.write_text(GOOD.replace("epsilon", "epslion").replace("rank = 2", "rank = 0"))
    result = call(capfd, "config", "check", "--config", path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"error: {path}: stream.epslion: no such setting; did you mean epsilon?",
        f"error: {path}: stream.rank: must be at least 1, not 0",
    ]


def test_streams_of_a_list_are_named_by_their_places(tmp_path: Path) -> None:
    text = SEVERAL.replace("epsilon =", "epslion =").replace("rank = 3", "rnak = 3")
    assert problems(tmp_path, text.replace("clip_radius", "clip_radus")) == [
        "stream.epslion: no such setting; did you mean epsilon?",
        "streams[2].rnak: no such setting; did you mean rank?",
        "streams[3]: options of private-oja: clip_radus: no such setting; did you mean clip_radius?",
    ]
    # The common table has one problem, independent of the number of streams.
    for change, expected in (
        (("dim = 4", "dim = 0"), "stream.dim: must be at least 1, not 0"),
        (("[[streams]]", "[[steams]]"), "steams: no such setting; did you mean [[streams]]?"),
    ):
        assert problems(tmp_path, SEVERAL.replace(*change)) == [expected]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("STREAM__EPSLION", "0.5", "no such setting; did you mean STREAM__EPSILON?"),
        ("STREM__EPSILON", "0.5", "no such setting; did you mean STREAM__EPSILON?"),
        ("STREAM_EPSILON", "0.5", "no such setting; did you mean STREAM__EPSILON?"),
        (
            "STREAM__OPTIONS__GROWHT",
            "2",
            "options of adaptive: growht: no such setting; did you mean growth?",
        ),
        (
            "KAFKA",
            '{"boostrap_servers": "x:1"}',
            "boostrap_servers: no such setting; did you mean bootstrap_servers?",
        ),
        ("STREAMS", '[{"name": "x", "rnak": 2}]', "streams[1].rnak: no such setting; did you mean rank?"),
        ("WORKR", "{}", "no such setting; did you mean WORKER?"),
        ("STREAM__DIM", "0", "must be at least 1, not 0"),
        ("STREAM__RANK__X", "1", "must be a whole number"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_one_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"STREAMING_PCA_{variable}", value)
    (line,) = problems(tmp_path, GOOD.replace("epsilon = 1.0\n", "") if "EPS" in variable else GOOD)
    assert line.removeprefix("environment: ").replace("STREAMING_PCA_", "") == f"{variable}: {expected}"


def test_a_conflict_of_settings_names_the_variables_that_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMING_PCA_STREAM__EPSILON", "inf")
    (line,) = problems(tmp_path, GOOD)
    named = "(STREAMING_PCA_STREAM__EPSILON of the environment)"
    assert line == f"stream: epsilon must be a finite number above 0, not inf {named}"


def test_a_password_under_a_wrong_name_is_not_repeated(tmp_path: Path) -> None:
    login = 'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_username = "me"'
    text = GOOD.replace("[kafka]", f'[kafka]\n{login}\nsasl_pasword = "{secret("misplaced")}"')
    (line,) = problems(tmp_path, text)
    assert line == "kafka.sasl_pasword: no such setting; did you mean sasl_password_file?"


def test_several_files_are_told_together(tmp_path: Path) -> None:
    paths = [tmp_path / "a.toml", tmp_path / "b.toml"]
    paths[0].write_text(GOOD.replace("rank", "rnak"))
    paths[1].write_text(GOOD.replace("dim", "dims"))
    with pytest.raises(ConfigurationError) as caught:
        load_together(paths)
    assert caught.value.lines == (
        f"{paths[0]}: stream.rnak: no such setting; did you mean rank?",
        f"{paths[1]}: stream.dims: no such setting; did you mean dim?",
    )


@pytest.mark.parametrize(
    "servers", ["", ",", "a:1,", "a:b", "a b", "x://a:1/x", "a:1;b:1", "a:0", "a:1,[::1]:65536"]
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, servers: str) -> None:
    rule = "must be HOST:PORT, or several with commas between; PORT is from 1 to 65535"
    text = GOOD.replace('"127.0.0.1:9092"', json.dumps(servers))
    assert problems(tmp_path, text) == [f"kafka.bootstrap_servers: {rule}"]


@pytest.mark.parametrize("servers", ["a", "a:1", "a-b.c_d:9092, [::1]:9092", "[::1]", "SASL_SSL://a:1"])
def test_an_address_is_taken(servers: str) -> None:
    settings = KafkaSettings(bootstrap_servers=servers)
    assert settings.bootstrap_servers == servers
    assert settings.given_servers == f"kafka.bootstrap_servers = {servers!r}"


@pytest.mark.parametrize("argument", ["kafka.bootstrap_servers", "kafka", "--bootstrap"])
@pytest.mark.parametrize("servers", ["a:1", None])
def test_an_address_keeps_the_name_that_it_was_given_by(argument: str, servers: str | None) -> None:
    settings = KafkaSettings.of_argument(argument, servers)
    joint = " " if argument == "--bootstrap" else " = "
    expected = f"{argument}{joint}{servers or 'localhost:9092'!r}" + ", the default," * (servers is None)
    for each in (settings, pickle.loads(pickle.dumps(settings)), settings.model_copy()):
        assert each.given_servers == expected
        assert each.argument == argument
