"""Apicurio Registry from Maven Central, which answers as Confluent's registry does.

Its archive is fetched once by Maven, which does not find the parent of its description: a folder with a
description that has none stands before Maven Central.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from hashlib import sha256
from pathlib import Path

from streaming_pca.dev.jars import find_java
from streaming_pca.dev.processes import free_port

VERSION = "3.0.9"
API = "/apis/ccompat/v7"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_GROUP, _ARTIFACT = "io.apicurio", "apicurio-registry-app"
_NAME = f"{_ARTIFACT}-{VERSION}"
_POM = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>{}</project>'
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dquarkus.http.host=127.0.0.1")
_FETCH_SECONDS = 300
_START_SECONDS = 120


class RegistryUnavailable(Exception):
    """Reason why no registry can be started here."""


def fetch() -> Path:
    """Return the folder of the registry's jars, fetched if this machine does not have them."""
    folder = Path.home() / ".cache" / "streaming-pca" / f"apicurio-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                archive, unpacked = _download(Path(scratch)), Path(scratch, "unpacked")
                if sha256(archive.read_bytes()).hexdigest() != _SHA256:
                    raise RegistryUnavailable(f"{archive.name} is not the archive that is known")
                with tarfile.open(archive) as members:
                    members.extractall(unpacked, filter="data")
                unpacked.rename(folder)
    return folder


def _download(scratch: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise RegistryUnavailable("no Maven found: install maven, which fetches the registry once")
    name = "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    described = scratch / "described" / _GROUP.replace(".", "/") / _ARTIFACT / VERSION
    described.mkdir(parents=True)
    (described / f"{_NAME}.pom").write_text(_POM.format(name.format(_GROUP, _ARTIFACT, VERSION)))
    url = (scratch / "described").as_uri()
    (scratch / "pom.xml").write_text(
        _POM.format(
            f"{name.format('streaming-pca', 'registry-for-tests', '1')}<packaging>pom</packaging>"
            f"<repositories><repository><id>described</id><url>{url}</url></repository></repositories>"
        )
    )
    # A repository of its own: what another run was told of the description is kept there.
    command = [maven, "-B", "-q", "-C", "dependency:copy", f"-Dmaven.repo.local={scratch / 'maven'}"]
    command += [f"-Dartifact={_GROUP}:{_ARTIFACT}:{VERSION}:tar.gz:all", f"-DoutputDirectory={scratch}"]
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RegistryUnavailable(f"Maven did not fetch the registry within {_FETCH_SECONDS} s") from None
    archive = scratch / f"{_NAME}-all.tar.gz"
    if not archive.exists():
        raise RegistryUnavailable(f"Maven could not fetch the registry:\n{done.stdout[-2000:]}")
    return archive


class Apicurio:
    """Registry in memory, on a port of this machine; a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Address of its Confluent-compatible API."""
        return f"http://127.0.0.1:{self.port}{API}"

    def __enter__(self) -> Apicurio:
        jars, java = fetch(), find_java()
        self.port = free_port()
        log = Path(self._folder.name, "log")
        command = [java, *_OPTIONS, f"-Dquarkus.http.port={self.port}", "-jar", f"{jars / _NAME}-runner.jar"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder.name,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
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
        """Stop it where it is: it accepts connections and does not answer."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def proceed(self) -> None:
        """Continue after a pause."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
