"""A guarded worker prints and writes neither secrets nor records, even in a crash.

A worker runs as an unprivileged user on a broker that asks for a password. Its input has recognisable
records, keys and headers, including hostile ones. HTTP clients request everything from it, other commands
run next to it with right and wrong settings, and it ends by SIGABRT and by an error. Then all output is
searched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kafka.conftest import Name
from tests.kafka.security.secured import Secured, password_of
from tests.kafka.security.streams import create, described, grant
from tests.kafka.stream import OCTETS, Stream
from tests.security import unprivileged
from tests.security.needles import RECORDS, ROW, SECRETS, found_in, search, secret
from tests.waiting import LIMIT, wait_for

ROOT = Path(__file__).resolve().parents[3]
TOKEN, METRICS = secret("http-token"), secret("metrics-token")
CONFIG = """\
[kafka]
bootstrap_servers = "{bootstrap}"
bootstrap_timeout_ms = 4000
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "worker"
ssl_cafile = "{authority}"

[stream]
name = "{name}"
input = "{input}"
dim = 5
rank = 2
epsilon = 1.0
delta = 1e-6

[stream.options]
growth = 1.0
n_records = 300
n_batches = 3

[worker]
group = "workers-{name}"
verify_seconds = 1

[http]
port = 0
dashboard = true
token_file = "{token}"

[log]
level = "debug"
format = "json"
"""
VERIFIER = b"streaming_pca.service.commit.verification"
PAGES = ["/", "/healthz", "/readyz", "/metrics", "/v1", "/nowhere", "/v1/nowhere", "/%2e%2e/etc/passwd"]
PAGES += ["/docs"]


def hostile(row: bytes) -> list[tuple[bytes, bytes]]:
    """Return invalid values with their content types, each with a secret or a record inside."""
    text = json.dumps({"x": [*ROW, 1e400, "nan", secret("json")]}).encode()
    header = b"{'descr': '<f4', 'shape': (2, " + secret("npy").encode() + b")}"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    return [
        (text, b"application/json"),
        (b"[" * 5000 + row, b"application/json"),
        (json.dumps({"x": secret("text")}).encode(), b"application/json"),
        (npy + row, b"application/x-npy"),
        (b"ARROW1\0\0" + row * 3, b"application/vnd.apache.arrow.stream"),
        (row[:-1], b"application/octet-stream"),
        (row + b"!", b"application/octet-stream"),
        (row, secret("content-type").encode()),
        (np.full(5, np.nan, "<f4").tobytes() + row, b"application/octet-stream"),
        (b"", b"application/octet-stream"),
    ]


@dataclass
class Scene:
    """Stream on a secured broker, and a folder with all output of its processes."""

    secured: Secured
    stream: Stream
    config: Path
    held: Path
    out: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def variables(self, **more: str) -> dict[str, str]:
        return {
            "STREAMING_PCA_KAFKA__SASL_PASSWORD": password_of("worker"),
            "STREAMING_PCA_HTTP__METRICS_TOKEN": METRICS,
            "PYTHONFAULTHANDLER": "1",
        } | more

    def produce(self, count: int) -> None:
        """Send records that all contain the searched row, hostile records first."""
        row = np.array([*ROW, 0.5, -0.25, 0.125], dtype="<f4").tobytes()
        values = [*hostile(row), *[(row, OCTETS[0][1])] * count][:count]
        extra = ("x-" + secret("header-name"), secret("header").encode())
        self.stream._send(
            [(secret("key").encode(), v, [("content-type", kind), extra]) for v, kind in values], to=None
        )

    @contextlib.contextmanager
    def worker(self, name: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Run a worker as an unprivileged user; its output goes to a file of that name."""
        user = str(unprivileged.user_id())
        command = [unprivileged.python(), "-P", "-m", "tests.kafka.security.guarded_worker", user]
        command += ["worker", "--config", str(self.config)]
        own = unprivileged.environment(**self.variables(**variables), PYTHONPATH=unprivileged.paths(ROOT))
        with (
            (self.out / name).open("w") as log,
            subprocess.Popen(
                command, cwd=self.out, env=own, stdout=log, stderr=log, stdin=subprocess.DEVNULL, text=True
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def log(self, name: str) -> str:
        return (self.out / name).read_text()

    def wait(self, name: str, text: str, process: subprocess.Popen[str]) -> None:
        wait_for(
            f"{text!r}",
            lambda: re.search(text, self.log(name)) or process.poll() is not None,
            seen=lambda: self.log(name),
        )
        assert re.search(text, self.log(name)), self.log(name)


@pytest.fixture(scope="module")
def scene(
    secured: Secured, tmp_path_factory: pytest.TempPathFactory, unique_name: Name, fork_server: None
) -> Iterator[Scene]:
    """Run the whole scenario of the module's docstring once."""
    stream = described(secured, unique_name("guarded"), tmp_path_factory.mktemp("children"))
    stream.settings = stream.changed(options={"growth": 1.0, "n_records": 300, "n_batches": 3})
    create(stream, secured.open_settings)
    grant(secured, stream, ["worker"])
    held = tmp_path_factory.mktemp("held")
    with unprivileged.folder() as given, unprivileged.folder() as out:
        # The worker's user can reach its input files; its output is searched.
        (given / "authority.pem").write_bytes((secured.directory / "authority.pem").read_bytes())
        (given / "token").write_text(TOKEN)
        (given / "stream.toml").write_text(config_text(secured, stream, given))
        found = Scene(secured, stream, given / "stream.toml", held, out)
        run_and_abort(found)
        run_and_break(found)
        run_commands(found)
        yield found


def config_text(secured: Secured, stream: Stream, given: Path) -> str:
    return CONFIG.format(
        bootstrap=secured.address("SCRAM"),
        authority=given / "authority.pem",
        name=stream.settings.stream.name,
        input=stream.settings.stream.input,
        token=given / "token",
    )


def run_and_abort(scene: Scene) -> None:
    """Learn two batches, send all HTTP requests, and end by SIGABRT."""
    scene.produce(200)
    with scene.worker("worker.log") as process:
        scene.wait("worker.log", "batch 2 released", process)
        (url,) = set(re.findall(r"dashboard on (https?://\S+?)/\"", scene.log("worker.log")))
        ask_everything(scene, url)
        scene.facts |= wait_for("a guarded verifier", lambda: look_at_family(process.pid))
        # The environment contains the password, which shows that the search would find it.
        scene.facts["environment"] = Path(f"/proc/{process.pid}/environ").read_bytes()
        os.kill(process.pid, signal.SIGABRT)
        _, status = os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGABRT
        scene.facts["dumped"] = os.WCOREDUMP(status)


def look_at_family(pid: int) -> dict[str, Any]:
    """Return facts of a worker and its children; empty unless a verifier is among them and guarded.

    A verifier ends soon, and is guarded a moment after its start.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        family = [pid, *children_of(pid)]
        commands = [Path(f"/proc/{each}/cmdline").read_bytes() for each in family]
        dumpable = [each for each in family if unprivileged.is_dumpable(each)]
        limits = [Path(f"/proc/{each}/limits").read_text() for each in family]
        verifiers = [each for each, words in zip(family, commands, strict=True) if VERIFIER in words]
        if verifiers and not {*verifiers} & {*dumpable}:
            return {"commands": b"\n".join(commands), "dumpable": dumpable, "limits": limits}
    return {}


def run_and_break(scene: Scene) -> None:
    """End by an error of the estimator in the third batch."""
    scene.produce(100)
    with scene.worker("broken.log", BREAK="1") as process:
        scene.facts["broken"] = process.wait(120)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def ask_everything(scene: Scene, url: str) -> None:
    """Request every path without a token, and with wrong, right and misplaced tokens."""
    answers = scene.out / "answers"
    answers.mkdir()
    given = {"none": None, "wrong": "x" * 20, "right": TOKEN, "metrics": METRICS}

    def ask(name: str, path: str, token: str | None, method: str = "GET", **headers: str) -> Any:
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                status, body, reported = answer.status, answer.read(200_000), answer.headers
        except urllib.error.HTTPError as error:
            status, body, reported = error.code, error.read(), error.headers
        except (OSError, ssl.SSLError) as error:
            status, body, reported = 0, type(error).__name__.encode(), {}
        # The request itself comes from the test.
        head = f"{method} {path.partition('?')[0]} {status}\n{reported}\n"
        (answers / name).write_bytes(head.encode() + body)
        return status, body

    status, document = ask("document", "/v1/openapi.json", TOKEN)
    assert status == 200
    stream = scene.stream.settings.stream
    values = {"stream": stream.name, "name": stream.name, "input": stream.input, "topic": stream.input}
    paths = [
        re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], "1"), path)
        for path in json.loads(document)["paths"]
        if not path.endswith("/events")
    ]
    answered = 0
    for number, path in enumerate([*PAGES, *paths]):
        for kind, token in given.items():
            answered += ask(f"{number}-{kind}", path, token)[0] == 200
    for number, (method, query) in enumerate([("POST", ""), ("DELETE", ""), ("GET", f"?token={TOKEN}")]):
        ask(f"odd-{number}", f"/v1/streams{query}", None, method)
    ask("hostile", "/v1/streams", TOKEN, Host="evil.example", Cookie=secret("cookie"), Range="bytes=0-")
    scene.facts |= {"answered": answered, "paths": len(paths)}


COMMANDS = """
import contextlib, json, os, sys
from streaming_pca.cli import main
for number, (variables, words) in enumerate(json.loads(sys.stdin.read())):
    for name in [name for name in os.environ if name.startswith("STREAMING_PCA_")]:
        del os.environ[name]
    os.environ.update(variables)
    sys.argv = ["streaming-pca", *words]
    print("#", number, " ".join(words), file=sys.stderr, flush=True)
    try:
        main()
    except SystemExit as end:
        print("status", number, end.code or 0, flush=True)
"""


def run_commands(scene: Scene) -> None:
    """Run commands with right and wrong settings, one after another."""
    held = scene.held
    right = scene.variables()
    # A client repeats what is refused until this time is over.
    wrong = right | {
        "STREAMING_PCA_KAFKA__SASL_PASSWORD": secret("wrong"),
        "STREAMING_PCA_KAFKA__BOOTSTRAP_TIMEOUT_MS": "1500",
    }
    good, name = str(scene.config), "STREAMING_PCA_KAFKA__SASL_PASSWORD"

    def config(number: int, text: str) -> str:
        path = held / f"{number}.toml"
        path.write_text(text)
        return str(path)

    def with_file(number: int, content: bytes, setting: str) -> str:
        path = held / f"{number}.secret"
        path.write_bytes(content)
        text = scene.config.read_text()
        place = "[http]\n" if setting.startswith(("token", "metrics")) else "[kafka]\n"
        text = re.sub(rf"(?m)^{setting} = .*\n", "", text)
        return config(number, text.replace(place, f'{place}{setting} = "{path}"\n'))

    def without(*names: str) -> dict[str, str]:
        return {k: v for k, v in right.items() if k not in names}

    key = secret("private-key")
    pem = f"-----BEGIN PRIVATE KEY-----\n{key}\n{key}\n-----END PRIVATE KEY-----\n".encode()
    text, prefix = scene.config.read_text(), "STREAMING_PCA_"
    check = ["config", "check", "-c"]
    quoted = text.replace("[kafka]", f'[kafka]\nsasl_password = "{key}"')
    bare = text.replace("[kafka]", f"[kafka]\nsasl_password = {key}")
    expected: list[tuple[dict[str, str], list[str], int]] = [
        (right, [*check, good, "--verbose"], 0),
        (right, [*check, good, "--json"], 0),
        (right, [*check, good, "--broker"], 0),
        (right, ["status", "-c", good, "--json"], 0),
        (right, ["ledger", "show", "-c", good, "--json"], 0),
        (right, ["ledger", "verify", "-c", good], 0),
        (wrong, ["status", "-c", good], 4),
        (wrong, [*check, good, "--broker"], 4),
        (wrong, ["ledger", "verify", "-c", good], 4),
        (wrong, ["worker", "-c", good], 4),
        (right, [*check, config(1, quoted)], 2),
        (right, [*check, config(2, bare)], 2),
        (without(name), [*check, with_file(3, b"\xff" + key.encode(), "sasl_password_file"), "--broker"], 2),
        (right, [*check, with_file(4, f"two words {key}".encode(), "token_file")], 2),
        (right, [*check, with_file(5, f"{key}\n{key}".encode(), "token_file")], 2),
        (right, [*check, with_file(6, pem, "ssl_certfile"), "--broker"], 2),
        (right, [*check, with_file(7, pem, "ssl_cafile"), "--broker"], 2),
        (without(name) | {f"{prefix}KAFKA": json.dumps({"sasl_password": [key]})}, [*check, good], 2),
        (right | {f"{prefix}KAFKA": "{" + key}, [*check, good], 2),
        (right | {f"{prefix}HTTP__TOKEN": secret("two words")}, [*check, good], 2),
        (right | {f"{prefix}KAFKA__SASL_PASSWORD_FILE": str(held / "none")}, [*check, good], 2),
    ]
    program, own = [sys.executable, "-P", "-c", COMMANDS], {"PYTHONPATH": unprivileged.paths(ROOT)}
    given = json.dumps([[variables, words] for variables, words, _ in expected])
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 200, "check": False}
    done = subprocess.run(program, input=given, cwd=scene.out, env=os.environ | own, **how)
    (scene.out / "commands.out").write_text(done.stdout)
    (scene.out / "commands.err").write_text(done.stderr)
    statuses = [int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("status ")]
    assert statuses == [status for _, _, status in expected], done.stdout + done.stderr


# -- claims ----------------------------------------------------------------


def test_nothing_that_was_printed_or_answered_or_written_tells_a_secret_or_a_record(scene: Scene) -> None:
    result = search(scene.out.rglob("*"))
    assert not result.found, "\n".join(result.found)
    assert result.files > 50
    assert result.octets > 100_000


def test_all_of_it_was_driven(scene: Scene) -> None:
    """The searched files contain what they should."""
    assert scene.facts["paths"] >= 5
    assert scene.facts["answered"] >= scene.facts["paths"]
    log = scene.log("worker.log")
    # kafka-python's own list of its options, including the password.
    assert "Starting KafkaAdminClient with configuration: " in log
    assert "sasl_plain_password" in log
    assert "Fatal Python error: Aborted" in log
    broken = scene.log("broken.log")
    assert scene.facts["broken"] == 2, broken
    assert "the estimator failed on batch 3, which is abandoned" in broken
    # The worker's user may not read the environment, but root may, and it has the password.
    assert found_in(scene.facts["environment"], SECRETS)


def test_topics_that_are_read_by_others_hold_no_record(scene: Scene) -> None:
    """In the segments on the broker's disk, only input and state may contain records."""
    cluster, names = scene.secured.cluster, scene.stream.settings.stream
    assert cluster is not None
    folder = cluster.log_directory(1, names.input, 0).parent
    # The broker also has topics of other tests.
    own = re.compile(rf"(?:{re.escape(names.name)}\..*|{re.escape(names.ledger_topic)}|__.*)-\d+")
    private = re.compile(rf"{re.escape(names.state_topic)}-\d+")
    shown = [p for p in folder.iterdir() if own.fullmatch(p.name) and not private.fullmatch(p.name)]
    segments = [path for topic in shown for path in topic.rglob("*")]
    topics = {path.parent.name.rpartition("-")[0] for path in segments}
    assert {names.ledger_topic, names.releases_topic, "__consumer_offsets"} <= topics
    result = search(segments)
    assert not result.found, "\n".join(result.found)
    assert search((folder / f"{names.input}-0").iterdir(), RECORDS).found, "the records were not planted"


def test_a_worker_and_its_children_are_guarded_and_left_no_core_file(scene: Scene) -> None:
    assert scene.facts["dumpable"] == []
    assert all(re.search(r"Max core file size +0 ", each) for each in scene.facts["limits"])
    assert not scene.facts["dumped"]
    assert not [path for path in scene.out.rglob("*") if "core" in path.name]


def test_command_lines_have_no_secret(scene: Scene) -> None:
    assert b"worker" in scene.facts["commands"]
    assert b"clock" in scene.facts["commands"]
    assert VERIFIER in scene.facts["commands"]
    assert not found_in(scene.facts["commands"])
