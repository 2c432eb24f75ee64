"""OpenAPI document of the API."""

from __future__ import annotations

import copy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from streaming_pca.dashboard.models import Event, Problem

_BUSY = "The broker does not answer, topics are still being read, or too many event streams are open: wait."
_PROBLEMS = {
    "400": ("Malformed", "The request has a Content-Length and a Transfer-Encoding."),
    "401": ("Unauthorized", "The token is missing or wrong."),
    "403": ("Forbidden", "The request comes from a page of another origin."),
    "404": ("NotFound", "The path, stream, ledger, release or record does not exist."),
    "413": ("TooLarge", "The body is too large."),
    "421": ("Misdirected", "The header Host names another server."),
    "422": ("Refused", "A parameter is refused."),
    "429": ("TooMany", "Too many requests came from this address."),
    "431": ("HeadersTooLarge", "The headers are too large."),
    "500": ("Failed", "The server failed: see its log."),
    "503": ("Unavailable", _BUSY),
}
_EXAMPLE = {
    "type": "about:blank",
    "title": "Not Found",
    "status": 404,
    "detail": "stream 'flihgts' is not in the settings: these have flights",
    "instance": "/v1/streams/flihgts",
}
_DESCRIPTION = (
    "Releases, ledgers and public counts of streams. GET answers with an ETag, and HEAD as GET does. "
    "Errors are problem details of RFC 9457. Charges are strings: decimals, or fractions in plans."
)
_TAGS = {
    "streams": "Streams at a glance and in detail.",
    "releases": "Published releases.",
    "ledgers": "Charges against the caps of input topics.",
    "plan": "Forecasts from public numbers.",
    "events": "News.",
    "document": "This document.",
}
_ETAG = {
    "description": "Weak validator; for a release a strong one: the SHA-256 of the body.",
    "schema": {"type": "string"},
}
_LINK = {"description": 'The next page, with rel="next", if there is one.', "schema": {"type": "string"}}
_RETRY = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "ETag that the client has; if it is current, the answer is 304.",
    "schema": {"type": "string"},
}


def make_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application; the result is deterministic."""
    made: dict[str, Any] = get_openapi(
        title="streaming-pca",
        version="1",
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for model in (Problem, Event):
        schemas[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
    components["schemas"] = dict(sorted(schemas.items()))
    components["headers"] = {"ETag": _ETAG, "Link": _LINK, "RetryAfter": _RETRY}
    components["responses"] = {name: _problem(status, text) for status, (name, text) in _PROBLEMS.items()}
    components["responses"]["NotModified"] = {
        "description": "The client has it already.",
        "headers": {"ETag": {"$ref": "#/components/headers/ETag"}},
    }
    components["parameters"] = {"IfNoneMatch": _NONE_MATCH}
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "Token of http.token; a server on loopback may have none.",
        }
    }
    # The empty requirement makes the token optional: the settings decide.
    made["security"] = [{"bearer": []}, {}]
    for path, operations in made["paths"].items():
        for operation in operations.values():
            _say_once(operation)
            _add_problems(path, operation)
        _add_conditions(path, operations["get"])
        operations["head"] = _head(operations["get"])
    return made


def _say_once(operation: dict[str, Any]) -> None:
    """Use the docstring as summary; remove redundant fields of parameters."""
    operation["summary"] = operation.pop("description").rstrip(".")
    for parameter in operation.get("parameters", []):
        schema = parameter["schema"]
        schema.pop("title", None)
        schema.pop("description", None)
        # A query or header parameter cannot be null, only absent.
        for choice in schema.pop("anyOf", []):
            if choice != {"type": "null"}:
                schema.update(choice)


def _problem(status: str, text: str) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/Problem"}}
    if status == "404":
        content["example"] = _EXAMPLE
    made: dict[str, Any] = {"description": text, "content": {"application/problem+json": content}}
    if status in ("429", "503"):
        made["headers"] = {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}}
    return made


def _add_problems(path: str, operation: dict[str, Any]) -> None:
    responses = {status: found for status, found in operation["responses"].items() if status != "422"}
    for status, (name, _) in _PROBLEMS.items():
        if status != "404" or "{" in path:
            responses[status] = {"$ref": f"#/components/responses/{name}"}
    operation["responses"] = dict(sorted(responses.items()))


def _add_conditions(path: str, operation: dict[str, Any]) -> None:
    if path == "/v1/events":
        return
    operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/IfNoneMatch"})
    responses = operation["responses"]
    responses["304"] = {"$ref": "#/components/responses/NotModified"}
    headers = {"ETag": {"$ref": "#/components/headers/ETag"}}
    if any(each.get("name") == "limit" for each in operation["parameters"]):
        headers["Link"] = {"$ref": "#/components/headers/Link"}
    responses["200"]["headers"] = headers
    operation["responses"] = dict(sorted(responses.items()))


def _head(operation: dict[str, Any]) -> dict[str, Any]:
    """Return the HEAD operation: the same responses without bodies."""
    made = copy.deepcopy(operation)
    name = operation["operationId"]
    made["operationId"] = f"head{name[0].upper()}{name[1:]}"
    made["summary"] = f"Headers of: {operation['summary']}"
    responses = {}
    for status, found in made["responses"].items():
        if "$ref" in found:
            named = found["$ref"].rpartition("/")[2]
            texts = (text for title, text in _PROBLEMS.values() if title == named)
            found = {"description": next(texts, "The client has it.")}
        responses[status] = {name: value for name, value in found.items() if name != "content"}
    made["responses"] = responses
    return made
