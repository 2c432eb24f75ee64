"""Code blocks of README, tutorials and how-to pages run as printed, each page separately.

A page is one shell script, in its own directory. A block with a title is a file; neighbouring Python blocks
are one program; a comment ``<!-- setup ... -->`` contains steps that readers have already done. Broker and
port are replaced by the test's.
"""

from __future__ import annotations

import ast
import configparser
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import metadata, packages_distributions
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from jsonschema import Draft202012Validator
from kafka import KafkaAdminClient
from packaging.requirements import Requirement

from streaming_pca.cli.app import app
from streaming_pca.config.schema import file_schema
from tests.docs.pages import PAGES, ROOT, Block, blocks, name_of
from tests.docs.test_recipes import kafkajs, need
from tests.ports import steady_ports
from tests.selection import SHARED
from tests.waiting import wait_for

NOT_RUN = {
    "compose": "needs a container engine",
    "kubernetes": "needs a cluster",
    "systemd": "needs an init system",
    "prometheus": "needs a Prometheus server",
    "cluster": "needs a broker with encryption and passwords",
    "spark": "needs Java and a cluster of Apache Spark",
    "fragment": "a part of a file, or of a program that the reader has",
    "hours": "takes hours",
    "terminal": "runs in a terminal of its own until Ctrl-C",
    "recipe": "is run by test_recipes.py, with the client of its language",
    "install": "would change the environment of the tests",
}
"""Markers that excuse a block from running."""

_RUNNABLE = {"bash", "python"}
_PYTHON = "python -W error::UserWarning -W error::FutureWarning"
_BROKER = "localhost:9092"
_REGISTRY = "http://localhost:8081"
_PORTS = ("9464", "9465", "9470")
_DEADLINE = 360
_PATIENT = {
    "STREAMING_PCA_KAFKA__BOOTSTRAP_TIMEOUT_MS": "120000",
    "STREAMING_PCA_KAFKA__REQUEST_TIMEOUT_MS": "30000",
}
"""Limits for a busy machine; the pages keep the defaults."""
_OF_VISITS = {f"docs/how-to/{name}.md" for name in ("monitor", "produce", "use-releases")}
"""Pages about one stream; their scripts run in turn, since each creates and deletes its topics."""


def test_markers_are_known_and_blocks_are_labelled() -> None:
    for page in PAGES:
        for block in blocks(page):
            where = f"{name_of(page)}:{block.line}"
            assert block.marker is None or block.marker in NOT_RUN, where
            if block.marker is None and block.title is None:
                # Plain text is a command's output, or README's input.
                assert block.language in _RUNNABLE | {"text", "json"}, where


def test_every_block_parses(tmp_path: Path) -> None:
    for page in PAGES:
        for block in blocks(page):
            try:
                _parse(block, tmp_path)
            except Exception as error:
                pytest.fail(f"{name_of(page)}:{block.line}: {error}")


def _parse(block: Block, folder: Path) -> None:
    if block.language == "python":
        compile(block.code, "block", "exec")
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language == "yaml":
        assert list(yaml.safe_load_all(block.code))
    elif block.language == "ini":
        configparser.ConfigParser(strict=False).read_string(block.code)
    elif block.language == "bash":
        script = folder / "block.sh"
        script.write_text(block.code)
        subprocess.run(["bash", "-n", script], check=True, capture_output=True)


def test_every_settings_file_is_a_good_one() -> None:
    validator = Draft202012Validator(file_schema())
    files = [
        block for page in PAGES for block in blocks(page) if block.language == "toml" and not block.marker
    ]
    assert len(files) > 5
    for block in files:
        validator.validate(tomllib.loads(block.code))


def test_what_a_page_imports_is_installed_by_its_own_lines() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own, distributions = project["name"], packages_distributions()
    for page in PAGES:
        installed = {each.name: each for each in map(Requirement, [own, *project["dependencies"]])}
        for words in re.findall(r"pip install ([^\n`#]+)", page.read_text(encoding="utf-8")):
            for word in shlex.split(words):
                requirement = Requirement(re.sub(r"^\.", own, word))
                installed[requirement.name] = requirement
        for extra in installed[own].extras:
            for each in map(Requirement, project["optional-dependencies"][extra]):
                installed.setdefault(each.name, each)
        for name in {name for block in blocks(page) for name in _modules(block)}:
            first, *others = name.split(".")
            (distribution,) = distributions[first]
            assert distribution in installed, f"{name_of(page)} imports {name}"
            needed = set(metadata(distribution).get_all("Provides-Extra", []))
            needed &= {word.replace("_", "") for word in others}
            assert needed <= installed[distribution].extras, f"{name_of(page)} imports {name}"


def _modules(block: Block) -> Iterator[str]:
    """Yield the modules of other projects that a block imports."""
    for node in ast.walk(ast.parse(block.code if block.language == "python" else "")):
        found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            found = [str(node.module)]
        known = {"streaming_pca", *sys.stdlib_module_names}
        yield from (name for name in found if name.partition(".")[0] not in known)


def test_every_printed_command_and_option_exists() -> None:
    found = 0
    for page in PAGES:
        for block in blocks(page):
            if block.language == "bash":
                for words in _commands(block.code):
                    found += 1
                    _check_command(words, f"{name_of(page)}:{block.line}: {' '.join(words)}")
    assert found > 30


def _commands(code: str) -> Iterator[list[str]]:
    for line in code.replace("\\\n", " ").splitlines():
        for part in re.findall(r"(?:^|[|;(]\s*|&&\s*)streaming-pca ([^|;&>)]*)", line):
            yield shlex.split(part, comments=True)


def _check_command(words: list[str], where: str) -> None:
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, where
        command = command.commands[words.pop(0)]
    parameters = command.params
    known = {option for each in parameters for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    options = {word for word in words if word.startswith("-") and word != "-"}  # - is standard input
    assert options <= known, where


def _script(page: Path) -> str:
    """Return all blocks of a page that run as one script of bash; "" without such blocks."""
    running = [block for block in blocks(page) if block.marker is None and _runs(block)]
    if not any(block.title is None for block in running):
        return ""
    parts = []
    for (language, title), group in groupby(running, key=lambda block: (block.language, block.title)):
        members = list(group)
        code = "\n".join(block.code for block in members)
        parts.append(f"echo '--- line {members[0].line}' >&2")
        if title is not None:
            parts.append(f"cat > {shlex.quote(title)} <<'END_OF_BLOCK'\n{code}END_OF_BLOCK")
        elif language == "python":
            parts.append(f"{_PYTHON} - <<'END_OF_BLOCK'\n{code}END_OF_BLOCK")
        else:
            parts.append(code)
    return "\n".join(parts)


def _runs(block: Block) -> bool:
    return block.title is not None or block.language in _RUNNABLE


def _needs_broker(page: Path) -> bool:
    return _BROKER in _script(page)


def _on_broker() -> list[Any]:
    """Return the pages that need a broker, in groups of pytest-xdist by what they share."""
    return [pytest.param(page, marks=_group_of(page)) for page in PAGES if _needs_broker(page)]


def _group_of(page: Path) -> list[pytest.MarkDecorator]:
    """Return the group of a page about one stream, or of one that needs a registry, if any."""
    if name_of(page) in _OF_VISITS:
        return [pytest.mark.xdist_group("tests/docs/visits")]
    return [pytest.mark.xdist_group(SHARED["apicurio"])] if _REGISTRY in _script(page) else []


def test_scripts_that_run_concurrently_name_different_streams_and_topics() -> None:
    scripts = {name_of(page): _script(page) for page in PAGES if _needs_broker(page)}
    assert scripts.keys() >= _OF_VISITS
    for page, script in scripts.items():
        # In settings files; a feature has a name too.
        named = set(re.findall(r'^(?:input = |\[+streams?\]+\nname = )"(.+?)"', script, re.MULTILINE))
        assert named, page
        for other in scripts.keys() - {page} - (_OF_VISITS if page in _OF_VISITS else set()):
            assert not [name for name in named if f'"{name}"' in scripts[other]], f"{page} and {other}"


@pytest.mark.timeout(_DEADLINE + 60)
@pytest.mark.parametrize("page", [page for page in PAGES if not _needs_broker(page)], ids=name_of)
def test_the_page_runs_as_printed(page: Path, tmp_path: Path) -> None:
    script = _script(page)
    assert script
    _run(script, tmp_path)


@pytest.mark.timeout(_DEADLINE + 60)
@pytest.mark.parametrize("page", _on_broker(), ids=name_of)
def test_the_page_runs_as_printed_on_a_broker(
    page: Path, kafka_bootstrap: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ports = dict(zip(_PORTS, map(str, steady_ports(len(_PORTS))), strict=True))
    # In one pass, and before the addresses: a port may contain the digits of another.
    script = re.sub("|".join(ports), lambda found: ports[found[0]], _script(page))
    script = script.replace(_BROKER, kafka_bootstrap)
    if _REGISTRY in script:
        script = script.replace(_REGISTRY, request.getfixturevalue("apicurio").url)
    if "node " in script:
        need("node")
        (tmp_path / "node_modules").symlink_to(kafkajs())
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        left = _topics_of(script, admin)
        assert not left, f"an earlier run left topics on this broker: {left}"
        try:
            _run(script, tmp_path, STREAMING_PCA_HTTP__PORT=ports["9464"], **_PATIENT)
        finally:
            admin.delete_topics(_topics_of(script, admin))
            wait_for("the topics to go", lambda: not _topics_of(script, admin))


def _topics_of(script: str, admin: KafkaAdminClient) -> list[str]:
    """Return the broker's topics that a page names, including NAME.state and so on."""
    return [name for name in admin.list_topics() if f'"{name.partition(".")[0]}"' in script]


def _run(script: str, folder: Path, **environment: str) -> None:
    # `streaming-pca` and `python` come from the environment of this test.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    log = folder.parent / f"{folder.name}.log"
    with log.open("w+") as out:
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PATH": path, "COLUMNS": "120", **environment},
        )
        try:
            status: int | str = process.wait(_DEADLINE)
        except subprocess.TimeoutExpired:
            status = f"none after {_DEADLINE} s"
        finally:
            _end_session(process)
    assert status == 0, f"status {status}\n{log.read_text()[-6000:]}"


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End the script and its workers in the background."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        if kind is signal.SIGTERM:
            with suppress(AssertionError):
                wait_for("the end of the script's group", lambda: not _lives(process.pid), 20)
    process.wait()


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
