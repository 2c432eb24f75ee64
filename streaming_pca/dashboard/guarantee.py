"""Guarantee of a stream in plain words, with its numbers.

The sentences apply docs/explanation/guarantee.md to one stream.
"""

from __future__ import annotations

import math

from streaming_pca.dashboard.models import StreamDetail
from streaming_pca.privacy.parameters import format_number

_UNITS = {"user": "each user: all messages with the same {}", "row": "each row of a message"}
_NOTHING = (
    "NOT private: the releases of this stream guarantee nothing.",
    "They can reveal single records. Use them only where every reader may see the records themselves.",
)


def guarantee_in_words(stream: StreamDetail) -> list[str]:
    """Return the guarantee of a stream as items of one or two sentences; ignores ``stream.guarantee``.

    The first three items are a sentence each and stand alone: claim, meaning, and the limit for a person with
    several records. The pages fold the rest.
    """
    if not stream.private or stream.epsilon is None or stream.delta is None:
        return list(_NOTHING)
    if stream.local:
        return _local(stream.epsilon, stream.delta)
    number = f"({format_number(stream.epsilon)}, {format_number(stream.delta)})"
    unit = _UNITS.get(stream.privacy_unit, "each message, with all its rows")
    return [
        f"All releases of this stream together, past and future, are {number}-differentially private "
        f"for {unit.format(stream.user_field or 'key')}.",
        *_neighbours(stream),
        _epsilon(stream.epsilon, "such a change of one unit"),
        _delta(stream.delta),
        "It holds for every input and against readers with any knowledge, unless they can predict the "
        "operating system's random numbers. Results that are computed from the releases are covered too.",
        f"It covers this stream alone. Other streams that read topic {stream.input} add their charges: "
        f"the cap of its ledger bounds {_capped(stream)}.",
        _not_covered(stream),
        "The broker must keep Kafka's transactional promises, which the demo's embedded one can break.",
    ]


def _neighbours(stream: StreamDetail) -> list[str]:
    """Describe the neighbouring inputs, which a reader can hardly distinguish."""
    if stream.privacy_unit == "user":
        most = stream.contributions_per_user or 1
        batches = "one batch" if most == 1 else f"{most:,} batches"
        return [
            "Readers of the releases who know all other records can hardly distinguish whether all messages "
            "of one user were present, were all null, or were replaced, in their places, by any messages of "
            "one new user.",
            f"A user counts in at most {batches}, with the first message in each; the numbers are for "
            "all of these together.",
        ]
    if stream.privacy_unit == "row":
        return [
            "Readers of the releases who know all other rows can hardly distinguish any one row from another "
            "row, or null, in its place.",
            "The number of rows of a message is public, and a person with several rows or messages has this "
            "guarantee for each of them.",
        ]
    return [
        "Readers of the releases who know all other messages can hardly distinguish any one message from "
        "another message, or null, in its place.",
        "A person who sends several messages has this guarantee for each of them.",
    ]


def _capped(stream: StreamDetail) -> str:
    """Describe what the cap bounds: a message stream and a row stream count separately."""
    if stream.privacy_unit == "user":
        return (
            "the sum for each user over the streams whose unit is the user. Streams whose unit is a message "
            "or a row can reveal more about a user with several of them"
        )
    return "the sum for each record, where each stream counts its own unit"


def _epsilon(epsilon: float, change: str) -> str:
    return (
        f"Epsilon = {format_number(epsilon)}: {change} makes any outcome at most "
        f"{_factor(epsilon)} times as likely, delta aside."
    )


def _factor(epsilon: float) -> str:
    """Format exp(epsilon), rounded up to three digits; below 2, round its distance from 1."""
    if epsilon > 50:
        return f"e^{format_number(epsilon)} (which bounds next to nothing)"
    least = 1 if epsilon < math.log(2) else 0
    grown = math.expm1(epsilon) if least else math.exp(epsilon)
    unit = 10.0 ** (math.floor(math.log10(grown)) - 2)
    return f"{least + math.ceil(grown / unit) * unit:,.12g}"


def _delta(delta: float) -> str:
    return (
        f"Delta = {format_number(delta)}: the probability of any outcome may exceed that bound by as much. "
        "It has to be far below one over the number of records."
    )


def _local(epsilon: float, delta: float) -> list[str]:
    number = f"({format_number(epsilon)}, {format_number(delta)})"
    return [
        f"Each report is {number}-differentially private before it is sent: its sender adds the noise.",
        "Readers of the input topic, the service and readers of the releases can hardly distinguish one "
        "record of a sender from any other record.",
        "The guarantee is each sender's, for one report: a sender of several reports spends it for each.",
        _epsilon(epsilon, "reporting another record"),
        _delta(delta),
        "No service is trusted: all see reports with their noise alone. The service charges nothing for "
        "reports, and cannot check that noise was added.",
        "Not covered: who sends, when, and how many reports.",
    ]


def _not_covered(stream: StreamDetail) -> str:
    also = {
        "user": "how many users have counted, which the size of states and the time of a commit can show",
        "row": "the number of rows of each message",
    }.get(stream.privacy_unit)
    parts = [
        "the number of messages and the times of batches",
        *([also] if also else []),
        "settings that were computed from the records",
        "readers of the input topic, of the state topic and of backups, who are trusted",
        "the duration of a batch, which is not hidden",
    ]
    return f"Not covered: {'; '.join(parts)}."
