"""`streaming-pca project` refuses impossible projections before it asks a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import call

CONFIG = """
[kafka]
bootstrap_servers = "127.0.0.1:1"
bootstrap_timeout_ms = 1000

[stream]
input = "visits"
dim = 6
epsilon = 0.5
delta = 5e-7

[[streams]]
name = "coarse"
rank = 2

[[streams]]
name = "fine"
rank = 3
"""


@pytest.mark.parametrize(
    ("output", "more", "message"),
    [
        ("visits", (), "this is a topic of stream 'coarse'"),
        ("visits.ledger", (), "this is a topic of stream 'coarse'"),
        ("fine.releases", (), "this is a topic of stream 'fine'"),
        ("others.state", (), "topics whose names end in .ledger, .state, .releases belong to streams"),
        ("a topic", (), "--output must be 1 to 200 letters"),
        ("out", ("--format", "xml"), "--format must be octets or json, not 'xml'"),
    ],
)
def test_a_mistake_is_one_line(
    output: str, more: tuple[str, ...], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "visits.toml"
    config.write_text(CONFIG)
    arguments = ("project", "-c", str(config), "--stream", "coarse", "--output", output, *more)
    result = call(capfd, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
