"""The Dockerfile as data, and its lines run natively, in separate directories."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from string import Template

from tests.compiled import QUICK
from tests.deploy.tools import ROOT, captured

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
# The image's directories that its lines name.
OWN_PATHS = ("/src", "/wheels", "/opt/streaming-pca", "/opt/flights", "/access", "/access-metrics")
OWN_PATHS += ("/passwords", "/data")

_IMPORT = """
import pkgutil
from contextlib import suppress
from importlib import import_module

import streaming_pca
from streaming_pca.errors import UserError

for module in pkgutil.walk_packages(streaming_pca.__path__, "streaming_pca.", onerror=str):
    if not module.name.endswith("__main__"):
        with suppress(ImportError, UserError):
            import_module(module.name)
"""
"""Program that writes the bytecode of the modules that the service imports."""


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    lines: tuple[tuple[str, str], ...]


def read_stages() -> dict[str, Stage]:
    """Return the stages of the Dockerfile, in order."""
    from dockerfile_parse import DockerfileParser

    parser = DockerfileParser(fileobj=BytesIO(DOCKERFILE.read_bytes()))
    stages: dict[str, Stage] = {}
    for part in parser.structure:
        instruction, value = part["instruction"].upper(), part["value"]
        if instruction == "FROM":
            base, _, name = value.split()
            stages[name] = Stage(name, base, ())
        elif instruction != "COMMENT":
            last = next(reversed(stages))
            stages[last] = Stage(last, stages[last].base, (*stages[last].lines, (instruction, value)))
    return stages


def inherited(stage: str) -> Iterator[tuple[str, str]]:
    """Yield all lines valid in a stage, its base's first."""
    found = read_stages()[stage]
    if found.base in read_stages():
        yield from inherited(found.base)
    yield from found.lines


def last_of(stage: str, instruction: str) -> str | None:
    """Return the effective value of an instruction that may occur several times."""
    values = [value for name, value in inherited(stage) if name == instruction]
    return values[-1] if values else None


def build_context() -> set[str]:
    """Return the files that .dockerignore lets through, by Docker's own rules."""
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in patterns if line and not line.startswith("#")]
    from docker.utils.build import exclude_paths

    paths = exclude_paths(str(ROOT), patterns)
    # Docker reads .dockerignore from the context but never copies it.
    return {path for path in paths if (ROOT / path).is_file()} - {".dockerignore"}


class Image:
    """Result of the Dockerfile, below one directory; ``/opt/x`` of the image is ``root/opt/x``.

    The stages share the directory, so the files of one must not conflict with another's.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.built: dict[str, tuple[int, int]] = {}
        """Its files just after the build, by path: size and time of change."""

    def translated(self, text: str) -> str:
        """Replace the image's own paths."""
        own = "|".join(map(re.escape, OWN_PATHS))
        return re.sub(rf"(?<![\w.-])(?<!/)({own})(?![\w-])", rf"{self.root}\1", text)

    def build(self) -> None:
        """Run every line, from the first stage to the last."""
        for stage in read_stages().values():
            where = self.root
            for instruction, value in stage.lines:
                if instruction == "WORKDIR":
                    where = Path(self.translated(value))
                    where.mkdir(parents=True, exist_ok=True)
                elif instruction == "COPY" and "--from" not in value:
                    assert value.split() == [".", "."], "only the whole context is copied"
                    for path in build_context():
                        (where / path).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(ROOT / path, where / path)
                elif instruction == "RUN":
                    self._run(value, where)
        python = Path(self.environment("service", "")["PATH"].partition(":")[0]) / "python"
        self._run(f"{python} -P -c {shlex.quote(_IMPORT)}", self.root)
        self.built = self.files()

    def _run(self, line: str, where: Path) -> None:
        # The builder's ENV only keeps pip's cache out of the image; here it saves fetching everything again.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment |= QUICK | {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
        # Bytecode of all modules of all packages: half the work of an installation.
        environment["PIP_COMPILE"] = "0"
        # It ends the shell's children, too: one that writes on would disturb the next attempt.
        limited = ["timeout", "--verbose", "540", "/bin/sh", "-c", self.translated(line)]
        done = captured(limited, cwd=where, env=environment, timeout=None)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def environment(self, stage: str, path: str) -> dict[str, str]:
        """Return the variables of a stage with the image's paths, except for the old PATH."""
        found = {"PATH": path}
        for instruction, value in inherited(stage):
            if instruction == "ENV":
                for assignment in shlex.split(value):
                    name, _, text = assignment.partition("=")
                    found[name] = Template(text).substitute(found)
        return found

    def entrypoint(self, stage: str) -> list[str]:
        value = last_of(stage, "ENTRYPOINT")
        assert value is not None
        command: list[str] = json.loads(value)
        return command

    def owner(self, stage: str, folder: str) -> int:
        """Return the owner of a folder of the image, or a new volume there; default root."""
        for instruction, value in inherited(stage):
            owned = re.fullmatch(r"--from=\S+ --chown=(\d+):\d+ (/\S+) (/\S+)", value)
            if instruction == "COPY" and owned is not None and Path(folder).is_relative_to(owned[3]):
                return int(owned[1]) if Path(self.translated(folder)).is_dir() else 0
        return 0

    def files(self) -> dict[str, tuple[int, int]]:
        """Return size and time of every file in a container, without the builder's files."""
        top = self.root / "opt"
        stats = ((path, path.stat()) for path in top.rglob("*") if path.is_file())
        return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in stats}
