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


def payload(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "payload"
    path.write_bytes(data)
    return path


def test_json_without_its_header_is_null_and_the_header_is_named(
    capfd: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    """Thousands of such messages became null records, without any explanation."""
    file = payload(tmp_path, JSON.encode())
    result = call(capfd, "payload", "check", file, "--config", config)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith(
        "null record: 16 octets are not a multiple of 12, the size of a row of 3 float32\n"
    )
    assert LOOKS in result.stdout
    for how in (("--content-type", "json"), ("--header", "content-type=application/json; charset=utf-8")):
        result = call(capfd, "payload", "check", file, "--config", config, *how)
        assert (result.returncode, result.stdout) == (0, "a record: 1 row of 3 numbers from 1 to 3\n")
    config.write_text(config.read_text() + 'format = "json"\n')
    assert call(capfd, "payload", "check", file, "--config", config).returncode == 0


def test_a_number_that_is_not_finite_is_named_by_its_feature(
    capfd: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    file = payload(tmp_path, np.array([1, 2, np.nan], "<f4").tobytes())
    result = call(capfd, "payload", "check", file, "--config", config, "--json")
    assert result.returncode == 1
    facts = json.loads(result.stdout)
    assert facts.pop("reason") == "NaN at position 2 (humidity)"
    expected = {"record": False, "hint": None, "octets": 12, "rows": 0, "null_rows": 0}
    assert facts == expected | {"least": None, "largest": None}


def test_lines_of_standard_input_are_payloads(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = f'{JSON}\n{{"x": [1, 2]}}\n{JSON}\n[1, 2, 3]\n'.encode()
    how = ("payload", "check", "-", "--dim", 3, "--content-type", "json", "--lines")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    result = call(capfd, *how)
    assert result.returncode == 1
    assert result.stdout.splitlines()[0] == "line 2: it has 2 numbers, but dim = 3"
    assert result.stdout.splitlines()[-1] == "2 of 4 payloads are null records"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    facts = json.loads(call(capfd, *how, "--json").stdout)
    assert (facts["payloads"], facts["null"]) == (4, 2)
    assert [verdict["record"] for verdict in facts["verdicts"]] == [True, False, True, False]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (("--dim", 3, "--privacy-unit", "row"), "1 of 2 records are null: row 1: NaN at position 1"),
        (("--dim", 6, "--privacy-unit", "user"), "null record: NaN at position 4"),
        (("--dim", 3, "--dtype", "float64", "--max-rows", 1), "null record: NaN at position 2"),
        (("--dim", 3, "--record-kind", "matrix"), "null record: its shape is (2, 3), but a matrix"),
    ],
    ids=str,
)
def test_a_stream_is_described_by_options_too(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, how: tuple[object, ...], words: str
) -> None:
    values = np.array([1, 2, 3, 4, np.nan, 6], "<f4")
    if "float64" in how:
        values = np.array([1, 2, np.nan], "<f8")
    result = call(capfd, "payload", "check", payload(tmp_path, values.tobytes()), *how)
    assert result.returncode == 1
    assert result.stdout.startswith(words)


def test_pairs_read_records_of_one_row(
    capfd: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    """A paper's estimator reads pairs by default: whole streams of factors were null in silence."""
    one = payload(tmp_path, np.ones((1, 3), "<f4").tobytes())
    two = tmp_path / "two"
    two.write_bytes(np.ones((2, 3), "<f4").tobytes())
    assert call(capfd, "payload", "check", two, "--config", config).returncode == 0
    text = config.read_text()
    paper = 'estimator = "private-oja"\n'
    options = "[stream.options]\nclip_radius = 1.0\n"
    config.write_text(text + paper + options)
    assert call(capfd, "payload", "check", one, "--config", config).returncode == 0
    done = call(capfd, "payload", "check", two, "--config", config)
    reason = 'it has 2 rows, but centering = "pairs" reads records of one row'
    assert (done.returncode, done.stdout) == (1, f"null record: {reason}\n")
    facts = json.loads(call(capfd, "payload", "check", two, "--config", config, "--json").stdout)
    assert (facts["record"], facts["reason"], facts["rows"]) == (False, reason, 0)
    config.write_text(text + paper + 'centering = "none"\n' + options)
    assert call(capfd, "payload", "check", two, "--config", config).returncode == 0


def test_a_user_s_message_needs_a_key(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    how = ("payload", "check", payload(tmp_path, bytes(12)), "--dim", 3, "--privacy-unit", "user")
    result = call(capfd, *how)
    assert (result.returncode, result.stdout) == (1, "null record: it has no key to name the user\n")
    assert call(capfd, *how, "--key", "ann").returncode == 0


@pytest.mark.parametrize("option", ["--header", "--key", "--content-type"])
def test_arguments_that_are_not_utf8_are_the_octets_that_they_are(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    file = payload(tmp_path, np.ones(3, "<f4").tobytes())
    # Python decodes the argument b"dtype=\xff" to this.
    done = call(capfd, "payload", "check", file, "--dim", 3, option, "dtype=\udcff")
    assert done.returncode == (0 if option == "--key" else 1), done.stderr
    assert "Traceback" not in done.stderr


def test_a_payload_that_names_a_schema_is_read_by_what_the_registry_lists(
    capfd: pytest.CaptureFixture[str],
    apicurio: Apicurio,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic, config = unique_name("visits"), tmp_path / "stream.toml"

    def check(value: bytes, url: str) -> subprocess.CompletedProcess[str]:
        config.write_text(
            f'[registry]\nurl = "{url}"\n[stream]\nname = "s"\ninput = "{topic}"\nformat = "avro"\nrank = 1\n'
            'epsilon = 1.0\ndelta = 1e-6\n[[stream.features]]\nname = "a"\nbounds = [0, 9]\n'
        )
        return call(capfd, "payload", "check", payload(tmp_path, value), "--config", config)

    with Producer(apicurio, topic) as producer:
        value = producer.avro(record_type("V", a="double"), {"a": 1.5})
    result = check(value, apicurio.url)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("a record: 1 row")
    result = check(b"\0\0\xff\xff\xff" + value[5:], apicurio.url)
    assert (result.returncode, result.stderr) == (1, "")
    assert "has the id 16777215: it is not among the versions that the registry listed" in result.stdout
    url = f"http://127.0.0.1:{closed_port()}"
    result = check(value, url)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: registry.url = '{url}' does not answer (Connection refused)\n"
