"""The services of docker-compose.yml as processes of this machine, which has no container engine.

The commands are read from the file, and each process is confined as the file requires: its user, its mounts
at their own paths, a read-only root. A service's host name becomes a separate loopback address, so that
ports stay unchanged; the image is the environment that the Dockerfile's own lines built.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from streaming_pca.dev.cluster import UNMAPPED_COUNTERS
from streaming_pca.dev.processes import Child
from tests.deploy.dockerfile import Image, last_of
from tests.deploy.sandbox import Confined, Mount, Sandbox
from tests.deploy.tools import ROOT, tool
from tests.waiting import LIMIT

COMPOSE_FILE = ROOT / "docker-compose.yml"

# Users of other projects' images, and the image folders that give a new volume its owner.
_OTHERS = {
    "apache/kafka": (1000, ("/var/lib/kafka/data",)),
    "prom/prometheus": (65534, ("/prometheus",)),
    "grafana/grafana": (472, ("/var/lib/grafana",)),
}
NOT_HERE = {"grafana"}
"""Services whose program no registry of packages has; their files are checked, but not run."""

# Kafka's programs as in apache/kafka: no package contains its shell scripts, but its classes are available.
_KAFKA_PROGRAMS = {"kafka-storage.sh": "kafka.tools.StorageTool", "kafka-server-start.sh": "kafka.Kafka"}
_KAFKA_PROGRAM = """#!/usr/bin/env bash
exec {java} $KAFKA_HEAP_OPTS -XX:+UseSerialGC {options} $KAFKA_LOG4J_OPTS -cp '{jars}/*' {main} "$@"
"""


def read_compose() -> dict[str, Any]:
    """Return the file with resolved anchors."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
    return loaded


def mounts_of(definition: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return source, target and writability of each mount of a service."""
    split = [mount.split(":") for mount in definition.get("volumes", [])]
    return [(parts[0], parts[1], parts[2:] != ["ro"]) for parts in split]


class Service(Confined):
    """One service, with its container's settings translated to this machine."""

    def __init__(self, name: str, definition: Mapping[str, Any], address: str) -> None:
        self.name, self.definition, self.address = name, definition, address

    @property
    def environment(self) -> dict[str, str]:
        return {key: str(value) for key, value in self.definition.get("environment", {}).items()}

    @property
    def image(self) -> str:
        name: str = self.definition["image"].partition(":")[0]
        return name


class Deployment:
    """All services of the file, with volumes and logs below a directory.

    ``java`` and ``jars`` are Apache Kafka's, in place of the image ``apache/kafka``. ``options`` are further
    ones of Java: an archive of its classes names the jars by their path on this machine.
    """

    def __init__(
        self, directory: Path, image: Image, java: str, jars: Path, options: Sequence[str] = ()
    ) -> None:
        self.directory, self.image = directory, image
        self._jars, self._programs = jars, directory / "kafka-programs"
        self._programs.mkdir()
        for name, main in _KAFKA_PROGRAMS.items():
            how = " ".join([UNMAPPED_COUNTERS, *options])
            program = _KAFKA_PROGRAM.format(java=java, options=how, jars=jars, main=main)
            (self._programs / name).write_text(program)
            (self._programs / name).chmod(0o755)
        net = f"127.{random.SystemRandom().randint(1, 254)}.{random.SystemRandom().randint(1, 254)}"
        self.services = {
            name: Service(name, definition, f"{net}.{number}")
            for number, (name, definition) in enumerate(read_compose()["services"].items(), 1)
        }

    # -- from the container's terms to this machine's ----------------------

    def volume(self, name: str) -> Path:
        """Return the directory of a volume."""
        return self.directory / "volumes" / name

    def _user(self, service: Service) -> int:
        if "build" in service.definition:
            return int((last_of(service.definition["build"]["target"], "USER") or "").partition(":")[0])
        return _OTHERS[service.image][0]

    def _mounts(self, service: Service) -> list[Mount]:
        mounts = self._image_mounts(service)
        for source, target, writable in mounts_of(service.definition):
            if source.startswith("."):
                path = self.directory / service.name / "mounts" / source
                if not path.exists():
                    self._copy(ROOT / source, path, service)
            else:
                path = self.volume(source)
                path.mkdir(parents=True, exist_ok=True)
                self._own(path, service, target)
            mounts.append(Mount(path, target, writable))
        return mounts

    def _image_mounts(self, service: Service) -> list[Mount]:
        if "build" in service.definition:
            made = self.image.root / "opt"
            # Its programs name their interpreter by its path during the build.
            return [Mount(made, "/opt"), Mount(made, str(made))]
        if service.image == "apache/kafka":
            # The folder of the jars also has the archive of Java's classes.
            folder = self._jars.parent
            return [Mount(self._programs, "/opt/kafka/bin"), Mount(folder, str(folder))]
        return []

    def _own(self, volume: Path, service: Service, target: str) -> None:
        """Give an empty volume the owner of the image's folder there, as an engine does."""
        if any(volume.iterdir()):
            return
        if "build" in service.definition:
            owner = self.image.owner(service.definition["build"]["target"], target)
        else:
            user, folders = _OTHERS[service.image]
            owner = user if target in folders else 0
        if owner:
            os.chown(volume, owner, owner)

    def _copy(self, source: Path, target: Path, service: Service) -> None:
        """Copy text files with this machine's addresses in them."""
        files = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
        assert files, f"{source} is mounted by {service.name} and holds nothing"
        for file in files:
            copy = target / file.relative_to(source) if source.is_dir() else target
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = self.addressed(file.read_text(), service)
            if service.name == "prometheus":
                # Loopback addresses replace the containers' own, and a server there knows no other name.
                names = "|".join(map(re.escape, self.services))
                text = re.sub(rf"(?<![\w.-])({names})(?=:\d)", lambda m: self.services[m[1]].address, text)
            copy.write_text(text)

    def addressed(self, text: str, service: Service) -> str:
        """Replace a container's own addresses."""
        return re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", service.address, text)

    def environment(self, service: Service) -> dict[str, str]:
        base = {"LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
        if "build" in service.definition:
            base |= self.image.environment(service.definition["build"]["target"], base["PATH"])
            # Brokers that start during other tests may need more than the default of ten seconds.
            base["STREAMING_PCA_KAFKA__REQUEST_TIMEOUT_MS"] = "30000"
        return {k: self.addressed(v, service) for k, v in (base | service.environment).items()}

    def _command(self, service: Service, extra: Sequence[str] = ()) -> list[str]:
        definition = service.definition
        entry = definition.get("entrypoint")
        if entry is None and "build" in definition:
            entry = self.image.entrypoint(definition["build"]["target"])
        if entry is None:
            entry = [tool(service.name)]
        words = [*entry, *definition.get("command", ()), *extra]
        # compose turns two dollars into one for the shell.
        return [self.addressed(word.replace("$$", "$"), service) for word in words]

    def sandbox(self, service: Service) -> Sandbox:
        """Return the surroundings of a process of the service."""
        user = self._user(service)
        return Sandbox(
            self.directory / service.name / "root",
            self._mounts(service),
            user,
            user,
            [int(group) for group in service.definition.get("group_add", ())],
            {name: other.address for name, other in self.services.items()},
            _tmpfs(service.definition),
            service.definition["read_only"],
            "/tmp",
        )

    # -- what an engine does -----------------------------------------------

    def start(self, name: str, *extra: str) -> Service:
        """Start a service without waiting; ``extra`` is appended to its command."""
        service = self.services[name]
        command = self.sandbox(service).command(*self._command(service, extra))
        service.process = Child(
            command, log=self.directory / f"{name}.log", cwd=self.directory, env=self.environment(service)
        )
        return service

    def up(self, name: str, *extra: str) -> Service:
        """Start a service after all its dependencies, with the file's conditions."""
        service = self.services[name]
        if service.process is not None:
            return service
        for other, how in service.definition.get("depends_on", {}).items():
            self.up(other)
            if how["condition"] == "service_healthy":
                self.wait_healthy(other)
            else:
                assert how["condition"] == "service_completed_successfully"
                assert self.ends(other) == 0, f"{other}: {self.services[other].log}"
        return self.start(name, *extra)

    def run(self, service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command in a service's container."""
        words = [self.addressed(word, service) for word in arguments]
        return self.sandbox(service).run(*words, env=self.environment(service))

    def is_healthy(self, name: str) -> bool:
        """Return the current result of the service's own health check."""
        kind, *command = self.services[name].definition["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(self.services[name], *command).returncode == 0

    def wait_healthy(self, name: str) -> None:
        """Wait until a service is healthy."""
        healthy = f"{name} to be healthy"
        self.services[name].wait(healthy, lambda: self.is_healthy(name), 2 * LIMIT)

    def ends(self, name: str) -> int:
        """Return the exit status of a service, once it has ended."""
        return self.services[name].ends()

    def stop(self, name: str) -> int:
        """Stop a service like ``docker-compose stop``, within the time that the file grants."""
        return self.services[name].stop(seconds_of(self.services[name].definition["stop_grace_period"]))

    def destroy(self) -> None:
        for service in self.services.values():
            service.kill()


def _tmpfs(definition: Mapping[str, Any]) -> dict[str, str]:
    """Return an engine's own options, and the file's, by path."""
    mounts = (mount.partition(":") for mount in definition["tmpfs"])
    return {path: f"mode=1777,noexec,nosuid,nodev,{options}" for path, _, options in mounts}


def seconds_of(text: str) -> float:
    """Convert a duration of the file: 90s, 2m."""
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def bytes_of(text: str) -> int:
    """Convert a size of the file: 512m, 2g."""
    return int(text[:-1]) * {"m": 2**20, "g": 2**30}[text[-1]]
