"""Fuzzing of everything that reads bytes from outside: ``python -m tests.fuzz``.

- ``list``: names of the targets;
- ``check [TARGET ...]``: a bounded, reproducible run (`make test-rest`); a line of JSON a target;
- ``replay TARGET FILE ...``: inputs once more;
- ``atheris SECONDS [TARGET ...]``: guided by coverage (`make fuzz`), needs the extra ``fuzz``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import mutate
from tests.fuzz.target import MIB, TARGETS, Target, address_space, limit_process, run_bounded

HERE = Path(__file__).parent
REGRESSIONS = HERE / "regressions"
"""Inputs that once broke a promise, by target."""
FOUND = Path("build", "fuzz")
_SEED = 17
_ROOM = 2**30
"""Address space in addition to the process's own: an input that needs more ends it."""


_MODULES = ("records", "fields", "logs", "outside")
_INSTRUMENTED = ["streaming_pca", "kafka.record", "json", "zipfile", "h11"]


def load_targets() -> None:
    """Import the modules that register targets."""
    for name in _MODULES:
        import_module(f"tests.fuzz.{name}")


def inputs_of(target: Target) -> Iterator[bytes]:
    """Yield previously failing inputs, the seeds, and mutations of both, reproducibly."""
    failed = [path.read_bytes() for path in sorted((REGRESSIONS / target.name).glob("*"))]
    seeds = [*failed, *target.seeds]
    yield from seeds
    dice = random.Random(f"{_SEED} {target.name}")
    small = [seed for seed in seeds if len(seed) <= MIB // 16]
    for _ in range(target.inputs):
        yield mutate(dice, small)


def outcome(target: Target, inputs: Iterable[bytes]) -> dict[str, Any]:
    """Run inputs in a separate process; return their number and the first failure, with its input."""
    # The child notes each input before it runs it: the last noted input is the one responsible.
    note = mmap.mmap(-1, 64 * MIB)
    started = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 0
        try:
            limit_process(address_space() + _ROOM)
            for number, data in enumerate(inputs):
                note[:12] = struct.pack("<qi", number, len(data))
                note[12 : 12 + len(data)] = data
                run_bounded(target, data)
            note[:8] = struct.pack("<q", number + 1)
        except BaseException:
            os.write(writing, traceback.format_exc()[-4000:].encode("utf-8", "backslashreplace"))
            status = 1
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read().decode()
    _, how = os.waitpid(child, 0)
    number, size = struct.unpack("<qi", note[:12])
    found: dict[str, Any] = {
        "target": target.name,
        "inputs": number,
        "seconds": round(time.monotonic() - started, 1),
    }
    if how:
        code = os.waitstatus_to_exitcode(how)
        ended = f"ended by signal {-code} (27: too slow, 14: hangs)" if code < 0 else ""
        found |= {"failure": text or ended, "file": str(_keep(target.name, note[12 : 12 + size]))}
    return found


def _keep(name: str, data: bytes) -> Path:
    folder = FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    return path


def reproduce(name: str, path: str) -> str:
    """Return the command that repeats an input."""
    return f"python -m tests.fuzz replay {name} {path}"


def check(names: list[str]) -> int:
    """Run targets in turn; a line of JSON for each."""
    failed = 0
    for name in names:
        found = outcome(TARGETS[name], inputs_of(TARGETS[name]))
        print(json.dumps(found), flush=True)
        failed += "failure" in found
    return int(failed > 0)


def replay(name: str, paths: list[Path]) -> int:
    """Run files as inputs."""
    failed = 0
    for path in paths:
        found = outcome(TARGETS[name], [path.read_bytes()])
        failed += "failure" in found
        print(f"{path}: {found.get('failure', 'kept')}")
    return int(failed > 0)


def guided(seconds: float, names: list[str]) -> int:
    """Run atheris on each target in a separate process; report failures with their commands."""
    failures = []
    for number, name in enumerate(names, 1):
        corpus, crashes = FOUND / "corpus" / name, FOUND / name
        for folder in (corpus, crashes):
            folder.mkdir(parents=True, exist_ok=True)
        before = set(crashes.iterdir())
        print(f"[{number}/{len(names)}] {name}: {seconds:g} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "one", name, str(corpus)]
        options = [
            f"-max_total_time={seconds:g}",
            f"-artifact_prefix={crashes}/",
            "-timeout=20",
            "-rss_limit_mb=3000",
        ]
        options += ["-max_len=65536", "-print_final_stats=1", "-verbosity=1"]
        log = crashes.parent / f"{name}.log"
        with log.open("wb") as file:
            status = subprocess.run([*command, *options], stdout=file, stderr=file, check=False).returncode
        print(f"    {_summary(log)}", flush=True)
        if status:
            found = sorted(set(crashes.iterdir()) - before)
            failures.append((name, str(found[0]) if found else f"... (see {log})"))
    for name, path in failures:
        print(f"FAILED {name}: {reproduce(name, path)}")
    return int(bool(failures))


def _summary(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    runs = [line.split()[-1] for line in lines if "number_of_executed_units" in line]
    cover = [line for line in lines if " cov: " in line]
    return f"{runs[-1] if runs else '?'} inputs; {cover[-1].strip()[:100] if cover else lines[-1:]}"


def compiled_modules() -> list[str]:
    """Return names of modules with numba functions, which must not be instrumented."""
    root = HERE.parents[1]
    package = root / "streaming_pca"
    files = [*(package / "kernels").rglob("*.py")]
    files += [path for path in package.rglob("*.py") if "import njit" in path.read_text("utf-8")]
    # Listed individually: to atheris the name of a package does not include its modules.
    return [".".join(path.relative_to(root).with_suffix("").parts) for path in files]


def one(name: str, options: list[str]) -> None:
    """Run atheris on one target, in this process, and end the process."""
    import atheris

    # This must precede all other imports of the instrumented modules.
    with atheris.instrument_imports(include=_INSTRUMENTED, exclude=compiled_modules()):
        load_targets()
    target = TARGETS[name]
    corpus = Path(options[0])
    for i, data in enumerate(target.seeds):
        if len(data) <= 65536:
            (corpus / f"seed-{i}").write_bytes(data)
    for path in (REGRESSIONS / name).glob("*"):
        (corpus / path.name).write_bytes(path.read_bytes())
    limit_process(address_space() + 4 * 2**30)
    atheris.Setup([sys.argv[0], *options], lambda data: run_bounded(target, data))
    atheris.Fuzz()


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    for command, first in (("check", None), ("replay", "name"), ("atheris", "seconds"), ("one", "name")):
        made = commands.add_parser(command)
        if first:
            made.add_argument(first, type=float if first == "seconds" else str)
        made.add_argument("rest", nargs="*" if command != "one" else argparse.REMAINDER)
    given = parser.parse_args()
    if given.command == "one":
        one(given.name, given.rest)
        return 0
    load_targets()
    if given.command == "list":
        print("\n".join(TARGETS))
        return 0
    names = given.rest or list(TARGETS) if given.command in ("check", "atheris") else [given.name]
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}: {', '.join(TARGETS)}")
    run: Callable[[], int]
    match given.command:
        case "check":
            run = lambda: check(names)  # noqa: E731
        case "replay":
            run = lambda: replay(given.name, [Path(path) for path in given.rest])  # noqa: E731
        case _:
            run = lambda: guided(given.seconds, names)  # noqa: E731
    return run()


if __name__ == "__main__":
    sys.exit(main())
