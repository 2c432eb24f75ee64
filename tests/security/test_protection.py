"""Memory of a process with records and secrets: no core file, no debugger, no revealing message."""

from __future__ import annotations

import asyncio
import ctypes
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import LogSettings
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.kernel_cache import compile_apart, stop
from streaming_pca.service import process_hardening
from streaming_pca.service.input.end_offsets import EndOffsetPoller
from streaming_pca.service.logs import configure_logging
from streaming_pca.service.process_hardening import (
    WITHHELD,
    protect_process,
    traceback_text,
    withheld_messages,
)
from streaming_pca.service.verification import verify_periodically
from tests.cli.command import call
from tests.cli.test_app import closed_port
from tests.security import unprivileged
from tests.security.needles import SECRETS, found_in, secret
from tests.waiting import wait_for


@pytest.fixture
def folder() -> Iterator[Path]:
    with unprivileged.folder() as made:
        yield made


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is of Linux")

CONFIG = """\
[kafka]
bootstrap_servers = "127.0.0.1:{port}"

[stream]
name = "guarded"
input = "guarded-records"
dim = 4
rank = 2
epsilon = 1.0
delta = 1e-6

[http]
port = 0

[worker]
debuggable = {debuggable}
"""


def dashboard(folder: Path, debuggable: bool) -> Any:
    """Run a process of the service that needs no broker."""
    config = folder / "stream.toml"
    config.write_text(CONFIG.format(port=closed_port(), debuggable=str(debuggable).lower()))
    words = ("-m", "streaming_pca", "dashboard", "--config", config, "--port", 0)
    return unprivileged.running(*words, cwd=folder, variables={"STREAMING_PCA_HTTP__TOKEN": secret("token")})


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    message = ""
    for line in process.stdout:
        message += line
        if text in line:
            return message
    raise AssertionError(message)


def core_limit(pid: int) -> str:
    """Return the soft limit of core files."""
    (line,) = [x for x in Path(f"/proc/{pid}/limits").read_text().splitlines() if x.startswith("Max core")]
    return line.split()[4]


def abort(process: subprocess.Popen[str], cwd: Path) -> bool:
    """Abort a process after its user raised the core limit; return whether its memory was dumped."""
    raised = unprivileged.run("prlimit", "--core=unlimited:", "--pid", process.pid, cwd=cwd)
    assert raised.returncode == 0, raised.stderr
    assert core_limit(process.pid) == "unlimited"
    os.kill(process.pid, signal.SIGABRT)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = -os.WTERMSIG(status)
    assert os.WTERMSIG(status) == signal.SIGABRT
    return os.WCOREDUMP(status)


ATTACH = """
import ctypes, os, sys
system = ctypes.CDLL(None, use_errno=True)
if system.ptrace(16, int(sys.argv[1]), None, None):
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(int(sys.argv[1]), 0x40000000)
system.ptrace(17, int(sys.argv[1]), None, None)
"""


def attach(pid: int, cwd: Path) -> str:
    """Attach a debugger of the same user, and detach it; return the reason of a failure."""
    return unprivileged.run(unprivileged.python(), "-c", ATTACH, pid, cwd=cwd).stderr.strip()


@linux
def test_a_process_leaves_no_core_file_and_admits_no_debugger(folder: Path) -> None:
    with dashboard(folder, debuggable=False) as process:
        wait_for_line(process, "dashboard: http")
        assert core_limit(process.pid) == "0"
        assert not unprivileged.is_dumpable(process.pid)
        # Its environment holds the token, and another process of the same user cannot read it.
        for program, name in (("cat", "environ"), ("cat", "mem"), ("cat", "maps"), ("ls", "fd")):
            result = unprivileged.run(program, f"/proc/{process.pid}/{name}", cwd=folder)
            assert result.returncode != 0, name
            assert "ermission denied" in result.stderr
        assert attach(process.pid, folder) == "Operation not permitted"
        if shutil.which("gcore"):
            dumped = unprivileged.run("gcore", "-o", folder / "dump", process.pid, cwd=folder)
            assert dumped.returncode != 0, dumped.stdout
        assert not abort(process, folder)
    assert [path.name for path in (folder).iterdir()] == ["stream.toml"]


@linux
def test_an_operator_can_admit_debuggers_and_so_the_test_above_can_fail(folder: Path) -> None:
    with dashboard(folder, debuggable=True) as process:
        message = wait_for_line(process, "dashboard: http")
        assert "worker.debuggable: debuggers of this user" in message
        assert core_limit(process.pid) == "0"
        assert unprivileged.is_dumpable(process.pid)
        result = unprivileged.run("cat", f"/proc/{process.pid}/environ", cwd=folder)
        assert found_in(result.stdout.encode(), SECRETS)
        assert attach(process.pid, folder) == ""
        assert abort(process, folder)
    for core in (folder).glob("core*"):
        core.unlink()


ALIVE = """
import ctypes, multiprocessing, os, signal, subprocess, sys, time
import psutil
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from streaming_pca.dev.processes import Child
from streaming_pca.service.process_hardening import protect_process

if __name__ == "__main__":
    assert protect_process() is None
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0, "it is dumpable"
    metrics = CollectorRegistry()
    ProcessCollector(registry=metrics)
    told = generate_latest(metrics).decode()
    for name in ("open_fds", "max_fds", "resident_memory_bytes", "cpu_seconds_total", "start_time_seconds"):
        assert f"\\nprocess_{name} " in told, (name, told)
    own = psutil.Process()
    assert own.num_fds() > 2 and own.memory_info().rss > 2**20 and own.num_threads() >= 1
    assert own.cpu_times().user > 0 and own.children() == []
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(abs, [-3]) == [3]
    with open("/dev/stdin") as stdin, open("/proc/self/status") as status:
        assert stdin.read() == "" and "VmHWM" in status.read()
    assert subprocess.run([sys.executable, "-c", "pass"], pass_fds=[2]).returncode == 0
    from pathlib import Path
    # The leash is set before the program starts.
    program = "import time; print('runs', flush=True); time.sleep(600)"
    child = Child([sys.executable, "-c", program], log=Path("log"), cwd=Path.cwd())
    while "runs" not in Path("log").read_text():
        time.sleep(0.02)
    print("child", child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@linux
def test_a_guarded_process_without_rights_can_still_do_its_work(folder: Path) -> None:
    """``/proc/self`` belongs to root then: metrics, children and their leash need parts of it."""
    (folder / "alive.py").write_text(ALIVE)
    with unprivileged.running(folder / "alive.py", cwd=folder) as process:
        message = process.communicate(timeout=120)[0]
    assert process.returncode == -signal.SIGKILL, message
    # The system's own signal kills its child with it.
    (child,) = [int(line.split()[1]) for line in message.splitlines() if line.startswith("child ")]
    wait_for("the child's end", lambda: not Path(f"/proc/{child}").exists())


@linux
def test_the_compiler_of_kernels_is_given_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMING_PCA_KAFKA__SASL_PASSWORD", secret("password"))
    monkeypatch.setenv("streaming_pca_http__token", secret("token"))
    compiler = compile_apart([RecordKind.LOCAL])
    # The kernel shows it a moment after exec.
    environment = wait_for("its environment", Path(f"/proc/{compiler.pid}/environ").read_bytes)
    stop(compiler)
    compiler.wait()
    assert b"PATH=" in environment
    assert not found_in(environment, SECRETS)


@linux
@pytest.mark.parametrize("module", ["commit.verification", "input.clock"])
def test_a_child_with_the_password_is_guarded_before_it_reads_it(folder: Path, module: str) -> None:
    words = ("-m", f"streaming_pca.service.{module}")
    with unprivileged.running(*words, cwd=folder, stdin=subprocess.PIPE) as process:
        wait_for("its protection", lambda: process.poll() or not unprivileged.is_dumpable(process.pid))
        # It waits for the settings, which it has not been given.
        assert process.poll() is None


def start_clock(kafka: KafkaSettings) -> None:
    with suppress(OSError):
        EndOffsetPoller(kafka, 0.1, 1.0).start()


def start_verifier(kafka: KafkaSettings) -> None:
    async def verify() -> None:
        await asyncio.wait_for(verify_periodically(kafka, {"records": []}, 0.01, asyncio.Event()), 0.2)

    with suppress(TimeoutError):
        asyncio.run(verify())


@pytest.mark.parametrize("start", [start_clock, start_verifier])
def test_no_child_inherits_a_secret(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[KafkaSettings], None]
) -> None:
    """Other processes of the user can read a program's environment until it is guarded."""
    monkeypatch.setenv("STREAMING_PCA_KAFKA__SASL_PASSWORD", secret("password"))
    monkeypatch.setenv("streaming_pca_registry__password", secret("token"))
    environments: list[Mapping[str, str]] = []

    def refuse(*_: Any, env: Mapping[str, str] | None = None, **__: Any) -> None:
        environments.append(os.environ if env is None else env)
        raise OSError

    monkeypatch.setattr(subprocess, "Popen", refuse)
    start(KafkaSettings())
    assert environments
    for each in environments:
        assert "PATH" in each
        leaked = found_in("\n".join(each.values()).encode(), SECRETS)
        assert not leaked


def test_a_platform_without_protection_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert "give the service its own user" in str(protect_process())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "resource", None)
        assert "switch them off for this user" in str(protect_process())

    refusing = SimpleNamespace(prctl=lambda *_: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: refusing)
    if sys.platform.startswith("linux"):
        assert "does not let this process refuse debuggers" in str(protect_process())


# -- messages --------------------------------------------------------------


def broken(*_: Any, **__: Any) -> None:
    """Fail like a library that quotes input that it cannot handle."""
    try:
        raise KeyError(secret("inner"))
    except KeyError as error:
        raise ValueError(f"could not convert {secret('value')!r}") from error


def test_a_bug_of_a_command_is_a_traceback_without_messages(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("streaming_pca.config.loading.load_together", broken)
    done = call(capfd, "worker", "--config", tmp_path / "stream.toml")
    assert done.returncode == 1
    assert not found_in((done.stdout + done.stderr).encode(), SECRETS)
    lines = done.stderr.splitlines()
    raised = [line for line in lines if line.startswith("builtins.")]
    assert raised == [f"builtins.{name}: {WITHHELD}" for name in ("KeyError", "ValueError")]
    assert sum("in broken" in line for line in lines) == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_line_about_a_bug_has_no_message(form: Any) -> None:
    configure_logging(LogSettings(format=form))
    written = io.StringIO()
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(written)
    try:
        broken()
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    finally:
        logging.getLogger().removeHandler(handler)
    assert "Task exception was never retrieved" in written.getvalue()
    assert "builtins.ValueError" in written.getvalue()
    assert not found_in(written.getvalue().encode(), SECRETS)


@pytest.mark.parametrize("raiser", ["thread", "finalizer", "program"])
def test_an_error_that_no_handler_sees_has_no_message(raiser: str, capfd: pytest.CaptureFixture[str]) -> None:
    class Finalized:
        def __del__(self) -> None:
            broken()

    def in_thread() -> None:
        thread = threading.Thread(target=broken)
        thread.start()
        thread.join()

    def in_program() -> None:
        try:
            broken()
        except ValueError as error:
            sys.excepthook(ValueError, error, error.__traceback__)

    cases: dict[str, Callable[[], object]] = {
        "thread": in_thread,
        "finalizer": lambda: Finalized() and None,
        "program": in_program,
    }
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    with withheld_messages():
        cases[raiser]()
    assert (sys.excepthook, threading.excepthook, sys.unraisablehook) == hooks
    message = capfd.readouterr().err
    assert f"builtins.ValueError: {WITHHELD}" in message
    assert not found_in(message.encode(), SECRETS)


def test_messages_are_shown_where_debuggers_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="could not convert") as caught:
        broken()
    assert secret("value") not in traceback_text(caught.value)
    monkeypatch.setattr(process_hardening, "_messages_shown", True)
    assert secret("value") in traceback_text(caught.value)


# -- a password in a client's options -------------------------------------


def test_a_password_is_masked_where_a_client_logs_its_options(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(secret("of-file"))
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "pca"}
    for kafka in (
        KafkaSettings(**login, sasl_password=secret("of-variable")),  # type: ignore[arg-type]
        KafkaSettings(**login, sasl_password_file=tmp_path / "password"),  # type: ignore[arg-type]
    ):
        password = kafka.password
        assert password is not None
        assert password.startswith(secret("of-"))
        assert password.encode().startswith(secret("of-").encode())
        for text in (repr(password), f"{ ({'sasl_plain_password': password}) }", repr(kafka), str(kafka)):
            assert not found_in(text.encode(), SECRETS)
