"""Both programs on one stream: a rolling update, and the result of a rollback.

The tests run the code of the previous version, from the history of this repository.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.config.loading import load_settings
from streaming_pca.service.commit.verification import verify_ledger
from tests.upgrade.program import Program, end, messages_of, produce, status_of, until
from tests.upgrade.streams import BATCH, write_config

ROOT = Path(__file__).parents[2]
NAME = "private-oja"


@pytest.fixture(scope="module")
def old_program(facts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Return the program of the previous version."""
    folder = tmp_path_factory.mktemp("old")
    archive = folder / "source.tar"
    made = subprocess.run(
        ["git", "archive", "-o", str(archive), facts["commit"]], cwd=ROOT, capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"needs a clone with the commit {facts['commit']}: {made.stderr.strip()}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "source", filter="data")
    with closing(Program(folder / "source")) as program:
        yield program


@pytest.fixture
def new_program() -> Iterator[Program]:
    """Return the program of this checkout."""
    with closing(Program(ROOT)) as program:
        yield program


@pytest.mark.soak
def test_a_rolling_update_and_a_rollback(
    old_program: Program, new_program: Program, restore: Callable[[], str], tmp_path: Path
) -> None:
    bootstrap = restore()
    config = write_config(tmp_path, bootstrap, NAME)
    old_log, new_log, back_log = tmp_path / "old.log", tmp_path / "new.log", tmp_path / "back.log"

    def releases() -> int:
        return len(messages_of(bootstrap, f"{NAME}.releases"))

    # The leader is old, the standby new: the old leader continues until it is stopped.
    old = old_program.start_worker([config], old_log)
    until("the old leader", lambda: "leading stream" in old_log.read_text(), old, old_log)
    new = new_program.start_worker([config], new_log)
    until("the new standby", lambda: "standing by" in new_log.read_text(), new, new_log)
    produce(bootstrap, "old", BATCH, seed=2)
    until("a release of the old leader", lambda: releases() == 3, old, old_log)
    assert end(old) == 0, old_log.read_text()
    produce(bootstrap, "old", BATCH, seed=3)
    until("a release of the new leader", lambda: releases() == 4, new, new_log)
    kafka = load_settings(config, None).kafka
    assert verify_ledger(kafka, "old").ok

    # Rollback: the old program is refused in one line, and writes nothing.
    assert end(new) == 0, new_log.read_text()
    topics = (f"{NAME}.releases", f"{NAME}.state", "old.ledger")
    before = [[m.value for m in messages_of(bootstrap, topic)] for topic in topics]
    produce(bootstrap, "old", BATCH, seed=4)
    back = old_program.start_worker([config], back_log)
    assert status_of(back) == 2, back_log.read_text()
    assert "Traceback" not in back_log.read_text()
    (line,) = [line for line in back_log.read_text().splitlines() if " ERROR " in line]
    assert "not a release: Input should be 1, 2 or 3" in line
    assert [[m.value for m in messages_of(bootstrap, topic)] for topic in topics] == before

    # A second upgrade loses nothing.
    again = new_program.start_worker([config], new_log)
    until("a release of the new program", lambda: releases() == 5, again, new_log)
    assert end(again) == 0, new_log.read_text()
    assert verify_ledger(kafka, "old").ok
