"""The services of docker-compose.yml as processes of this machine: no container engine runs here.

What is run is read from the file. A service's host name becomes a loopback address of its own, so
that ports stay what they are; its mounts become directories, and the image the environment that
the Dockerfile's own lines made.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from streaming_pca.dev.node import LOG4J_PROPERTIES
from streaming_pca.dev.processes import Child
from tests.deploy.dockerfile import Image
from tests.deploy.tools import ROOT, tool

COMPOSE_FILE = ROOT / "docker-compose.yml"
PATIENCE = 90.0

# As much as the image's own files must have to be merged with; the broker here logs by another.
_DEFAULT_LOG4J = """
Configuration:
  Properties: {}
  Appenders: {}
  Loggers:
    Root: {level: INFO}
    Logger: []
"""


def read_compose() -> dict[str, Any]:
    """The file, its anchors resolved."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
    return loaded


class Service:
    """One service: what its container would be told, in terms of this machine."""

    def __init__(self, name: str, told: Mapping[str, Any], address: str) -> None:
        self.name, self.told, self.address = name, told, address
        self.process: Child | None = None
        self.paths: dict[str, Path] = {}

    @property
    def environment(self) -> dict[str, str]:
        return {key: str(value) for key, value in self.told.get("environment", {}).items()}

    @property
    def log(self) -> str:
        return "(never started)" if self.process is None else self.process.log_tail(60)


class Deployment:
    """All services of the file.

    Parameters
    ----------
    directory : Path
        For volumes, logs and temporary files.
    image : Image
        What the Dockerfile made.
    java, jars
        Of Apache Kafka, which stands for the image ``apache/kafka``.
    """

    def __init__(self, directory: Path, image: Image, java: str, jars: Path) -> None:
        self.directory, self.image = directory, image
        self._java, self._jars = java, jars
        net = f"127.{random.SystemRandom().randint(1, 254)}.{random.SystemRandom().randint(1, 254)}"
        self.services = {
            name: Service(name, told, f"{net}.{number}")
            for number, (name, told) in enumerate(read_compose()["services"].items(), 1)
        }
        for service in self.services.values():
            self._mount(service)

    # -- from the container's terms to this machine's ----------------------

    def _mount(self, service: Service) -> None:
        own = self.directory / service.name
        service.paths["/tmp"] = own / "tmp"
        service.paths["/tmp"].mkdir(parents=True)
        mounts = [mount.split(":")[:2] for mount in service.told.get("volumes", [])]
        for source, target in mounts:
            if source.startswith("."):
                service.paths[target] = own / "mounts" / source
            else:
                service.paths[target] = self.directory / "volumes" / source
                service.paths[target].mkdir(parents=True, exist_ok=True)
        for source, target in mounts:
            if source.startswith("."):
                self._copy(ROOT / source, service.paths[target], service)

    def _copy(self, source: Path, target: Path, service: Service) -> None:
        """Copy text files, with this machine's addresses and paths in them."""
        files = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
        assert files, f"{source} is mounted by {service.name} and holds nothing"
        for file in files:
            copy = target / file.relative_to(source) if source.is_dir() else target
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self.translated(file.read_text(), service))

    def addressed(self, text: str, service: Service) -> str:
        """Replace host names that a port follows, and a container's own addresses."""
        names = "|".join(map(re.escape, self.services))
        text = re.sub(rf"(?<![\w.-])({names})(?=:\d)", lambda m: self.services[m[1]].address, text)
        return re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", service.address, text)

    def translated(self, text: str, service: Service) -> str:
        """The same for paths of mounts and of the image."""
        text = self.addressed(text, service)
        for target, path in service.paths.items():
            text = re.sub(rf"(?<![\w/.-]){re.escape(target)}(?![\w-])", str(path), text)
        return self.image.translated(text)

    def _environment(self, service: Service) -> dict[str, str]:
        base = {"LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
        if "build" in service.told:
            base |= self.image.environment(service.told["build"]["target"], base["PATH"])
        return {k: self.translated(v, service) for k, v in (base | service.environment).items()}

    def _command(self, service: Service, extra: Sequence[str] = ()) -> list[str]:
        told = service.told
        if service.name == "kafka":
            return self._kafka(service)
        if "build" in told:
            entry = told.get("entrypoint") or self.image.entrypoint(told["build"]["target"])
        else:
            entry = [tool("prometheus")]
        command = [*entry, *told["command"], *extra]
        environment = self._environment(service)
        first = shutil.which(command[0], path=environment["PATH"])
        assert first is not None, f"{command[0]} is not in the image"
        return [first, *(self.translated(part, service) for part in command[1:])]

    def _kafka(self, service: Service) -> list[str]:
        """Configure and format by the class that the image apache/kafka runs at its start."""
        folders = {name: service.paths["/tmp"] / name for name in ("default", "mounted", "final")}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        # What the image ships there; any variable KAFKA_* makes it ignore the first.
        (folders["default"] / "server.properties").write_text("process.roles=none\n")
        for name in ("log4j2.yaml", "tools-log4j2.yaml"):
            (folders["default"] / name).write_text(_DEFAULT_LOG4J)
        (service.paths["/tmp"] / "log4j2.properties").write_text(LOG4J_PROPERTIES)
        java = [
            self._java,
            *shlex.split(service.environment["KAFKA_HEAP_OPTS"]),
            "-XX:+UseSerialGC",
            f"-Dlog4j2.configurationFile=file:{service.paths['/tmp']}/log4j2.properties",
            "-cp",
            f"{self._jars}/*",
        ]
        setup = [f"--{name}-configs-dir={folder}" for name, folder in folders.items()]
        done = subprocess.run(
            [*java, "kafka.docker.KafkaDockerWrapper", "setup", *setup],
            env=self._environment(service),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [*java, "kafka.Kafka", str(folders["final"] / "server.properties")]

    # -- what an engine does -----------------------------------------------

    def start(self, name: str, *extra: str) -> Service:
        """Start a service, and wait for nothing; ``extra`` goes behind its command."""
        service = self.services[name]
        service.process = Child(
            self._command(service, extra),
            log=self.directory / f"{name}.log",
            cwd=service.paths["/tmp"],
            env=self._environment(service),
        )
        return service

    def up(self, name: str, *extra: str) -> Service:
        """Start a service and, before it and as the file says, all that it depends on."""
        service = self.services[name]
        if service.process is not None:
            return service
        for other, how in service.told.get("depends_on", {}).items():
            self.up(other)
            if how["condition"] == "service_healthy":
                self.wait_healthy(other)
            else:
                assert how["condition"] == "service_completed_successfully"
                assert self.ends(other) == 0, self.services[other].log
        return self.start(name, *extra)

    def run(self, service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command in a service's container."""
        environment = self._environment(service)
        program = shutil.which(arguments[0], path=environment["PATH"])
        assert program is not None, f"{arguments[0]} is not in the image of {service.name}"
        return subprocess.run(
            [program, *(self.translated(part, service) for part in arguments[1:])],
            env=environment,
            cwd=service.paths["/tmp"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    def is_healthy(self, name: str) -> bool:
        """What the service's own health check says now."""
        kind, *command = self.services[name].told["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(self.services[name], *command).returncode == 0

    def wait_healthy(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE
        service = self.services[name]
        while not self.is_healthy(name):
            assert service.process is not None
            assert service.process.returncode is None, f"{name} ended:\n{service.log}"
            assert time.monotonic() < deadline, f"{name} is not healthy:\n{service.log}"
            time.sleep(0.3)

    def ends(self, name: str, seconds: float = PATIENCE) -> int:
        """The exit status of a service, once it has ended."""
        process = self.services[name].process
        assert process is not None
        deadline = time.monotonic() + seconds
        while (status := process.returncode) is None:
            assert time.monotonic() < deadline, f"{name} goes on:\n{self.services[name].log}"
            time.sleep(0.1)
        return status

    def stop(self, name: str) -> int:
        """Ask a service to end, as ``docker-compose stop`` does, within the time that the file grants."""
        process = self.services[name].process
        assert process is not None
        os.kill(process.pid, signal.SIGTERM)
        return self.ends(name, seconds_of(self.services[name].told["stop_grace_period"]))

    def destroy(self) -> None:
        for service in self.services.values():
            if service.process is not None:
                service.process.kill()


def seconds_of(text: str) -> float:
    """A duration of the file: 90s, 2m."""
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]
