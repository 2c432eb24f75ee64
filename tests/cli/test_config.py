"""`streaming-pca config`: a file's effective settings, the possible settings, README's reference."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from streaming_pca.config.environment import SECRETS, variable_name
from streaming_pca.config.loading import load_streams
from streaming_pca.config.schema import every_setting, file_schema
from streaming_pca.data.schemas import payload_schema
from streaming_pca.service.topics.asyncapi import asyncapi_document
from tests.cli.command import call
from tests.cli.test_app import closed_port, one_line, run, write_config
from tests.cli.test_refusals import LOCAL
from tests.config.test_loading import PASSWORD, SEVERAL, TOKEN
from tests.config.test_settings import GOOD, OJA
from tests.security.needles import secret
from tests.service.contract import MESSAGE_SCHEMAS
from tests.waiting import without_progress

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

SASL = '\nsecurity_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "PLAIN"\nsasl_username = "me"\n'
STREAM = GOOD.partition("[stream]")[2]


PARTLY_BOUNDED = (
    '{name = "age", bounds = [0, 120]}, {name = "smoker"}, {name = "c", categories = ["DE", "FR"]}'
)
PAPER = 'estimator = "private-oja"\noptions = { clip_radius = 1.0 }\n'
"""Estimator that reads pairs by default."""


def written(tmp_path: Path, text: str = GOOD) -> Path:
    path = tmp_path / "stream.toml"
    path.write_text(text)
    return path


Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def check(tmp_path: Path, capfd: Capture) -> Check:
    """Return ``check(text, *options)``, which runs `config check` on a file of this text."""
    return lambda text=GOOD, *more: call(capfd, "config", "check", "--config", written(tmp_path, text), *more)


def facts_of(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


# -- check -----------------------------------------------------------------


def test_a_start_at_the_latest_records_has_a_note_of_when_it_has_an_effect(check: Check) -> None:
    note = 'note: stream.start = "latest" has no effect on a stream that has begun (--broker)\n'
    result = check(GOOD + 'start = "latest"\n')
    assert (result.returncode, result.stderr) == (0, note)


def test_each_value_is_shown_with_its_origin(check: Check, monkeypatch: Patch) -> None:
    monkeypatch.setenv("STREAMING_PCA_STREAM__EPSILON", "0.5")
    monkeypatch.setenv("STREAMING_PCA_STREAM__OPTIONS__GROWTH", "2")
    monkeypatch.setenv("STREAMING_PCA_WORKER", '{"tick_seconds": 1}')
    monkeypatch.setenv("STREAMING_PCA_STREAM__CAP__EPSILON", "1/3")
    text = GOOD + 'cap = { delta = "1e-6" }\n[stream.options]\nfirst_batch = 100\n'
    facts = facts_of(check(text, "--json"))
    (stream,) = facts["streams"]
    found = facts["settings"] | stream["settings"]
    expected = {
        "kafka.bootstrap_servers": ("127.0.0.1:9092", "file"),
        "kafka.request_timeout_ms": (10_000, "default"),
        "worker.tick_seconds": (1.0, "environment"),
        "worker.group": ("streaming-pca", "default"),
        "stream.epsilon": (0.5, "environment"),
        "stream.delta": (1e-6, "file"),
        "stream.bounds": (None, "default"),
        "stream.cap.epsilon": ("1/3", "environment"),
        "stream.cap.delta": ("1/1000000", "file"),
        "stream.options.growth": (2.0, "environment"),
        "stream.options.first_batch": (100, "file"),
        "stream.options.max_batch": (131_072, "default"),
    }
    assert {key: (found[key]["value"], found[key]["origin"]) for key in expected} == expected
    shown = {".".join(s.path) for s in every_setting() if s.estimator in (None, "adaptive")}
    # An optional section that is not set has no values.
    assert set(found) == {key for key in shown if not key.startswith("registry.")}


def test_streams_of_the_environment_are_its_own(check: Check, monkeypatch: Patch) -> None:
    own = [{"name": "x", "options": {"growth": 3}}, {"name": "y", "cap": {"epsilon": 1, "delta": 0}}]
    monkeypatch.setenv("STREAMING_PCA_STREAMS", json.dumps(own))
    x, y = (s["settings"] for s in facts_of(check(GOOD, "--json"))["streams"])
    assert (x["stream.name"]["origin"], x["stream.rank"]["origin"]) == ("environment", "file")
    assert x["stream.options.growth"] == {"value": 3.0, "origin": "environment"}
    assert x["stream.options.n_batches"]["origin"] == y["stream.options.growth"]["origin"] == "default"
    assert y["stream.cap.epsilon"] == {"value": "1", "origin": "environment"}


def test_topics_first_batch_and_memory_of_each_stream_are_shown(check: Check) -> None:
    a, b, c = facts_of(check(SEVERAL, "--json"))["streams"]
    assert [s["stream"] for s in (a, b, c)] == ["a", "b", "c"]
    assert b["topics"] == {"input": "in", "ledger": "in.ledger", "state": "b.state", "releases": "b.releases"}
    assert [s["first_batch"]["records"] for s in (a, b, c)] == [100, 200, 4096]
    charge = {"epsilon": "1", "delta": "1/1000000", "rho": "1359179953/50000000000"}
    assert a["first_batch"]["charge"] == charge
    # Analytic Gaussian mechanism at (0.98, 1e-6): the diagnostics have the rest of epsilon.
    assert a["first_batch"]["noise_multiplier"] == pytest.approx(4.3046, abs=1e-4)
    memory = a["memory_bytes"]
    two_batches = 2 * 131_072 * (4 * 4 + 16)
    assert two_batches < memory["one_row_messages"] < memory["any_messages"]
    assert memory["any_messages"] > 2 * 131_072 * 64 * 4 * 8


def test_a_stream_that_is_not_private_is_shown_with_its_infinite_charge(check: Check) -> None:
    (stream,) = json.loads(check(OJA, "--json").stdout, parse_constant=pytest.fail)["streams"]
    assert stream["first_batch"]["charge"] == {"epsilon": "inf", "delta": "inf", "rho": "inf"}
    assert stream["first_batch"]["noise_multiplier"] is None
    assert stream["settings"]["stream.epsilon"] == {"value": "inf", "origin": "file"}
    assert stream["settings"]["stream.private"] == {"value": False, "origin": "file"}
    text = check(OJA)
    assert text.returncode == 0, text.stderr
    assert "NOT private" in text.stdout
    assert "each charged (inf, inf)" in text.stdout


@pytest.mark.parametrize(
    ("text", "cap", "words"),
    [
        (OJA, "1,1e-6", ("is not private", "charges infinity", "--cap inf,inf")),
        (OJA, "inf,1", ("is not private", "--cap inf,inf")),
        (
            GOOD + "cap = { epsilon = 2, delta = 2e-6 }\n",
            "3,2e-6",
            ["--cap differs from stream.cap of stream"],
        ),
    ],
)
def test_no_ledger_is_opened_with_a_cap_that_is_wrong_for_the_stream(
    text: str, cap: str, words: Sequence[str], tmp_path: Path, capfd: Capture
) -> None:
    # The refusal precedes any request, as no broker answers at this address.
    created = call(capfd, "topics", "create", "--config", written(tmp_path, text), "--cap", cap)
    one_line(created, 2, *words)


def test_memory_counts_the_state(check: Check) -> None:
    """One state has a covariance and its slots' three sums, 400 x 400; the other a basis."""
    wide = GOOD.replace("dim = 4", "dim = 400") + 'centering = "none"\n'
    large, small = (
        facts_of(check(wide + more, "--json"))["streams"][0]["memory_bytes"]["any_messages"]
        for more in (
            "options = { first_batch = 64, max_batch = 64 }\n",
            'estimator = "private-oja"\noptions = { batch_size = 64, clip_radius = 1, learning_rate = 1 }\n',
        )
    )
    assert large - small > 4 * 400**2 * 8


def test_matrices_have_all_their_rows_in_memory(check: Check) -> None:
    text = GOOD + 'record_kind = "matrix"\ncentering = "none"\n'
    (stream,) = facts_of(check(text, "--json"))["streams"]
    assert set(stream["memory_bytes"]) == {"any_messages"}
    assert stream["memory_bytes"]["any_messages"] > 2 * 131_072 * 4 * 4 * 8


def test_text_is_four_lines_a_stream_and_more_with_verbose(check: Check, tmp_path: Path) -> None:
    config, result = tmp_path / "stream.toml", check(GOOD)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{config}: ok: stream s; broker not checked (--broker)",
        "  guarantee    each message: (1, 1e-06)-differential privacy over all releases",
        "  first batch  4096 records, each charged (1, 1e-06); noise multiplier 4.305",
        "  topics       in, in.ledger, s.state, s.releases",
    ]
    result = check(SEVERAL, "--verbose")
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["bootstrap_servers", '"127.0.0.1:9092"', "file"] in lines
    assert ["rank", "3", "file"] in lines
    assert ["growth", "1.6", "default"] not in lines[: lines.index(["stream", "b"])]
    assert lines.count(["[stream.options]"]) == 3
    assert "  first batch  200 records, each charged (1, 1e-06); noise mult" in result.stdout
    assert "  memory       at most " in result.stdout
    assert f"{config}: ok: 3 streams; broker not checked (--broker)" in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("delta = 1e-6", "delta = 0.1"), "delta = 0.1 is above 0.001: "),
        (("epsilon = 1.0", "epsilon = 1000"), "epsilon = 1000 is above 20: "),
        (
            ("delta = 1e-6", "delta = 1e-4\noptions = { n_records = 20000 }"),
            "delta = 0.0001 is not below 1/records = 5e-05: ",
        ),
        (("rank = 2", "rank = 3\noptions = { n_records = 2 }"), "options.n_records = 2 is below rank = 3"),
        (
            ("rank = 2", f"rank = 2\nmax_rows = 2\n{PAPER}"),
            'max_rows = 2, but with centering = "pairs" records of several rows count as null: ',
        ),
        (
            ("rank = 2", "rank = 2\nmax_rows = 2"),
            'max_rows = 2, but with centering = "auto" records of several rows whose mean moves have wrong ',
        ),
        (
            ("dim = 4\n", f"features = [{PARTLY_BOUNDED}]\n"),
            "no bounds of smoker: no feature is clamped, or scaled by its bounds",
        ),
    ],
)
def test_a_doubtful_setting_is_a_warning(check: Check, change: tuple[str, str], expected: str) -> None:
    text = GOOD.replace(*change)
    result = check(text)
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: stream s: {expected}")
    (warning,) = facts_of(check(text, "--json"))["streams"][0]["warnings"]
    assert line.endswith(warning)


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (PAPER, True),
        (PAPER + "max_rows = 1\n", True),
        ('centering = "pairs"\n', True),
        (PAPER + 'centering = "none"\nmax_rows = 2\n', False),
        ('max_rows = 2\nprivacy_unit = "row"\n', False),
    ],
    ids=["by default", "one row", "as set", "uncentred", "auto"],
)
def test_pairs_are_named_without_a_warning(check: Check, more: str, shown: bool) -> None:
    """A stream of vectors needs none; a stream of factors would become null in silence."""
    result = check(GOOD + more)
    assert (result.returncode, result.stderr) == (0, "")
    line = '  centering    "pairs": records of several rows count as null'
    assert (line in result.stdout.splitlines()) == shown


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ('privacy_unit = "user"', "all messages of a user: {} over all releases"),
        ('privacy_unit = "row"\nmax_rows = 2', "each row of a message: {} over all releases"),
        (LOCAL[0][1].partition("\n")[2], "each report: {} before it is sent"),
    ],
)
def test_the_guarantee_is_a_sentence_on_its_unit(check: Check, change: str, expected: str) -> None:
    sentence = expected.format("(1, 1e-06)-differential privacy")
    assert f" {sentence} " in " ".join(check(GOOD + change + "\n").stdout.split())


def test_infinity_can_be_shown(check: Check) -> None:
    facts = facts_of(check(GOOD + "[worker]\ngive_up_seconds = inf\n", "--json"))
    assert facts["settings"]["worker.give_up_seconds"] == {"value": "inf", "origin": "file"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stream = [", "is not TOML"),
        ("kafka = 5\n[stream]" + STREAM, "kafka: must"),
        (
            f"[kafka]\nsasl_password_file = '/no/x'{SASL}[stream]{STREAM}",
            "kafka.sasl_password_file: /no/x: No",
        ),
        (
            f"kafka = {{security_protocol = 'SSL', ssl_cafile = '/no/x'}}\n[stream]{STREAM}",
            "kafka.ssl_cafile: /no/x",
        ),
        (f"{GOOD}[registry]\nurl = 'https://a'\ntoken_file = '/no/x'", "registry.token_file: /no/x: No such"),
        (f"http.host = '0.0.0.0'\n{GOOD}", "http.host = '0.0.0.0' is not loopback: set http.token_file"),
        (f"http.token_file = '/no/x'\n{GOOD}", "http.token_file: /no/x: No such file"),
    ],
)
def test_a_wrong_file_is_one_line(check: Check, text: str, expected: str) -> None:
    one_line(check(text), 2, expected)


def test_a_password_is_masked_and_its_origin_shown(check: Check, monkeypatch: Patch) -> None:
    secrets = ("kafka.sasl_password", "http.token", "registry.password")
    for name in secrets:
        monkeypatch.setenv(variable_name(tuple(name.split("."))), TOKEN)
    text = GOOD.replace("[kafka]", f"[registry]\nurl = 'https://a'\nusername = 'me'\n[kafka]{SASL}")
    for option in ("--json", "--verbose"):
        shown = check(text, option)
        assert "**********" in shown.stdout
        assert TOKEN not in shown.stdout + shown.stderr
    settings = facts_of(check(text, "--json"))["settings"]
    assert [settings[name] for name in secrets] == [{"value": "**********", "origin": "environment"}] * 3


# One process runs all commands, as each takes seconds to start.
RUN_ALL = """
import sys
from streaming_pca.cli import main
for command in {commands}:
    sys.argv = ["streaming-pca", "--verbose", *command, "--config", {config!r}]
    try:
        main()
    except SystemExit as end:
        print("status", *command, end.code)
"""


@pytest.mark.parametrize("by_file", [False, True])
def test_no_command_prints_a_password(tmp_path: Path, by_file: bool, monkeypatch: Patch) -> None:
    """The broker's port is closed, and all possible output is logged."""
    text = GOOD.replace("127.0.0.1:9092", f"127.0.0.1:{closed_port()}")
    sasl = f"{SASL}bootstrap_timeout_ms = 100\n"
    if by_file:
        (tmp_path / "password").write_text(PASSWORD)
        sasl += f'sasl_password_file = "{tmp_path / "password"}"\n'
    else:
        monkeypatch.setenv("STREAMING_PCA_KAFKA__SASL_PASSWORD", PASSWORD)
    monkeypatch.setenv("STREAMING_PCA_HTTP__TOKEN", secret("token"))
    config = written(tmp_path, text.replace("[kafka]", "[kafka]" + sasl))
    monkeypatch.setenv("STREAMING_PCA_LOG__LEVEL", "debug")
    monkeypatch.setenv("STREAMING_PCA_WORKER__GIVE_UP_SECONDS", "1")
    monkeypatch.setenv("STREAMING_PCA_HTTP__PORT", "0")
    statuses = {
        ("config", "check"): 0,
        ("config", "check", "--json"): 0,
        ("config", "check", "--broker"): 4,
        ("status",): 4,
        ("watch",): 4,
        ("ledger", "show"): 4,
        ("topics", "create", "--cap", "1,1e-6"): 4,
        ("worker",): 4,
    }
    program = [sys.executable, "-c", RUN_ALL.format(commands=list(statuses), config=str(config))]
    result = subprocess.run(program, capture_output=True, text=True, timeout=200, check=True)
    assert PASSWORD not in result.stdout + result.stderr
    # The missing broker is the error, not the password.
    found = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("status ")]
    assert found == [[*command, str(status)] for command, status in statuses.items()]
    assert result.stderr.count("no broker answers") >= list(statuses.values()).count(4)


# -- check --broker --------------------------------------------------------


def test_the_broker_is_asked_for_topics_cap_and_promise(
    tmp_path: Path, broker_bootstrap: str, unique_name: Callable[[str], str], capfd: Capture
) -> None:
    name = unique_name("check")
    config = write_config(tmp_path, broker_bootstrap, name)
    check = ("config", "check", "--broker", "--config")
    one_line(call(capfd, *check, config), 2, f"{name}-in", "is missing", "topics create")
    assert call(capfd, "topics", "create", "--config", config, "--cap", "1,1e-6").returncode == 0
    result = call(capfd, *check, config)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].startswith(f"{config}: ok: stream ")
    assert facts_of(call(capfd, *check, config, "--json"))["broker"] == "checked"

    capped = ("rank = 2", "rank = 2\ncap = { epsilon = 2, delta = 0 }")
    other = write_config(tmp_path, broker_bootstrap, name, capped)
    one_line(call(capfd, *check, other), 2, "stream.cap is (2, 0)", "opened with (1, 1e-06)")


@pytest.mark.kafka
def test_what_the_worker_would_refuse_the_check_refuses_in_the_same_words(
    tmp_path: Path, kafka_bootstrap: str, unique_name: Callable[[str], str], capfd: Capture
) -> None:
    name = unique_name("promised")
    fewer = (("n_records = 3000", "n_records = 600"), ("n_batches = 2", "n_batches = 1"))
    config = write_config(tmp_path, kafka_bootstrap, name, *fewer)
    assert call(capfd, "topics", "create", "--config", config, "--cap", "1,1e-6").returncode == 0
    records = tmp_path / "x.csv"
    records.write_text("1,2,3,4,5,6\n" * 600)
    assert call(capfd, "produce", records, "--config", config).returncode == 0
    assert run("worker", "--config", config).returncode == 0

    other = write_config(tmp_path, kafka_bootstrap, name, ("epsilon = 1.0", "epsilon = 0.5"))
    refused = run("worker", "--config", other)
    one_line(refused, 2, "stream.epsilon is 0.5", "the ledger has 1.0")
    check = call(capfd, "config", "check", "--broker", "--config", other)
    one_line(check, 2, "stream.epsilon is 0.5")
    (line,) = without_progress(check.stderr)
    assert line.removeprefix("error: ") in refused.stderr


# -- schema ----------------------------------------------------------------

VALID = [
    *(GOOD, OJA, SEVERAL),
    GOOD + 'bounds = [-5, [1, 2, 3, 4]]\ncap = { epsilon = "1/3", delta = 1e-6 }\nscale = 2\n',
    GOOD + "centering = [1, 2, 3, 4]\n[stream.options]\nradius_range = [1, 2]\n[worker]\ntick_seconds = 1\n",
    GOOD + 'estimator = "private-oja"\ncentering = "none"\noptions = { clip_radius = 1 }\n',
    GOOD + 'estimator = "block"\noptions = { oversampling = 1, half_life = 1000 }\n',
    GOOD + 'options = { route = "block", half_life = "auto" }\n',
]
INVALID = [
    GOOD.replace("dim = 4\n", ""),
    GOOD.replace("dim = 4", "dim = 'x'"),
    GOOD.replace("dim = 4", "dim = 0"),
    GOOD + "colour = 1\n",
    GOOD + "[colours]\n",
    GOOD + "estimator = 'magic'\n",
    GOOD + "[stream.options]\nclip_quantile = 2\n",
    GOOD + "[stream.options]\nlearning_rate = 1.0\n",
    GOOD + "[stream.options]\noversampling = 1\n",
    GOOD + "[stream.options]\nroute = 'oja'\n",
    GOOD.replace("[kafka]", f"[kafka]\nsasl_password = '{PASSWORD}'"),
    SEVERAL.replace("rank = 3", "rank = 'x'"),
    SEVERAL.replace("clip_radius = 2.0", "growth = 2.0"),
    "streams = []",
]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = file_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("text", VALID)
def test_the_schema_takes_what_is_a_good_file(
    text: str, check: Check, validator: Draft202012Validator
) -> None:
    assert check(text).returncode == 0
    assert [error.message for error in validator.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize("text", INVALID)
def test_the_schema_refuses_what_is_a_wrong_file(
    text: str, check: Check, validator: Draft202012Validator
) -> None:
    assert check(text).returncode == 2
    assert not validator.is_valid(tomllib.loads(text))


def test_the_command_prints_the_schema_with_every_key_but_secrets(capfd: Capture) -> None:
    printed = call(capfd, "config", "schema")
    assert printed.returncode == 0
    schema = json.loads(printed.stdout)
    assert schema == file_schema()
    for setting in every_setting():
        assert (f'"{setting.path[-1]}"' in printed.stdout) == (setting.path not in SECRETS)


def test_the_command_prints_the_schemas_of_messages_of_all_streams_and_of_one(
    capfd: Capture, tmp_path: Path
) -> None:
    for name, made in (*MESSAGE_SCHEMAS.items(), ("asyncapi", asyncapi_document)):
        assert json.loads(call(capfd, "config", "schema", name).stdout) == made()
    file = written(tmp_path, SEVERAL)
    one, *_ = load_streams(file)
    how = ("--config", file, "--stream", one.stream.name)
    printed = json.loads(call(capfd, "config", "schema", "asyncapi", *how).stdout)
    assert printed == asyncapi_document(one.stream, one.kafka)
    printed = json.loads(call(capfd, "config", "schema", "payload", *how).stdout)
    assert printed == payload_schema(one.stream.dim, one.stream.max_rows)
