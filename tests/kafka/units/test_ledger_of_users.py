"""The command line shows a ledger with jobs whose privacy unit is a user."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from streaming_pca.privacy.ledger.entries import OffsetRange, Reserved
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.ledger_writer import LedgerWriter
from tests.cli.command import call
from tests.kafka.conftest import Capture, Make
from tests.kafka.stream import Stream

HALF = Charge(epsilon="1/2", delta="1e-7", rho="1/50")


def reserve(stream: Stream, job: str, start: int, unit: str) -> bool:
    """Write a RESERVED entry as a leader does, and return whether it is accepted."""

    class Writer(LedgerWriter):
        def write(self) -> bool:
            self._fence()
            self.log.catch_up()
            entry = Reserved(
                topic_id=self._topic_id,
                job=job,
                batch=1,
                previous=self.log.ledger.job(job).head,
                ranges=(OffsetRange(partition=0, start=start, end=start + 5, count=5),),
                promise={"privacy_unit": unit, "contributions_per_user": 1, "epsilon": 0.5, "delta": 1e-7},
                parameters={"mechanism": "private-oja", "sigma_over_sensitivity": 9.0},
                charge=HALF,
            )
            self._begin()
            sent = self._send_entry(entry)
            self._transaction.commit()
            return self._read_back(sent.value.offset, entry).accepted

    ledger = stream.settings.stream.ledger_topic
    with closing(Writer(stream.settings.kafka, ledger, stream.topic_id, job)) as writer:
        return writer.write()


def test_jobs_of_users_charge_every_record_and_every_command_says_so(
    make_stream: Make, capfd: Capture
) -> None:
    stream = make_stream(cap=("5/4", "1e-6"))
    stream.produce_vectors(stream.vectors(30))
    assert reserve(stream, "u", 0, "user")
    assert reserve(stream, "v", 100, "user")  # disjoint ranges, and possibly the same people
    assert not reserve(stream, "w", 200, "user")
    assert not reserve(stream, "m", 300, "message")
    kafka, input_topic = stream.settings.kafka, stream.settings.stream.input
    where = ("--bootstrap", kafka.bootstrap_servers, "--input", input_topic)

    def facts(*command: str) -> Any:
        return json.loads(call(capfd, "ledger", *command, *where, "--json").stdout)

    assert facts("show")["everywhere"] == {"epsilon": "1", "delta": "1/5000000"}
    spent = facts("spent", "--partition", "2", "--offset", "9")
    assert spent["spent"] == {"epsilon": "1", "delta": "1/5000000"}
    assert spent["jobs"] == {job: {"epsilon": "1/2", "delta": "1/10000000"} for job in "uv"}
    verified = facts("verify")
    assert verified["ok"]
    assert verified["void"] == 2
    assert (verified["of_users"], verified["everywhere_epsilon"]) == (["u", "v"], "1")
    assert verified["max_epsilon"] == "1"
    charge = ("charge", "--job", "census", "--delta", "0", "--all", "--reason", "why", "--epsilon")
    refused = call(capfd, "ledger", *charge, "1/2", *where)
    assert refused.returncode == 3
    assert "already charged epsilon 1," in refused.stderr
    assert facts(*charge, "1/4")["spent"]["epsilon"] == "5/4"

    shown = call(capfd, "ledger", "show", *where).stdout
    assert "\nevery record, by jobs whose unit of privacy is a user: epsilon 1, delta 2e-07\n" in shown
    checked = call(capfd, "ledger", "verify", *where).stdout
    assert "is a user: u, v; together they charge every record epsilon 1, delta 2e-07\n" in checked
