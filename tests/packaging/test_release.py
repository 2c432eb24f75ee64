"""The checklist for a release names only commands, modules and files that exist."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from streaming_pca.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Release a version\n")[2]
SECTION = SECTION.partition("\n## ")[0]
TARGETS = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[0].split()
COMMANDS = set(getattr(typer.main.get_command(app), "commands", ()))
OF_THE_SYSTEM = {"cd", "docker", "pip", "python3"}
MADE = ("dist", "site", "/tmp")
"""Folders that the steps make."""


def of_the_checklist() -> Iterator[str]:
    """Yield the commands, files and other names of the section."""
    for block in re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL):
        for line in block.splitlines():
            yield from filter(None, (part.strip() for part in line.split("&&")))
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", SECTION, flags=re.DOTALL))


def is_module(name: str) -> bool:
    """Return whether a module is the repository's, Python's, or of a distribution that it declares."""
    path = ROOT / name.replace(".", "/")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [need for needs in project["optional-dependencies"].values() for need in needs]
    return (
        path.with_suffix(".py").is_file()
        or (path / "__main__.py").is_file()
        or name in sys.stdlib_module_names
        or any(re.match(rf"{name}\b", need) for need in declared)
    )


def missing(text: str) -> list[str]:
    """Return the parts of a command or name that do not exist."""
    program, *arguments = [word for word in shlex.split(text) if not re.match(r"[A-Z_]+=", word)]
    name = Path(program).name
    plain = [word for word in arguments if not word.startswith("-")]
    if name == "make":
        return [word for word in plain if word not in TARGETS]
    if "-m" in arguments:
        return [] if is_module(module := arguments[arguments.index("-m") + 1]) else [module]
    if name == "streaming-pca":
        return [word for word in plain[:1] if word not in COMMANDS]
    files = [word for word in plain if "/" in word]
    if name not in OF_THE_SYSTEM:
        files.append(program)
    return [file for file in files if not (file.startswith((*MADE, "$")) or (ROOT / file).exists())]


def is_other(text: str) -> bool:
    """Return whether a text is a table of pyproject.toml or the pattern of a name."""
    return text.startswith("[project.") or "VERSION" in text


@pytest.mark.parametrize("text", sorted(set(of_the_checklist())))
def test_what_the_checklist_names_exists(text: str) -> None:
    assert is_other(text) or missing(text) == []


def test_the_checklist_has_commands() -> None:
    found = list(of_the_checklist())
    assert {"make lock", "make pin", "make soak", "make docs", ".venv/bin/python -m build"} <= set(found)
    assert "/tmp/release/bin/streaming-pca demo" in found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("make relase", "relase"),
        (".venv/bin/python -m benchmarks.utilty", "benchmarks.utilty"),
        (".venv/bin/python -m biuld", "biuld"),
        ("/tmp/release/bin/streaming-pca dema", "dema"),
        ("docker build --file deploy/Dockerfiel .", "deploy/Dockerfiel"),
        ("tests/upgrade/fixture", "tests/upgrade/fixture"),
        (".ci/runs", ".ci/runs"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, wrong: str) -> None:
    assert missing(text) == [wrong]
