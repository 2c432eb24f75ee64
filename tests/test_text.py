"""Texts that messages share."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from streaming_pca import text


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ({"url": "file:///tmp/my%20clone", "dir_info": {}}, "/tmp/my clone"),
        (
            {"url": "file:///tmp/x-0.6.0-py3-none-any.whl", "archive_info": {}},
            "/tmp/x-0.6.0-py3-none-any.whl",
        ),
        ({"url": "https://a.example/x.whl", "archive_info": {}}, "streaming_pca-0.6.0-py3-none-any.whl"),
        (None, "streaming_pca-0.6.0-py3-none-any.whl"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_was_installed_from(
    source: object, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = SimpleNamespace(
        version="0.6.0", read_text=lambda _: None if source is None else json.dumps(source)
    )
    monkeypatch.setattr(text, "distribution", lambda _: here)
    monkeypatch.setattr(text, "__file__", str(tmp_path / "streaming_pca" / "text.py"))
    assert text.install_command.__wrapped__("dashboard") == f"pip install '{place}[dashboard]'"
