"""Descriptions of topics, shared by the observer's threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka.errors import for_code

from streaming_pca.service.errors import NotPermitted, TopicError

_MISSING = 3
"""Kafka's error code for a missing topic."""


@dataclass(frozen=True)
class _Described:
    topic_id: str
    problem: str | None


class TopicTable:
    """Descriptions of topics by the broker, for the thread that reads the topics.

    Attributes
    ----------
    changed : threading.Event
        Set when a description has changed.
    wanted : threading.Event
        Set when that thread requests new descriptions.
    """

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.wanted = threading.Event()
        self._found: dict[str, _Described] = {}

    def set(self, described: list[dict[str, Any]]) -> None:
        """Store the broker's descriptions."""
        found = {topic["name"]: _Described(str(topic["topic_id"]), _problem(topic)) for topic in described}
        if found != self._found:
            self._found = found
            self.changed.set()

    def id(self, topic: str) -> str | None:
        """Return a topic's id; None if it cannot be read."""
        found = self._found.get(topic)
        return found.topic_id if found is not None and found.problem is None else None

    def problem(self, topic: str) -> str | None:
        """Return why a topic cannot be read, in one line."""
        found = self._found.get(topic)
        return None if found is None else found.problem

    @property
    def is_known(self) -> bool:
        """True once the broker has described the topics."""
        return bool(self._found)


def _problem(topic: Mapping[str, Any]) -> str | None:
    code = topic["error_code"]
    if code == _MISSING:
        return str(TopicError.missing(topic["name"]))
    try:
        NotPermitted.check([topic])
    except NotPermitted as error:
        return str(error)
    return f"topic {topic['name']!r} cannot be read: {for_code(code).__name__}" if code else None
