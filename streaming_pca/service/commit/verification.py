"""Verification of a ledger from the topics alone, also as a low-priority process.

``python -m streaming_pca.service.commit.verification`` reads the settings and the input topic, each in a
line, and prints the problems, or the reason why the verification failed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import closing

from kafka.errors import KafkaError, TopicAuthorizationFailedError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.errors import UserError
from streaming_pca.privacy.ledger.entries import Committed, Released, Reserved
from streaming_pca.privacy.ledger.verify import Report, StoredState, summarise_release, verify_log
from streaming_pca.service.commit.log_reader import whole_log
from streaming_pca.service.commit.snapshot import Snapshot, decoded, read_messages, read_snapshot, read_topic
from streaming_pca.service.commit.state_topic import FoundState, summarise
from streaming_pca.service.errors import NotPermitted
from streaming_pca.service.process_hardening import protect_process
from streaming_pca.service.topics.find import existing_topics, topic_id_of
from streaming_pca.text import one_line

FAILURES = (KafkaError, OSError, UserError)  # errors that make a verification impossible


def verify_ledger(kafka: KafkaSettings, topic: str, *, states: bool = True) -> Report:
    """Verify a ledger, its releases and, if the caller may read them, its states."""
    topic_id = topic_id_of(kafka, topic)
    with closing(whole_log(kafka, f"{topic}.ledger")) as reader:
        if states:
            read = read_snapshot(kafka, reader, topic_id, _stored)
        else:
            read = Snapshot(tuple(read_messages(kafka, reader)), reader.position, {})
        jobs = {e.job for e in decoded(data for _, data in read.entries) if isinstance(e, Reserved)}
        releases = [
            summarise_release(data, f"{name}, offset {offset}")
            for name in sorted(existing_topics(kafka, [f"{job}.releases" for job in jobs]))
            for offset, data in read_topic(kafka, name)
        ]
        # Workers continue: entries written since the snapshot account for later releases.
        later = tuple(decoded(data for _, data in read_messages(kafka, reader)))
    since = {e.release_digest for e in later if isinstance(e, Released)}
    known = [release for release in releases if release.digest not in since]
    committed = {e.state_digest for e in later if isinstance(e, Committed)}
    last_states = {
        # A worker resumes from the topic's last state, so a COMMITTED entry must name that state.
        name: state if last in (state.digest, *committed) else StoredState(last)
        for name, (state, last) in read.states.items()
        if last
    }
    return verify_log(read.entries, known, last_states if states else None, topic_id=topic_id)


def verify_as_permitted(kafka: KafkaSettings, topic: str) -> Report:
    """Verify a ledger, without the states if this user may not read them."""
    try:
        return verify_ledger(kafka, topic)
    except UserError as error:
        denied = isinstance(error.__cause__, TopicAuthorizationFailedError)
        if not denied and not isinstance(error, NotPermitted):
            raise
    # If another topic may not be read, this is refused too.
    return verify_ledger(kafka, topic, states=False)


def _stored(found: FoundState, digest: str) -> tuple[StoredState, str]:
    """Summarise a state; also return the digest of its topic's last state."""
    if found.data is not None:
        return summarise(found.data, found.users), found.last
    torn = "a chunk of its state is missing or was changed" if found.last == digest else ""
    return StoredState(found.last, problem=torn), found.last


def main() -> None:
    # Before reading the password.
    protect_process()
    os.nice(19)
    logging.getLogger().addHandler(logging.NullHandler())
    settings, topic = json.loads(sys.stdin.readline()), json.loads(sys.stdin.readline())
    answer: dict[str, str | list[str]]
    try:
        answer = {"problems": list(verify_ledger(KafkaSettings(**settings["kafka"]), topic).problems)}
    except FAILURES as error:
        answer = {"failed": one_line(error) or type(error).__name__}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
