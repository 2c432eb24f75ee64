"""`payload check` answers as a worker would, without a broker."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.command import call
from tests.cli.test_app import closed_port
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.producers import Producer, record_type

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
Check = Callable[..., subprocess.CompletedProcess[str]]
JSON = '{"x": [1, 2, 3]}'
LOOKS = "it looks like JSON, but has no header content-type"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "stream.toml"
    path.write_text(
        '[stream]\nname = "s"\ninput = "in"\ndim = 3\nrank = 1\nepsilon = 1.0\ndelta = 1e-6\n'
        'feature_names = ["a", "b", "humidity"]\n'
    )
    return path


@pytest.fixture
def check(capfd: Capture, tmp_path: Path) -> Check:
    """Return ``check(payload, *options)``, which runs `payload check` on a file of these octets."""

    def check(data: bytes, *options: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / "payload").write_bytes(data)
        return call(capfd, "payload", "check", tmp_path / "payload", *options)

    return check


def test_json_without_its_header_is_null_and_the_header_is_named(check: Check, config: Path) -> None:
    """Thousands of such messages became null records, without any explanation."""
    result = check(JSON.encode(), "--config", config)
    assert (result.returncode, result.stderr) == (1, "")
    reason = "16 octets are not a multiple of 12, the size of a row of 3 float32"
    assert result.stdout.startswith(f"null record: {reason}\n")
    assert LOOKS in result.stdout
    for how in (("--content-type", "json"), ("--header", "content-type=application/json; charset=utf-8")):
        result = check(JSON.encode(), "--config", config, *how)
        assert (result.returncode, result.stdout) == (0, "a record: 1 row of 3 numbers from 1 to 3\n")
    config.write_text(config.read_text() + 'format = "json"\n')
    assert check(JSON.encode(), "--config", config).returncode == 0


def test_a_number_that_is_not_finite_is_named_by_its_feature(check: Check, config: Path) -> None:
    result = check(np.array([1, 2, np.nan], "<f4").tobytes(), "--config", config, "--json")
    assert result.returncode == 1
    facts = json.loads(result.stdout)
    assert facts.pop("reason") == "NaN at position 2 (humidity)"
    expected = {"record": False, "hint": None, "octets": 12, "rows": 0, "null_rows": 0}
    assert facts == expected | {"least": None, "largest": None}


def test_lines_of_standard_input_are_payloads(capfd: Capture, monkeypatch: Patch) -> None:
    lines = f'{JSON}\n{{"x": [1, 2]}}\n{JSON}\n[1, 2, 3]\n'.encode()

    def check(*more: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
        return call(capfd, "payload", "check", "-", "--dim", 3, "--content-type", "json", "--lines", *more)

    result = check()
    assert result.returncode == 1
    assert result.stdout.splitlines()[0] == "line 2: it has 2 numbers, but dim = 3"
    assert result.stdout.splitlines()[-1] == "2 of 4 payloads are null records"
    facts = json.loads(check("--json").stdout)
    assert (facts["payloads"], facts["null"]) == (4, 2)
    assert [verdict["record"] for verdict in facts["verdicts"]] == [True, False, True, False]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (None, "null record: NaN at position 4"),
        ('privacy_unit = "row"\nmax_rows = 2', "1 of 2 records are null: row 1: NaN at position 1"),
        ('dtype = "float64"\nmax_rows = 1', "null record: NaN at position 2"),
        ('record_kind = "matrix"\ncentering = "none"', "null record: its shape is (2, 3), but a matrix"),
    ],
)
def test_the_record_is_read_by_the_stream_s_settings(
    check: Check, config: Path, settings: str | None, words: str
) -> None:
    values = np.array([1, 2, 3, 4, np.nan, 6], "<f4")
    if settings is not None and "float64" in settings:
        values = np.array([1, 2, np.nan], "<f8")
    config.write_text(f"{config.read_text()}{settings}\n")
    result = check(values.tobytes(), *(("--dim", 6) if settings is None else ("--config", config)))
    assert result.returncode == 1
    assert result.stdout.startswith(words)


def test_pairs_read_records_of_one_row(check: Check, config: Path) -> None:
    """A paper's estimator reads pairs by default: whole streams of factors were null in silence."""
    one, two = (np.ones((rows, 3), "<f4").tobytes() for rows in (1, 2))
    assert check(two, "--config", config).returncode == 0
    text = config.read_text()
    paper = 'estimator = "private-oja"\noptions = { clip_radius = 1.0 }\n'
    config.write_text(text + paper)
    assert check(one, "--config", config).returncode == 0
    done = check(two, "--config", config)
    reason = 'it has 2 rows, but centering = "pairs" reads records of one row'
    assert (done.returncode, done.stdout) == (1, f"null record: {reason}\n")
    facts = json.loads(check(two, "--config", config, "--json").stdout)
    assert (facts["record"], facts["reason"], facts["rows"]) == (False, reason, 0)
    config.write_text(text + paper + 'centering = "none"\n')
    assert check(two, "--config", config).returncode == 0


def test_a_user_s_message_needs_a_key(check: Check, config: Path) -> None:
    config.write_text(config.read_text() + 'privacy_unit = "user"\n')
    result = check(bytes(12), "--config", config)
    assert (result.returncode, result.stdout) == (1, "null record: it has no key to name the user\n")
    assert check(bytes(12), "--config", config, "--key", "ann").returncode == 0


@pytest.mark.parametrize("option", ["--header", "--key", "--content-type"])
def test_arguments_that_are_not_utf8_are_the_octets_that_they_are(check: Check, option: str) -> None:
    # Python decodes the argument b"dtype=\xff" to this.
    done = check(np.ones(3, "<f4").tobytes(), "--dim", 3, option, "dtype=\udcff")
    assert done.returncode == (0 if option == "--key" else 1), done.stderr
    assert "Traceback" not in done.stderr


def test_a_payload_that_names_a_schema_is_read_by_what_the_registry_lists(
    check: Check, apicurio: Apicurio, unique_name: Callable[[str], str], config: Path
) -> None:
    topic, url = unique_name("visits"), f"http://127.0.0.1:{closed_port()}"
    text = (
        f'registry.url = "{apicurio.url}"\n[stream]\nname = "s"\ninput = "{topic}"\nformat = "avro"\n'
        'rank = 1\nepsilon = 1.0\ndelta = 1e-6\nfeatures = [{ name = "a", bounds = [0, 9] }]\n'
    )
    config.write_text(text)
    with Producer(apicurio, topic) as producer:
        value = producer.avro(record_type("V", a="double"), {"a": 1.5})
    result = check(value, "--config", config)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("a record: 1 row")
    result = check(b"\0\0\xff\xff\xff" + value[5:], "--config", config)
    assert (result.returncode, result.stderr) == (1, "")
    assert "has the id 16777215: it is not among the versions that the registry listed" in result.stdout
    config.write_text(text.replace(apicurio.url, url))
    result = check(value, "--config", config)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: registry.url = '{url}' does not answer (Connection refused)\n"
