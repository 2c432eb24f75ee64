"""Settings of the schema registry: one-line refusals, and secrets that are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.loading import load_settings
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.data.features.records import Subject
from tests.config.refusals import refusal
from tests.config.test_settings import GOOD
from tests.security.needles import secret

PASSWORD = secret("correct horse battery")
FORMAT = '\nformat = "avro"\nfeatures = [{name = "a", size = 4}]\n'


def file_of(tmp_path: Path, registry: str = "", stream: str = FORMAT) -> Path:
    path = tmp_path / "stream.toml"
    path.write_text(GOOD.replace('name = "s"', f'name = "s"{stream}') + registry)
    return path


def test_a_stream_without_a_schema_file_reads_the_registry_s_subject(tmp_path: Path) -> None:
    registry = '\n[registry]\nurl = "https://registry.example/apis/ccompat/v7/"\nseconds = 5\n'
    settings = load_settings(file_of(tmp_path, registry))
    assert settings.registry == RegistrySettings(url="https://registry.example/apis/ccompat/v7", seconds=5)
    assert settings.stream.registry_subject == Subject(f"{settings.stream.input}-value", "avro")
    assert "schema" not in settings.stream.privacy_contract
    with pytest.raises(ConfigurationError, match=r"the schemas are in the registry.*set stream\.schema_file"):
        _ = settings.stream.fields
    own = load_settings(file_of(tmp_path, registry, FORMAT + 'subject = "visits"\n'))
    assert own.stream.registry_subject == Subject("visits", "avro")


@pytest.mark.parametrize(("format_", "more"), [("avro", ""), ("protobuf", 'message = "t.Row"\n')])
def test_a_stream_without_a_schema_and_a_registry_is_refused_in_one_line(
    format_: str, more: str, tmp_path: Path
) -> None:
    path = file_of(tmp_path, stream=FORMAT.replace("avro", format_) + more)
    needs = f'format = "{format_}" needs schema_file, or the section [registry]'
    assert refusal(ConfigurationError, load_settings, path) == f"{path}: stream: {needs}"


def test_a_wrong_registry_is_the_only_problem_that_is_named(tmp_path: Path) -> None:
    path = file_of(tmp_path, '\n[registry]\nurl = "http://registry.example"\n')
    wrong = "registry.url: must be https://HOST..., or http:// on localhost"
    assert refusal(ConfigurationError, load_settings, path) == f"{path}: {wrong}"


def test_a_password_in_the_file_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, f'\n[registry]\nurl = "https://a"\nusername = "me"\npassword = "{PASSWORD}"\n')
    line = refusal(ConfigurationError, load_settings, path)
    ways = "use registry.password_file, or STREAMING_PCA_REGISTRY__PASSWORD"
    assert line.endswith(f"registry.password: a password does not belong in this file: {ways}")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"url": "http://registry.example:8081"}, "must be https://HOST..., or http:// on localhost"),
    ({"url": "ftp://localhost"}, "must be https://HOST..., or http:// on localhost"),
    ({"url": f"https://me:{PASSWORD}@registry.example"}, "use username and password_file"),
    ({"url": "https://registry.example?x=1"}, "without a query"),
    ({"url": "https://registry.example/a b"}, "spaces"),
    ({"url": "https://registry.example:port"}, "must be https://HOST"),
    ({"username": "me"}, "username needs password_file, or STREAMING_PCA_REGISTRY__PASSWORD"),
    ({"password": PASSWORD}, "a password needs username"),
    ({"username": "a:b", "password": PASSWORD}, "without a colon"),
    ({"username": "me", "password": PASSWORD, "password_file": "/p"}, "not both"),
    ({"username": "me", "password": PASSWORD, "token_file": "/t"}, "set token_file or username"),
    ({"seconds": 0.05}, "greater than or equal to 0.1"),
    ({"seconds": True}, "must be a number"),
    ({"timeout_seconds": 61}, "less than or equal to 60"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=range(len(WRONG)))
def test_wrong_settings_are_refused_without_a_secret(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RegistrySettings(**{"url": "https://registry.example"} | settings)
    assert words in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_this_machine_needs_no_tls(host: str) -> None:
    assert RegistrySettings(url=f"http://{host}:8081").url == f"http://{host}:8081"


def test_secrets_are_read_again_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    settings = RegistrySettings(url="https://a", username="me", password_file=file)
    bearer = RegistrySettings(url="https://a", token_file=file)
    with pytest.raises(ConfigurationError, match=r"registry\.password_file: .*No such file"):
        _ = settings.clear_password
    with pytest.raises(ConfigurationError, match=r"registry\.token_file: .*No such file"):
        _ = bearer.token
    for text in ("first", "second"):
        file.write_text(f"{text}\n")
        assert settings.clear_password == bearer.token == text
        assert text not in repr([settings.clear_password, bearer.token])
    known = RegistrySettings(url="https://a", username="me", password=PASSWORD)
    assert known.clear_password == PASSWORD
    assert PASSWORD not in f"{known!r}{known.clear_password!r}{known.model_dump_json()}"
