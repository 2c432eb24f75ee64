"""Apicurio Registry from Maven Central, which answers as Confluent's registry does.

Its archive is fetched once for each machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path

from streaming_pca.dev.cluster import UNMAPPED_COUNTERS
from streaming_pca.dev.jars import find_java
from tests.ports import steady_port
from tests.service.registry.archives import CACHE, RegistryUnavailable, download, fetching
from tests.waiting import suspend

VERSION = "3.0.9"
API = "/apis/ccompat/v7"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_RUNNER = f"apicurio-registry-app-{VERSION}-runner.jar"
_OPTIONS = ("-XX:TieredStopAtLevel=1", UNMAPPED_COUNTERS, "-Xmx512m", "-Dquarkus.http.host=127.0.0.1")
_START_SECONDS = 120


def fetch() -> Path:
    """Return the folder of the registry's jars; fetch it if this machine does not have it."""
    folder = CACHE / f"apicurio-{VERSION}"
    with fetching(folder) as scratch:
        if scratch is not None:
            name = "io.apicurio", "apicurio-registry-app", VERSION, "tar.gz", "all"
            archive, unpacked = download(scratch, name, _SHA256), scratch / "unpacked"
            with tarfile.open(archive) as members:
                members.extractall(unpacked, filter="data")
            unpacked.rename(folder)
    return folder


class Apicurio:
    """Registry in memory, on a port of this machine; a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Return the address of its Confluent-compatible API."""
        return f"http://127.0.0.1:{self.port}{API}"

    def __enter__(self) -> Apicurio:
        jars, java = fetch(), find_java()
        self.port = steady_port()
        log = Path(self._folder.name, "log")
        command = [java, *_OPTIONS, f"-Dquarkus.http.port={self.port}", "-jar", str(jars / _RUNNER)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=self._folder.name, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        ends = time.monotonic() + _START_SECONDS
        while not self._answers():
            if time.monotonic() > ends or self._process.poll() is not None:
                self.__exit__()
                raise RegistryUnavailable(f"the registry did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def pause(self) -> None:
        """Suspend the registry: it accepts connections and does not answer."""
        assert self._process is not None
        suspend(self._process.pid)

    def proceed(self) -> None:
        """Continue after a pause."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
