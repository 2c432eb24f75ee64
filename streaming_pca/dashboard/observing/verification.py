"""Runs of the independent verifier, at most one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.dashboard.models import Verification
from streaming_pca.dashboard.observing.logs import in_words
from streaming_pca.service.commit.verification import FAILURES, verify_as_permitted

_MOST_PROBLEMS = 100


def now_in_words() -> str:
    """Return the current time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Verifications:
    """Last verification of each ledger; each begin and end calls ``changed`` with the input."""

    def __init__(self, kafka: KafkaSettings, changed: Callable[[str], None]) -> None:
        self._kafka, self._changed = kafka, changed
        self._results: dict[str, Verification] = {}
        self._lock = threading.Lock()
        self._running: str | None = None

    def last(self, input: str) -> Verification:
        return self._results.get(input) or Verification(state="never")

    def forget(self, input: str) -> None:
        """Drop the last verification: the name now belongs to another ledger."""
        with self._lock:
            if self._running != input:
                self._results.pop(input, None)

    def start(self, input: str) -> Verification:
        """Start a verification in a thread, unless one of any ledger is running."""
        with self._lock:
            if self._running is not None:
                return self.last(input)
            self._running = input
            begun = self._results[input] = Verification(state="running", started=now_in_words())
        threading.Thread(target=self._run, args=(input, begun), name="verification", daemon=True).start()
        return begun

    def _run(self, input: str, begun: Verification) -> None:
        self._changed(input)
        result: dict[str, object] = {"state": "failed", "problems": ["the verifier could not run"]}
        try:
            report = verify_as_permitted(self._kafka, input)
            problems = list(report.problems[:_MOST_PROBLEMS])
            if len(report.problems) > _MOST_PROBLEMS:
                problems.append(f"and {len(report.problems) - _MOST_PROBLEMS} more")
            state = "verified" if report.ok else "problems"
            compared = report.states is not None
            result = {"state": state, "entries": report.entries, "problems": problems, "states": compared}
        except FAILURES as error:
            result["problems"] = [in_words(error, self._kafka.bootstrap_servers)]
        finally:
            with self._lock:
                self._results[input] = begun.model_copy(update={**result, "finished": now_in_words()})
                self._running = None
        self._changed(input)
