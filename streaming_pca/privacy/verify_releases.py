"""The verifier's comparison of the releases topics with the RELEASED entries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

__all__ = ["check_releases"]


def check_releases(
    messages: Iterable[bytes],
    digests: Mapping[str, Mapping[int, str]],
    phases: Mapping[str, Mapping[int, str]],
    elsewhere: set[tuple[str, int, str]],
    problems: list[str],
) -> tuple[int, int]:
    """Match releases and RELEASED entries; returns how many are this life's and others'.

    Parameters
    ----------
    messages : iterable of bytes
        Every committed message of the releases topics, those of each topic in its order.
    digests : dict of job to dict of batch to digest
        What RELEASED entries that count have named.
    phases : dict of job to dict of batch to phase
    elsewhere : set of (job, batch, digest)
        What other lives of the topic have released.
    problems : list of str
        Grows by a line for each release or entry without its counterpart, and for each release out of
        order.
    """
    seen: set[tuple[str, int]] = set()
    latest: dict[str, int] = {}
    others = 0
    for number, message in enumerate(messages):
        try:
            content = json.loads(message)
            stream, batch = content["stream"], content["batch"]
            if not isinstance(stream, str) or type(batch) is not int:
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            problems.append(f"release {number}: not a release")
            continue
        digest = hashlib.sha256(message).hexdigest()
        name = f"release {number} (stream {stream!r}, batch {batch})"
        released = digests.get(stream, {})
        if released.get(batch) == digest:
            if (stream, batch) in seen:
                problems.append(f"{name}: is on the topic twice")
            elif batch < latest.get(stream, 0):
                problems.append(f"{name}: comes after that of batch {latest[stream]}")
            seen.add((stream, batch))
            latest[stream] = max(batch, latest.get(stream, 0))
        elif (stream, batch, digest) in elsewhere:
            others += 1
        elif batch in released:
            problems.append(f"{name}: is not the one that the ledger released")
        else:
            state = phases.get(stream, {}).get(batch, "unknown")
            problems.append(f"{name}: the ledger did not release it, its batch is {state}")
    for stream, released in sorted(digests.items()):
        problems.extend(
            f"stream {stream!r}, batch {batch}: released by the ledger, but not on the topic"
            for batch in sorted(released)
            if (stream, batch) not in seen
        )
    return len(seen), others
