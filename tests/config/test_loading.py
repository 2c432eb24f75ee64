"""Settings come from a file and from the environment; errors name the setting and its source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import SecretStr

from streaming_pca.config.environment import variable_name
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.loading import load_settings, load_streams
from streaming_pca.config.schema import Setting, every_setting
from streaming_pca.config.settings import Settings
from streaming_pca.data.features.feature import Feature
from streaming_pca.dev.jars import CACHE_VARIABLE
from streaming_pca.estimators.registry import ESTIMATORS
from tests.config.refusals import refusal
from tests.config.test_settings import GOOD
from tests.estimators.suite import make
from tests.security.needles import secret

Patch = pytest.MonkeyPatch
Load = Callable[..., tuple[Settings, ...]]

SEVERAL = """
[kafka]
bootstrap_servers = "127.0.0.1:9092"

[stream]
input = "in"
dim = 4
rank = 2
epsilon = 1.0
delta = 1e-6
options = { growth = 2.0, first_batch = 100 }

[[streams]]
name = "a"

[[streams]]
name = "b"
rank = 3
options = { first_batch = 200 }

[[streams]]
name = "c"
input = "other"
estimator = "private-oja"
centering = "none"
options = { clip_radius = 2.0 }
"""

PASSWORD = secret("Tr0ub4dor&3")
SASL = {
    ("kafka", "security_protocol"): "SASL_SSL",
    ("kafka", "sasl_mechanism"): "PLAIN",
    ("kafka", "sasl_username"): "me",
    ("kafka", "sasl_password_file"): "/nowhere/password",
}
TLS = {("kafka", "security_protocol"): "SSL"}
BEARER = {("kafka", "security_protocol"): "SASL_SSL", ("kafka", "sasl_mechanism"): "OAUTHBEARER"}
TOKEN_FILE = BEARER | {("kafka", "sasl_oauth_token_file"): "/nowhere/token"}
TOKEN_URL = BEARER | {
    ("kafka", "sasl_oauth_token_url"): "https://other.test/token",
    ("kafka", "sasl_oauth_client_id"): "other",
    ("kafka", "sasl_oauth_client_secret_file"): "/nowhere/secret",
}
TOKEN = secret("token")
HTTPS = {("http", "certificate"): "/cert.pem", ("http", "private_key"): "/key.pem"}
NEEDED = {
    ("stream", "private"): "private = false",
    ("stream", "schema_file"): r"needs schema_file, or the section \[registry\]",
    ("stream", "message"): "needs message",
    ("registry", "url"): "registry.url: must be set",
    ("registry", "username"): "a password needs username",
    ("registry", "password"): "username needs password_file",
    ("registry", "password_file"): "username needs password_file",
    ("http", "certificate"): "belong together",
    ("http", "private_key"): "belong together",
}
"""Reasons for refusing the rest of their case without these settings."""
OTHERS = {("stream", "centering"): "none"}
OTHER = OTHERS | {("stream", "options", "clip_radius"): "3"}
UNPROMISED = OTHERS | {("stream", "estimator"): "oja"} | {("stream", k): "inf" for k in ("epsilon", "delta")}
FIELDS = {("stream", "features"): '[{"name": "a", "size": 4}]', ("stream", "privacy_unit"): "user"}
SCHEMAS = Path(__file__).parent / "schemas"
AVRO = {("stream", "features"): '[{"name": "a", "size": 4}]', ("stream", "format"): "avro"}
PROTOBUF = AVRO | {("stream", "format"): "protobuf", ("stream", "schema_file"): str(SCHEMAS / "row.desc")}
REGISTRY = {("registry", "url"): "https://a.example"}
IN_REGISTRY = AVRO | REGISTRY
CAP = {("stream", "cap", "epsilon"): "3", ("stream", "cap", "delta"): "1e-3"}

Case = tuple[str, Any] | tuple[str, Any, dict[tuple[str, ...], str]]


# The variable's value, the resulting setting, and other settings required for validity.
CASES: dict[tuple[str, ...], Case] = {
    ("kafka", "bootstrap_servers"): ("a:1,b:2", "a:1,b:2"),
    ("kafka", "bootstrap_timeout_ms"): ("777", 777),
    ("kafka", "request_timeout_ms"): ("7777", 7777),
    ("kafka", "session_timeout_ms"): ("7777", 7777),
    ("kafka", "transaction_timeout_ms"): ("7777", 7777),
    ("kafka", "unchecked_topics"): ("true", True),
    ("kafka", "security_protocol"): ("SSL", "SSL"),
    ("kafka", "sasl_mechanism"): ("SCRAM-SHA-512", "SCRAM-SHA-512", SASL),
    ("kafka", "sasl_username"): ("you", "you", SASL),
    ("kafka", "sasl_password"): (PASSWORD, SecretStr(PASSWORD)),
    ("kafka", "sasl_password_file"): ("/run/secrets/x", Path("/run/secrets/x"), SASL),
    ("kafka", "sasl_oauth_token_file"): ("/run/token", Path("/run/token"), TOKEN_FILE),
    ("kafka", "sasl_oauth_token_url"): ("https://login.test/token", "https://login.test/token", TOKEN_URL),
    ("kafka", "sasl_oauth_client_id"): ("me", "me", TOKEN_URL),
    ("kafka", "sasl_oauth_client_secret_file"): ("/run/secrets/y", Path("/run/secrets/y"), TOKEN_URL),
    ("kafka", "sasl_oauth_scope"): ("kafka", "kafka", TOKEN_URL),
    ("kafka", "sasl_oauth_cafile"): ("/ca.pem", Path("/ca.pem"), TOKEN_URL),
    ("kafka", "ssl_cafile"): ("/ca.pem", Path("/ca.pem"), TLS),
    ("kafka", "ssl_certfile"): ("/cert.pem", Path("/cert.pem"), TLS),
    ("kafka", "ssl_keyfile"): ("/key.pem", Path("/key.pem"), TLS | {("kafka", "ssl_certfile"): "/c.pem"}),
    ("stream", "name"): ("other", "other"),
    ("stream", "input"): ("elsewhere", "elsewhere"),
    ("stream", "dim"): ("5", 5),
    ("stream", "rank"): ("3", 3),
    ("stream", "epsilon"): ("0.5", 0.5),
    ("stream", "delta"): ("1e-9", 1e-9),
    ("stream", "privacy_unit"): ("row", "row", {("stream", "max_rows"): "2"}),
    ("stream", "contributions_per_user"): ("4", 4, {("stream", "privacy_unit"): "user"}),
    ("stream", "record_kind"): ("matrix", "matrix", {("stream", "centering"): "none"}),
    ("stream", "feature_names"): ('["a", "b", "c", "d"]', ("a", "b", "c", "d")),
    ("stream", "dtype"): ("float64", "float64"),
    ("stream", "max_rows"): ("7", 7),
    ("stream", "max_wait_seconds"): ("1.5", 1.5),
    ("stream", "centering"): ("[1, 2, 3, 4.5]", (1.0, 2.0, 3.0, 4.5)),
    ("stream", "bounds"): ("[-1, [1, 2, 3, 4]]", (-1.0, (1.0, 2.0, 3.0, 4.0))),
    ("stream", "scale"): ("[1, 2, 3, 4]", (1.0, 2.0, 3.0, 4.0)),
    ("stream", "estimator"): ("private-oja", "private-oja", OTHER),
    ("stream", "diagnostics_share"): ("0.1", 0.1),
    ("stream", "private"): ("false", False, UNPROMISED),
    ("stream", "seed"): ("7", 7),
    ("stream", "lost_records"): ("skip", "skip"),
    ("stream", "start"): ("latest", "latest"),
    ("stream", "format"): ("json", "json"),
    ("stream", "features"): (
        '[{"name": "a", "size": 4, "bounds": [0, 2]}]',
        (Feature(name="a", size=4, bounds=(0, 2)),),
    ),
    ("stream", "user_field"): ("user.id", ("user", "id"), FIELDS),
    ("stream", "schema_file"): (str(SCHEMAS / "row.avsc"), SCHEMAS / "row.avsc", AVRO),
    ("stream", "message"): ("t.Row", "t.Row", PROTOBUF),
    ("stream", "subject"): ("visits", "visits", IN_REGISTRY),
    ("stream", "cap", "epsilon"): ("1/3", "1/3", CAP),
    ("stream", "cap", "delta"): ("1e-5", "1/100000", CAP),
    ("worker", "group"): ("workers", "workers"),
    ("worker", "tick_seconds"): ("0.5", 0.5),
    ("worker", "partitions_seconds"): ("5", 5.0),
    ("worker", "step_deadline_seconds"): ("5", 5.0),
    ("worker", "give_up_seconds"): ("5", 5.0),
    ("worker", "threads"): ("3", 3),
    ("worker", "read_ahead"): ("0.5", 0.5),
    ("worker", "debuggable"): ("true", True),
    ("worker", "verify_seconds"): ("3600", 3600.0),
    ("worker", "stop_when_done"): ("true", True),
    ("http", "enabled"): ("false", False),
    ("http", "host"): ("0.0.0.0", "0.0.0.0"),
    ("http", "port"): ("0", 0),
    ("http", "dashboard"): ("true", True),
    ("http", "token"): (TOKEN, SecretStr(TOKEN)),
    ("http", "token_file"): ("/run/secrets/x", Path("/run/secrets/x")),
    ("http", "metrics_token"): (TOKEN, SecretStr(TOKEN)),
    ("http", "metrics_token_file"): ("/run/secrets/x", Path("/run/secrets/x")),
    ("http", "certificate"): ("/cert.pem", Path("/cert.pem"), {("http", "private_key"): "/key.pem"}),
    ("http", "private_key"): ("/key.pem", Path("/key.pem"), {("http", "certificate"): "/cert.pem"}),
    ("http", "client_authority"): ("/ca.pem", Path("/ca.pem"), HTTPS),
    ("http", "hosts"): ('["a.example", "b"]', ("a.example", "b")),
    ("http", "origins"): ('["https://a.example"]', ("https://a.example",)),
    ("http", "event_streams"): ("5", 5),
    ("http", "process_metrics"): ("true", True),
    ("http", "requests_per_second"): ("2.5", 2.5),
    ("log", "format"): ("json", "json"),
    ("log", "level"): ("debug", "debug"),
    ("trace", "enabled"): ("true", True),
    ("trace", "endpoint"): ("https://a.example:4318", "https://a.example:4318"),
    ("spark", "master"): ("local[2]", "local[2]"),
    ("spark", "app_name"): ("flights", "flights"),
    ("spark", "cache_bytes"): ("2000000", 2_000_000),
    ("spark", "segment_bytes"): ("100000", 100_000),
    ("spark", "conf"): (
        '{"spark.executor.memory": "8g", "spark": {"executor": {"cores": 2}}}',
        {"spark.executor.memory": "8g", "spark.executor.cores": "2"},
    ),
    ("registry", "url"): ("https://b.example", "https://b.example", {("registry", "seconds"): "5"}),
    ("registry", "username"): ("me", "me", REGISTRY | {("registry", "password_file"): "/nowhere"}),
    ("registry", "password"): (PASSWORD, SecretStr(PASSWORD), REGISTRY | {("registry", "username"): "me"}),
    ("registry", "password_file"): ("/run/x", Path("/run/x"), REGISTRY | {("registry", "username"): "me"}),
    ("registry", "token_file"): ("/run/token", Path("/run/token"), REGISTRY),
    ("registry", "ssl_cafile"): ("/ca.pem", Path("/ca.pem"), REGISTRY),
    ("registry", "seconds"): ("5", 5.0, REGISTRY),
    ("registry", "timeout_seconds"): ("5", 5.0, REGISTRY),
    ("tadadpo", "warm_estimator"): ("block", "block", OTHERS | {("stream", "estimator"): "tadadpo"}),
    ("tadadpo", "warm_options"): (
        '{"clip_radius": 3, "batch_size": 50}',
        {"clip_radius": 3, "batch_size": 50},
        OTHERS
        | {
            ("stream", "estimator"): "tadadpo",
            ("stream", "options", "warm_estimator"): "private-oja",
            ("stream", "options", "warm_options"): '{"clip_radius": 3}',
        },
    ),
}
"""Cases of all settings, and of options that need others; :func:`option_case` makes the rest."""
NEEDS = {"batch_rule": {"n_records": 10_000}}
"""Options that an option needs next to it."""
VALUES = (100, 3, 2.5, 0.9, 0.1, 1e-4, False, True, (1.0, 2.0))


def option_case(estimator: str, option: str) -> Case:
    """Return a case of an option: a value that the tests of all estimators do not use, among theirs."""
    kind = ESTIMATORS[estimator]
    stream: dict[str, Any] = {"estimator": estimator, "centering": "none"}
    if not kind.info.private:
        stream |= {"private": "false", "epsilon": "inf", "delta": "inf"}
    if kind.info.local:
        stream["record_kind"] = "local"
    if kind.suite_options.rank:
        stream["rank"] = str(kind.suite_options.rank)
    named = {("stream", key): text for key, text in stream.items()}
    needs: dict[str, Any] = NEEDS.get(option, {})
    for key, value in (kind.suite_options.options | needs).items():
        named["stream", "options", key] = value if isinstance(value, str) else json.dumps(value)
    usual = getattr(make(estimator, dim=4, **needs).options, option)
    literals = get_args(kind.options_type.model_fields[option].annotation)
    for value in (*(each for each in literals if isinstance(each, str)), *VALUES):
        try:
            found = getattr(make(estimator, dim=4, **needs, **{option: value}).options, option)
        except ValueError:
            continue
        if found != usual:
            return value if isinstance(value, str) else json.dumps(value), found, named
    raise AssertionError(f"no value of VALUES fits {estimator}'s {option}: add a case to CASES")


def case_of(setting: Setting) -> Case:
    where = setting.path if setting.estimator is None else (setting.estimator, *setting.path[2:])
    return CASES[where] if setting.estimator is None or where in CASES else option_case(*where)


def value_of(settings: Settings, path: tuple[str, ...]) -> Any:
    value: Any = settings
    for name in path:
        value = value.build_estimator().options if name == "options" else getattr(value, name)
    return str(value) if path[:2] == ("stream", "cap") else value


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str = GOOD) -> tuple[Settings, ...]:
        path = tmp_path / "stream.toml"
        path.write_text(text)
        return load_streams(path)

    return load


@pytest.mark.parametrize("setting", every_setting(), ids=lambda s: f"{s.estimator or ''}:{'.'.join(s.path)}")
def test_every_setting_has_an_environment_variable(setting: Setting, load: Load, monkeypatch: Patch) -> None:
    """A setting without a case here fails too."""
    text, expected, *more = case_of(setting)
    for path, value in (more[0] if more else {}).items():
        monkeypatch.setenv(variable_name(path), value)
    if setting.path in NEEDED:
        with pytest.raises(ConfigurationError, match=NEEDED[setting.path]):
            load()
    else:
        assert value_of(load()[0], setting.path) != expected, "the case would hold without the variable"
    monkeypatch.setenv(setting.variable, text)
    assert value_of(load()[0], setting.path) == expected


def test_no_case_is_of_a_setting_that_is_gone() -> None:
    there = {s.path if s.estimator is None else (s.estimator, *s.path[2:]) for s in every_setting()}
    assert set(CASES) <= there


@pytest.mark.parametrize("service", ["KAFKA", "DASHBOARD", "HTTP", "STREAM_PCA", "SERVICE", ""])
def test_variables_of_others_with_the_same_beginning_are_no_settings(
    service: str, load: Load, monkeypatch: Patch
) -> None:
    """Kubernetes sets these in each pod for a Service; the last belongs to this package."""
    prefix = "_".join(part for part in ("STREAMING_PCA", service) if part)
    for name, text in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "9092",
        "SERVICE_PORT_SASL_SSL": "9093",
        "PORT": "tcp://10.0.0.1:9092",
        "PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "PORT_9092_TCP_PROTO": "tcp",
        "PORT_9092_TCP_PORT": "9092",
        "PORT_9092_TCP_ADDR": "fd00::1",
    }.items():
        monkeypatch.setenv(f"{prefix}_{name}", text)
    monkeypatch.setenv(CACHE_VARIABLE, "/opt/jars")
    assert load()[0].stream.rank == 2


def test_a_section_can_be_one_variable(load: Load, monkeypatch: Patch) -> None:
    monkeypatch.setenv("STREAMING_PCA_STREAM", '{"epsilon": 0.5, "options": {"growth": 3}}')
    monkeypatch.setenv("STREAMING_PCA_STREAM__DELTA", "1e-9")
    (settings,) = load()
    assert (settings.stream.epsilon, settings.stream.delta, settings.stream.rank) == (0.5, 1e-9, 2)
    assert settings.stream.build_estimator().options.growth == 3


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("STREAM__EPSILON", "much", "must be a number"),
        ("STREAM__RANK", "0", ""),
        ("STREAM__COLOUR", "red", "no such setting"),
        ("STREAM__BOUNDS", "[1", ""),
        ("STREAM__CENTERING", '["a"]', ""),
        ("STREAM__CAP", '{"epsilon": -1, "delta": 0}', "epsilon: must not be neg"),
        ("STREAM__OPTIONS__RADIUS_RANGE", "[1,", "options of adaptive: radius_range: "),
        ("STREAM__RANK", "2.5", "must be a whole number"),
        ("STREAM__DIM", "many", "must be a whole number"),
        ("WORKER__STOP_WHEN_DONE", "perhaps", "must be true"),
        ("STREAM__PRIVACY_UNIT", "house", "must be 'message',"),
        ("STREAM__OPTIONS", "{", "is not JSON"),
        ("KAFKA", "{", "is not JSON"),
        ("kafka", "{", "is not JSON"),
        ("KAFKA", '{"colour": 1}', "colour: no such setting"),
        ("KAFKA", "5", "must be a table"),
        ("COLOUR", "red", "no such setting"),
        # These are named like a Service's variables in Kubernetes, but with different values.
        ("HTTP_PORT", "9464", "no such setting"),
        ("HTTP_SERVICE_HOST", "pca.example.org", "no such"),
        ("HTTP__SERVICE_HOST", "10.0.0.1", "no such"),
        ("STREAMS", "{", "is not JSON"),
        ("STREAMS__0__NAME", "q", "the list of streams is set as"),
        ("STREAMS", "[]", "must be a list of tables"),
        ("STREAMS", "[{}, 5]", "streams[2]: must be a table"),
        ("STREAMS", '[{"rank": "x"}]', "streams[1].rank: "),
        ("STREAMS", '[{"rank": 9}]', "streams[1]: rank = 9 is above dim"),
        ("STREAMS", "[{}, {}]", "streams: 's' is listed twice"),
    ],
)
def test_a_wrong_variable_is_named_in_one_line(
    variable: str, text: str, expected: str, load: Load, monkeypatch: Patch
) -> None:
    monkeypatch.setenv(f"STREAMING_PCA_{variable}", text)
    line = refusal(ConfigurationError, load)
    assert f"environment: STREAMING_PCA_{variable.upper()}: {expected}" in line
    assert "Input should" not in line


def test_a_mistake_of_the_file_is_the_file_s_whatever_else_the_environment_sets(
    load: Load, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("STREAMING_PCA_STREAM__EPSILON", "0.5")
    with pytest.raises(ConfigurationError, match=r"stream\.toml: stream\.rank: "):
        load(GOOD.replace("rank = 2", "rank = 0"))


# -- several streams in a file ---------------------------------------------


def test_streams_have_what_the_file_has_in_common_and_their_own(load: Load) -> None:
    a, b, c = (settings.stream for settings in load(SEVERAL))
    assert [s.name for s in (a, b, c)] == ["a", "b", "c"]
    assert [s.rank for s in (a, b, c)] == [2, 3, 2]
    assert [s.input for s in (a, b, c)] == ["in", "in", "other"]
    assert (a.build_estimator().options.first_batch, a.build_estimator().options.growth) == (100, 2.0)
    # Options are merged within one estimator, but not between different ones.
    assert (b.build_estimator().options.first_batch, b.build_estimator().options.growth) == (200, 2.0)
    assert c.options == {"clip_radius": 2.0}


def test_the_list_of_streams_can_come_from_the_environment(load: Load, monkeypatch: Patch) -> None:
    monkeypatch.setenv("STREAMING_PCA_STREAMS", json.dumps([{"name": "x", "rank": 1}, {"name": "y"}]))
    # A variable of the stream holds for each.
    monkeypatch.setenv("STREAMING_PCA_STREAM__EPSILON", "0.25")
    for text in (GOOD, SEVERAL):
        found = [(s.stream.name, s.stream.rank, s.stream.epsilon) for s in load(text)]
        assert found == [("x", 1, 0.25), ("y", 2, 0.25)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('name = "b"\nrank = 3', 'name = "b"\nrank = "x"'), "streams[2].rank: must be a whole number"),
        (('name = "b"\nrank = 3', 'name = "b"\nrank = 9'), "streams[2]: rank = 9 is above dim = 4"),
        (('name = "b"', 'name = "b"\ncolour = 1'), "streams[2].colour: no such setting"),
        (('name = "b"', 'name = "a"'), "streams: 'a' is listed twice"),
        (
            ('name = "b"', 'name = "b"\ninput = "a.releases"'),
            "stream 'b': input = 'a.releases' is written by",
        ),
        (('name = "b"', 'name = "b"\ninput = "in.ledger"'), "stream 'b': input = 'in.ledger' is written by"),
        (('name = "b"\n', ""), "streams[2].name: must be set"),
        (("options = { first_batch = 200 }", "options = 5"), "streams[2].options: must be a table"),
        (("options = { clip_radius = 2.0 }", ""), "streams[3]: options of private-oja: clip_radius: must be"),
        (("[kafka]", "[kafka]\ncolour = 1"), "stream.toml: kafka.colour: no such setting"),
    ],
)
def test_a_wrong_setting_of_one_of_them_is_named_by_its_place(
    change: tuple[str, str], expected: str, load: Load
) -> None:
    assert change[0] in SEVERAL
    assert expected in refusal(ConfigurationError, load, SEVERAL.replace(*change))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("streams = 5", "streams: must be a list of tables"),
        ("streams = []", "streams: must be a list of tables"),
        ("streams = [5]", "streams[1]: must be a table"),
        ("stream = 5\nstreams = [{}]", "stream: must be a table"),
        ("[stream]\nname = 's'\n[[streams]]\nname = 't'", "stream.name: [stream] is not a stream if there"),
        ("[stream]\n[kafka]\n[stream]", "twice: join the two; write several streams as [[streams]]"),
        ("[a.b]\n[c]\n[a.b]", "line 3: the section [a.b] is there twice: join the two"),
        ("[stream]\nrank = 2\nrank = 3\n", "line 3: the setting is there twice: leave out one"),
        ("[[stream]]\nname = 's'", "stream: must be a table; write several as [[streams]]"),
    ],
)
def test_what_is_no_list_of_tables_is_refused(text: str, expected: str, load: Load) -> None:
    line = refusal(ConfigurationError, load, text)
    assert "stream.toml: " in line
    assert expected in line


def test_one_of_several_is_taken_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    for encoding in ("utf-8", "utf-8-sig"):
        # A byte order mark is not part of a file.
        path.write_text(SEVERAL, encoding=encoding)
        assert load_settings(path, "b").stream.rank == 3
    with pytest.raises(ConfigurationError, match="no stream 'd'; it has a, b, c"):
        load_settings(path, "d")
    with pytest.raises(ConfigurationError, match=r"several streams \(a, b, c\): name one with --stream"):
        load_settings(path)


# -- secrets ---------------------------------------------------------------


@pytest.fixture
def with_password(load: Load, monkeypatch: Patch) -> Settings:
    for path, value in SASL.items():
        if path[1] != "sasl_password_file":
            monkeypatch.setenv(variable_name(path), value)
    monkeypatch.setenv("STREAMING_PCA_KAFKA__SASL_PASSWORD", PASSWORD)
    return load()[0]


def test_a_password_from_the_environment_reaches_the_client_alone(with_password: Settings) -> None:
    assert with_password.kafka.password == PASSWORD
    for each in (with_password, with_password.kafka):
        for dump in (
            repr(each),
            each,
            each.model_dump_json(),
            each.model_dump(mode="json"),
            each.model_dump(),
        ):
            assert PASSWORD not in str(dump)
    assert PASSWORD not in f"{with_password.stream.privacy_contract}{vars(with_password)}"


def test_a_password_in_the_file_is_refused_and_not_repeated(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="STREAMING_PCA_KAFKA__SASL_PASSWORD") as caught:
        load(GOOD.replace("[kafka]", f'[kafka]\nsasl_password = "{PASSWORD}"'))
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("name", ["token", "metrics_token"])
def test_a_token_comes_from_the_environment_or_a_file_of_its_own(
    name: str, load: Load, monkeypatch: Patch
) -> None:
    variable = f"STREAMING_PCA_HTTP__{name.upper()}"
    with pytest.raises(ConfigurationError, match=f"use http.{name}_file, or {variable}") as e:
        load(f'[http]\n{name} = "{TOKEN}"\n{GOOD}')
    assert TOKEN not in str(e.value)
    monkeypatch.setenv(variable, TOKEN)
    settings = load()[0]
    assert getattr(settings.http, name).get_secret_value() == TOKEN
    for shown in (repr(settings), str(settings), settings.model_dump_json(), vars(settings)):
        assert TOKEN not in str(shown)
    monkeypatch.setenv(variable, TOKEN[:15])
    with pytest.raises(ConfigurationError, match="at least 16 characters") as e:
        load()
    assert TOKEN[:15] not in str(e.value)


def test_a_password_is_read_from_its_file(load: Load, tmp_path: Path, monkeypatch: Patch) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    lines = {**SASL, ("kafka", "sasl_password_file"): file}.items()
    text = GOOD.replace(
        "[kafka]", "\n".join(["[kafka]", *(f'{name} = "{value}"' for (_, name), value in lines)])
    )
    kafka = load(text)[0].kafka
    assert kafka.password == PASSWORD
    assert PASSWORD not in repr(kafka)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"kafka\.sasl_password_file: .*No such file"):
        _ = kafka.password
    monkeypatch.setenv("STREAMING_PCA_KAFKA__SASL_PASSWORD", PASSWORD)
    with pytest.raises(ConfigurationError, match="not both") as caught:
        load(text)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"KAFKA": json.dumps({"sasl_password": [PASSWORD]})},
        {"KAFKA": json.dumps({"sasl_password": PASSWORD, "colour": PASSWORD})},
        {"KAFKA": '{"sasl_password": "' + PASSWORD},
        {"KAFKA__SASL_PASSWORD": PASSWORD, "KAFKA__SASL_MECHANISM": PASSWORD},
        {"KAFKA__SASL_PASSWORD": PASSWORD, "KAFKA__SECURITY_PROTOCOL": "SASL_SSL"},
        {"KAFKA__SASL_PASSWORD": PASSWORD, "KAFKA__PORT": PASSWORD},
        {"STREAMS": json.dumps([{"kafka": {"sasl_password": PASSWORD}}])},
    ],
)
def test_no_error_repeats_a_password(variables: dict[str, str], load: Load, monkeypatch: Patch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"STREAMING_PCA_{name}", value)
    with pytest.raises(ConfigurationError) as caught:
        load()
    error: BaseException | None = caught.value
    assert PASSWORD not in str(error)
    # A traceback would not print it either.
    assert error is not None
    assert error.__suppress_context__ or error.__context__ is None


PLAIN = 'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\n'
OAUTH = 'security_protocol = "SASL_SSL"\nsasl_mechanism = "OAUTHBEARER"\n'
GRANT = (
    'sasl_oauth_token_url = "https://login.test/token"\nsasl_oauth_client_id = "me"\n'
    'sasl_oauth_client_secret_file = "/run/secret"\n'
)


@pytest.mark.parametrize(
    ("lines", "refusal"),
    [
        (OAUTH + 'sasl_oauth_token_file = "/run/token"', None),
        (OAUTH + GRANT, None),
        (OAUTH, "OAUTHBEARER needs sasl_oauth_token_file or sasl_oauth_token_url"),
        (OAUTH + GRANT + 'sasl_oauth_token_file = "/run/token"', "not both"),
        (
            OAUTH + GRANT.partition("\n")[0],
            "token_url needs sasl_oauth_client_id and sasl_oauth_client_secret_",
        ),
        (OAUTH + GRANT.replace("https:", "http:"), "must be https://HOST"),
        (OAUTH + GRANT.replace("https://login.test", "http://localhost:8080"), None),
        (OAUTH + GRANT.replace("login.test", f"me:{PASSWORD}@login.test"), "must not hold a password"),
        ('security_protocol = "SASL_SSL"', "needs sasl_mechanism"),
        (PLAIN, "(?s)needs sasl_username.*a password is needed: sasl_password_file"),
        # What the protocol or the mechanism ignores.
        (
            'sasl_mechanism = "PLAIN"\nsasl_username = "me"\nsasl_password_file = "/run/password"',
            '(?s)sasl_mechanism needs security_protocol = "SASL_SSL" or "SASL_PLAINTEXT".*'
            "sasl_password_file needs security_protocol.*sasl_username needs security_protocol",
        ),
        ('ssl_cafile = "/ca.pem"', 'ssl_cafile needs security_protocol = "SSL" or "SASL_SSL"'),
        (
            OAUTH.replace("_SSL", "_PLAINTEXT") + GRANT + 'ssl_cafile = "/ca"',
            "ssl_cafile needs security_protoc",
        ),
        (PLAIN + 'sasl_oauth_token_file = "/x"', 'oauth_token_file needs sasl_mechanism = "OAUTHBEARER"'),
        ('security_protocol = "SSL"\nssl_keyfile = "/key.pem"', "ssl_keyfile needs ssl_certfile"),
    ],
)
def test_settings_of_tokens_belong_together(load: Load, lines: str, refusal: str | None) -> None:
    text = GOOD.replace("[kafka]", f"[kafka]\n{lines}")
    if refusal is None:
        load(text)
        return
    with pytest.raises(ConfigurationError, match=refusal) as caught:
        load(text)
    assert PASSWORD not in str(caught.value)
