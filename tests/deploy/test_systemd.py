"""deploy/systemd: systemd accepts the units, and their commands run under the restrictions.

As this machine has no systemd, the tests set up the user, the mounts, the capabilities and the filter of
system calls as systemd does. PrivateUsers, PrivateIPC and the limits of a control group are missing.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from streaming_pca.admin.topics import create_with_cap
from streaming_pca.config.loading import load_settings
from streaming_pca.dev.processes import Child
from streaming_pca.privacy.ledger.entries import Cap
from tests.deploy.conftest import Guarded, give
from tests.deploy.dockerfile import Image
from tests.deploy.sandbox import Confined, Mount, Sandbox
from tests.deploy.tools import ROOT, captured, run_tool
from tests.waiting import LIMIT

UNITS = ("streaming-pca", "streaming-pca-dashboard")
INSTANCE = "flights"
SERVER = "kafka.example.org:9093"
# In the range of DynamicUser.
USER = 61184
# The score of systemd-analyze security, in tenths; 100 is a unit without restrictions.
EXPOSURE = 15

STREAM = """
[kafka]
bootstrap_servers = "{server}"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "worker"
ssl_cafile = "/etc/streaming-pca/kafka-ca.pem"

[http]
host = "{address}"

[stream]
name = "flights-pca"
input = "flights"
dim = 145
rank = 5
epsilon = 1.0
delta = 1e-6
"""

# The unit's filter of system calls, followed by the command.
FILTER = """
import os, sys
import pyseccomp
allowed = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
for name in sys.argv[1].split(","):
    try:
        allowed.add_rule(pyseccomp.ALLOW, name)
    except OSError:
        pass  # of another processor
for family in sys.argv[2].split(","):
    allowed.add_rule(pyseccomp.ALLOW, "socket", pyseccomp.Arg(0, pyseccomp.EQ, int(family)))
allowed.load()
os.execvp(sys.argv[3], sys.argv[3:])
"""

COMPILE = "import numba; print(numba.njit(lambda x: x + 1)(1))"


def path_of(unit: str) -> Path:
    return ROOT / "deploy" / "systemd" / f"{unit}@.service"


@cache
def read(unit: str) -> dict[str, list[str]]:
    """Return a unit's directives with the names of one instance in it."""
    specifiers = {"%i": INSTANCE, "%d": f"/run/credentials/{unit}@{INSTANCE}.service", "%C": "/var/cache"}
    printed: dict[str, list[str]] = {}
    for line in path_of(unit).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            printed.setdefault(name, []).append(re.sub("%[idC]", lambda m: specifiers[m[0]], value))
    assert not any("%" in value for values in printed.values() for value in values)
    return printed


@cache
def calls_of(group: str) -> frozenset[str]:
    """Return the system calls of a group of systemd's."""
    listed = run_tool("systemd-analyze", "syscall-filter", "--no-pager", group)
    assert listed.returncode == 0, listed.stderr
    words = {line.strip() for line in listed.stdout.splitlines()[1:]}
    words = {word for word in words if word and not word.startswith("#")}
    groups = {word for word in words if word.startswith("@")}
    return frozenset(words - groups).union(*(calls_of(each) for each in groups))


def allowed_calls(unit: str) -> set[str]:
    """Return the unit's allowed system calls, except sockets, which it restricts by family."""
    allowed: set[str] = set()
    for words in read(unit)["SystemCallFilter"]:
        for word in words.removeprefix("~").split():
            allowed = allowed - calls_of(word) if words.startswith("~") else allowed | calls_of(word)
    return allowed - {"socket"}


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    # The unit's program is not on this machine, so another takes its place.
    text = path_of(unit).read_text()
    program = shlex.split(read(unit)["ExecStart"][0])[0]
    copy = tmp_path / path_of(unit).name
    copy.write_text(text.replace(program, sys.executable))
    verified = run_tool("systemd-analyze", "verify", "--man=no", copy)
    assert (verified.returncode, verified.stderr) == (0, "")
    copy.write_text(text.replace(program, sys.executable).replace("ProtectSystem", "ProtectSystems"))
    assert "ProtectSystems" in run_tool("systemd-analyze", "verify", "--man=no", copy).stderr


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_is_exposed_to_little(unit: str) -> None:
    judge = ("systemd-analyze", "security", "--offline=true", "--no-pager")
    judged = run_tool(*judge, f"--threshold={EXPOSURE}", path_of(unit))
    assert judged.returncode == 0, judged.stdout
    assert run_tool(*judge, "--threshold=5", path_of(unit)).returncode != 0


@pytest.mark.parametrize("unit", UNITS)
def test_secrets_are_shown_to_the_unit_alone(unit: str) -> None:
    shown = dict(line.split(":") for line in read(unit)["LoadCredential"])
    folder = f"/run/credentials/{unit}@{INSTANCE}.service"
    named = {value for line in read(unit)["Environment"] for value in re.findall(r"_FILE=(\S+)", line)}
    assert named == {f"{folder}/{name}" for name in shown}
    assert all(source.startswith("/etc/streaming-pca/secrets/") for source in shown.values())


def test_a_worker_that_is_refused_is_not_started_again() -> None:
    (statuses,) = read("streaming-pca")["RestartPreventExitStatus"]
    definition = captured([sys.executable, "-P", "-m", "streaming_pca", "worker", "--help"], check=True)
    text = re.sub(r"\s+", " ", definition.stdout)
    assert "2 refused or misconfigured, 3 the cap is reached, 4 the broker was lost" in text
    assert statuses.split() == ["2", "3"]
    # The program compiles machine code, which this would forbid.
    assert read("streaming-pca")["MemoryDenyWriteExecute"] == ["no"]


class Unit(Confined):
    """An instance of a unit as a process of this machine."""

    def __init__(self, unit: str, machine: Path, image: Image, broker: Guarded, address: str) -> None:
        self.unit, self.printed, self.directory = unit, read(unit), machine / unit
        etc, private = machine / "etc", self.directory / "credentials"
        for line in self.printed["LoadCredential"]:
            name, source = line.split(":")
            text = (etc / Path(source).relative_to("/etc/streaming-pca")).read_text()
            give(private / name, text, 0o400, USER, USER)
        made = image.root / "opt"
        credentials = f"/run/credentials/{unit}@{INSTANCE}.service"
        mounts = [Mount(made, "/opt"), Mount(made, str(made)), Mount(etc, "/etc/streaming-pca")]
        mounts.append(Mount(private, credentials))
        # The image's interpreter depends on another one, which may be in a home directory hidden from the
        # unit.
        base = Path(os.path.realpath(sys.executable)).parents[1]
        mounts += [Mount(base, str(base)), Mount(Path(sys.prefix), sys.prefix)]
        for folder in self.printed.get("CacheDirectory", []):
            cache_folder = self.directory / "cache"
            cache_folder.mkdir()
            os.chown(cache_folder, USER, USER)
            mounts.append(Mount(cache_folder, f"/var/cache/{folder}", writable=True))
        assert self.printed["ProtectSystem"] == ["strict"]
        for name in ("PrivateTmp", "ProtectHome", "NoNewPrivileges"):
            assert self.printed[name] == ["yes"]
        assert self.printed["CapabilityBoundingSet"] == [""]
        empty = {"/tmp": "mode=1777", "/home": "mode=711", "/root": "mode=711"}
        host = {SERVER.partition(":")[0]: broker.address}
        self.sandbox = Sandbox(self.directory / "root", mounts, USER, USER, (), host, empty)
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}
        for line in self.printed["Environment"]:
            self.environment |= dict(word.split("=", 1) for word in shlex.split(line))
        (command,) = self.printed["ExecStart"]
        self.command = [word.replace("127.0.0.1", address) for word in shlex.split(command)]

    def confined(self, command: Sequence[str]) -> list[str]:
        """Return the command under the unit's filter of system calls and its limits."""
        names = self.printed["RestrictAddressFamilies"][0].split()
        families = [str(int(getattr(socket, name))) for name in names]
        calls = ",".join(sorted(allowed_calls(self.unit)))
        assert self.printed["LimitCORE"] == ["0"]
        filtered = [sys.executable, "-P", "-c", FILTER, calls, ",".join(families), *command]
        mask = f'umask {self.printed["UMask"][0]}; exec "$@"'
        return self.sandbox.command("prlimit", "--core=0", "/bin/sh", "-c", mask, "unit", *filtered)

    def start(self) -> Unit:
        self.process = Child(
            self.confined(self.command), log=self.directory / "log", cwd=self.directory, env=self.environment
        )
        return self

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return captured(self.confined(command), env=self.environment)

    def wait_for_answer(self, url: str) -> None:
        """Wait until the unit answers successfully."""

        def answers() -> bool:
            with suppress(OSError), urllib.request.urlopen(url, timeout=LIMIT) as answer:
                assert answer.status == 200
                return True
            return False

        self.wait(url, answers)


@pytest.fixture(scope="module")
def units(
    guard: Callable[[str], Guarded], image: Image, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, Unit]]]:
    """Return the address of two serving units, and units with settings and secrets."""
    machine = tmp_path_factory.mktemp("machine")
    broker = guard(SERVER)
    address = f"{broker.address.rpartition('.')[0]}.{(int(broker.address.rpartition('.')[2]) + 1) % 255}"
    etc = machine / "etc"
    etc.mkdir()
    (etc / f"{INSTANCE}.toml").write_text(STREAM.format(server=SERVER, address=address))
    (etc / "kafka-ca.pem").write_text(broker.authority)
    kept = {"kafka-password": broker.passwords["worker"], "http-token": "correct-horse-battery"}
    for name, text in kept.items():
        give(etc / "secrets" / f"{INSTANCE}.{name}", text, 0o600, 0, 0)
    give(etc / "secrets" / f"{INSTANCE}-dashboard.kafka-password", broker.passwords["dashboard"], 0o600, 0, 0)
    (etc / "secrets").chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMING_PCA_KAFKA__SASL_PASSWORD", "none")
        settings = load_settings(etc / f"{INSTANCE}.toml")
    opened = settings.model_copy(update={"kafka": broker.open_settings})
    create_with_cap([opened], Cap(epsilon=1, delta=1e-6), "basic", 3, 1)
    broker.permit([settings], "worker", "dashboard")
    made = {unit: Unit(unit, machine, image, broker, address) for unit in UNITS}
    yield address, made
    for each in made.values():
        each.kill()


@pytest.mark.timeout(600)
def test_the_units_commands_run_under_their_restrictions(units: tuple[str, dict[str, Unit]]) -> None:
    address, made = units
    worker, dashboard = (made[unit].start() for unit in UNITS)
    worker.wait_for_answer(f"http://{address}:9464/readyz")
    dashboard.wait_for_answer(f"http://{address}:9470/readyz")
    for port, path in ((9464, "/metrics"), (9470, "/v1/streams")):
        asked = urllib.request.Request(f"http://{address}:{port}{path}")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked, timeout=240)
        asked.add_header("Authorization", "Bearer correct-horse-battery")
        with urllib.request.urlopen(asked, timeout=240) as answer:
            assert answer.status == 200
    for each in (worker, dashboard):
        status = Path(f"/proc/{each.running.pid}/status").read_text()
        facts = dict(line.split(":", 1) for line in status.splitlines())
        assert facts["Seccomp"].strip() == "2"
        limit = int(each.printed["MemoryMax"][0].removesuffix("G")) * 2**30
        assert int(facts["VmHWM"].split()[0]) * 1024 < 0.8 * limit
        assert int(facts["Threads"]) < 0.8 * int(each.printed["TasksMax"][0])
        assert each.stop(int(each.printed["TimeoutStopSec"][0])) == 0, each.log
    kernels = list((worker.directory / "cache").rglob("*.nbi"))
    assert kernels, "kernels are kept where the unit says"


def test_the_restrictions_are_real(units: tuple[str, dict[str, Unit]]) -> None:
    _, made = units
    worker = made["streaming-pca"]
    for command, message in (
        (["cat", f"/etc/streaming-pca/secrets/{INSTANCE}.kafka-password"], "Permission denied"),
        (["touch", "/etc/streaming-pca/new"], "Read-only file system"),
        (["touch", "/usr/new"], "Read-only file system"),
        (["chown", "1", "/tmp"], "Operation not permitted"),
        (["chroot", "/", "true"], "Operation not permitted"),
    ):
        refused = worker.run(*command)
        assert refused.returncode != 0
        assert message in refused.stderr, refused.stderr
    # The compiler of kernels works within these restrictions.
    compiled = worker.run(f"{Path(worker.command[0]).parent}/python", "-P", "-c", COMPILE)
    assert compiled.stdout == "2\n", compiled.stderr
    unknown = worker.run(*worker.command[:-1], "/etc/streaming-pca/absent.toml")
    assert str(unknown.returncode) in worker.printed["RestartPreventExitStatus"][0].split(), unknown.stderr
