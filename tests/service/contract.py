"""Check of messages on real topics against the AsyncAPI document and the JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.schemas import ledger_schema, payload_schema, release_schema
from streaming_pca.service.topics.asyncapi import asyncapi_document

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

# jsonschema is imported only where it is used: reading the grammar of addresses takes each process two
# seconds.

MESSAGE_SCHEMAS = {"release": release_schema, "ledger": ledger_schema, "payload": payload_schema}
"""Makers of the schemas that the package ships, by their names."""

_SCHEMAS = {"release": "release", "entry": "ledger", "json": "payload"}
"""JSON schema of each AsyncAPI message that has one."""


class Contract:
    """AsyncAPI document as a validator of messages."""

    def __init__(self, stream: StreamSettings | None = None) -> None:
        from referencing import Registry
        from referencing.jsonschema import DRAFT7

        self.document = asyncapi_document(stream)
        resource = DRAFT7.create_resource(self.document)
        self._registry: Registry[Any] = Registry().with_resource("urn:d", resource)

    def problems(self, channel: str, message: Any) -> list[str]:
        """Return the problems of a message that matches no message of its channel."""
        tried = {}
        for name in self.document["channels"][channel]["messages"]:
            tried[name] = self._problems(name, message)
            if not tried[name]:
                return []
        return [f"{name}: {problem}" for name, problems in tried.items() for problem in problems]

    def _problems(self, name: str, message: Any) -> list[str]:
        about = self.document["components"]["messages"][name]
        place = f"urn:d#/components/messages/{name}"
        headers = {key: value.decode() for key, value in message.headers or ()}
        key = None if message.key is None else message.key.decode()
        found = [
            *self._errors(f"{place}/headers", headers if "headers" in about else {}, "headers" in about),
            *self._errors(f"{place}/bindings/kafka/key", key),
        ]
        text = headers.get("content-type", about["contentType"])
        if text != about["contentType"]:
            found.append(f"content-type is {text}")
        if about["contentType"] != "application/json":
            return found
        try:
            value = json.loads(message.value)
        except ValueError as error:
            return [*found, f"no JSON: {error}"]
        found += self._errors(f"{place}/payload", value)
        if name in _SCHEMAS:
            found += [error.message for error in validator(_SCHEMAS[name]).iter_errors(value)]
        return found

    def _errors(self, reference: str, value: Any, asked: bool = True) -> list[str]:
        if not asked:
            return []
        from jsonschema import Draft7Validator

        judge = Draft7Validator({"$ref": reference}, registry=self._registry)
        return [f"{error.json_path}: {error.message}" for error in judge.iter_errors(value)]


@lru_cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of a JSON schema."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(MESSAGE_SCHEMAS[name]())


def check_messages(stream: StreamSettings, messages: dict[str, Iterable[Any]]) -> None:
    """Check that messages, by channel, conform to their stream's AsyncAPI document and JSON schemas."""
    contract = Contract(stream)
    wrong = [
        f"{channel} {message.offset}: {problem}"
        for channel, found in messages.items()
        for message in found
        for problem in contract.problems(channel, message)
    ]
    assert not wrong, "\n".join(wrong)
