"""`streaming-pca features suggest` uses the newest schema of a subject."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tests.cli.command import call
from tests.cli.test_app import one_line
from tests.data.features.formats import message_type
from tests.security.needles import secret
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.producers import Producer, record_type
from tests.service.registry.proxy import Proxy

Capture = pytest.CaptureFixture[str]
PASSWORD = secret("open sesame 9")
FEATURE = '[[stream.features]]\nname = "{}"\nbounds = []  # least and largest\n'


def test_the_newest_version_of_a_subject_becomes_features(producer: Producer, capfd: Capture) -> None:
    part = f"{producer.subject}-part"
    producer.register(record_type("x.Part", b="double"), subject=part)
    producer.register(record_type("x.Visit", old="double"))
    root = record_type("x.Visit", a="double", part="x.Part")
    producer.client.set_compatibility(producer.subject, "NONE")
    producer.register(root, references=[("x.Part", part)])
    how = ("features", "suggest", "--registry", producer.url, "--subject")
    done = call(capfd, *how, producer.subject)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{FEATURE.format('a')}\n{FEATURE.format('part.b')}"
    one_line(call(capfd, *how, "nobody"), 2, "error: the registry has no subject 'nobody': correct its name")


def test_protobuf_and_json_schema_become_features(producer: Producer, capfd: Capture) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="v.proto", package="t", syntax="proto3")
    message_type(file, "Visit", [("a", 1)])
    message_type(file, "Other", [("b", 1)])
    producer.register(file, "PROTOBUF")
    how = ("features", "suggest", "--registry", producer.url, "--subject", producer.subject)
    assert call(capfd, *how).stdout == FEATURE.format("a")
    assert call(capfd, *how, "--message", "t.Other").stdout == FEATURE.format("b")
    json = f"{producer.subject}-json"
    properties = {"a": {"type": "number"}}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["a"]}
    producer.register(head | {"properties": properties}, "JSON", json)
    assert call(capfd, *how[:-1], json).stdout == FEATURE.format("a")
    wrong = call(capfd, *how[:-1], json, "--message", "t.Visit")
    one_line(wrong, 2, "error: --message needs a schema of Protobuf")


def test_a_settings_file_without_features_names_registry_and_subject(
    apicurio: Apicurio, producer: Producer, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.register(record_type("x.Visit", a="double"))
    topic = producer.subject.removesuffix("-value")
    config = tmp_path / "stream.toml"
    with Proxy(apicurio, tmp_path) as proxy:
        proxy.accept_basic("me", PASSWORD)
        config.write_text(
            f'[registry]\nurl = "{proxy.url}"\nusername = "me"\nssl_cafile = "{proxy.cafile}"\n'
            f'[stream]\nformat = "avro"\n[[streams]]\nname = "a"\ninput = "{topic}"\n'
            '[[streams]]\nname = "b"\ninput = "x"\nsubject = "other"\n'
        )
        monkeypatch.setenv("STREAMING_PCA_REGISTRY__PASSWORD", PASSWORD)
        how = ("features", "suggest", "--config", config)
        for more in (("--stream", "a"), ("--stream", "b", "--subject", producer.subject)):
            done = call(capfd, *how, *more)
            assert (done.returncode, done.stdout) == (0, FEATURE.format("a"))
        assert "no subject 'other'" in call(capfd, *how, "--stream", "b").stderr
        assert "name one with --stream" in call(capfd, *how).stderr
        monkeypatch.setenv("STREAMING_PCA_REGISTRY__PASSWORD", secret("wrong"))
        wrong = call(capfd, *how, "--stream", "a")
        one_line(wrong, 2, "correct registry.username = 'me', or its password")


WRONG = [
    ([], "name a file of a schema, or --registry URL with --subject, or --config FILE"),
    (["--registry", "https://a.example"], "--registry needs --subject, TOPIC-value as a rule"),
    (
        ["--registry", "http://a", "--subject", "s"],
        "--registry: must be https://HOST..., or http:// on localhost",
    ),
    (["--registry", "https://a", "--config", "f"], "--registry is given by --config: leave out one of them"),
    (["visit.avsc", "--subject", "s"], "--subject needs --registry URL, or --config FILE"),
]


@pytest.mark.parametrize(("arguments", "line"), WRONG, ids=range(len(WRONG)))
def test_options_that_do_not_go_together_are_refused(arguments: list[str], line: str, capfd: Capture) -> None:
    done = call(capfd, "features", "suggest", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {line}\n")
