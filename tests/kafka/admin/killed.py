"""Commands of an operator that kill their own process after a step.

Children import this module: it imports no test, which would take them a second each.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from streaming_pca.admin import pause as lifecycle
from streaming_pca.admin.external_charge import ChargeWriter, charge_records
from streaming_pca.admin.restore import import_backup
from streaming_pca.config.settings import Settings
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.kafka.transaction import Transaction
from tests.kafka.child import Strike, install, replace
from tests.waiting import LIMIT

LITTLE = Charge(epsilon="1/32", delta=0)


def _begin(settings: dict[str, Any], log: str) -> Settings:
    """Write errors to the log; return the settings."""
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 2)
    return Settings(**settings)


def change(settings: dict[str, Any], log: str, step: str, what: str) -> None:
    """Pause or retire a stream, and die after a step."""
    tree = _begin(settings, log)
    install(Strike(step, "after"), Path(log).parent)
    getattr(lifecycle, what)(tree.kafka, tree.stream, "the first")


def charge(settings: dict[str, Any], log: str, name: str, job: str) -> None:
    """Charge all records, and die after a step."""
    tree = _begin(settings, log)
    install(Strike(name), Path(log).parent, ChargeWriter)
    charge_records(tree.kafka, tree.stream.input, job, LITTLE, None, "the first")


def restore(settings: dict[str, Any], log: str, method: str, path: str) -> None:
    """Import a backup, and die in a method of its transaction."""
    tree = _begin(settings, log)

    def flushed(self: Transaction) -> None:
        self._producer.flush(LIMIT)  # everything is on the broker; only the commit is missing
        _die()

    replace(Transaction, method, {"commit": flushed}.get(method, _die))
    import_backup(tree.kafka, [tree.stream], Path(path))


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
