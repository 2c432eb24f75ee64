"""Only patches.py uses private names of kafka-python, and each fault that it works around still exists.

A failing test of the second kind shows that a patch is superfluous.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
import inspect
import re
import select
import selectors
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.base import BaseCoordinator
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.producer.transaction_manager import EndTxnHandler, TransactionManager
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol
from kafka.record.default_records import DefaultRecordBatch

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka import clients, patches
from streaming_pca.service.kafka.patches import ORIGINALS, KeySelector
from tests.kafka.security.hostile import batch, record
from tests.packaging.test_imports import PACKAGE, ROOT
from tests.waiting import LIMIT

DOCUMENTED = {
    "kafka",
    *(f"kafka.{name}" for name in ("admin", "errors", "structs", "net.sasl", "net.sasl.oauth")),
}
DOCUMENTED.add("kafka.coordinator.assignors.sticky.sticky_assignor")
"""Modules with names that kafka-python documents for its users."""
INNER = {
    "diagnosis": {"kafka.cluster", "kafka.protocol.metadata", "kafka.protocol.parser", "kafka.protocol.sasl"},
    "inflating": {"kafka.record.util"},
}
"""Other modules of kafka-python, by the only module of the service that imports them."""


# -- private names ---------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield lines and private names of objects that a module does not define itself."""
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _stores_own(node)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    bases = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kafka"
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if (
                is_private(name) and name not in own and not _is_self(node.value)
            ):
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=args):
                key = args[1]
                if isinstance(key, ast.Constant) and is_private(str(key.value)) and not _is_self(args[0]):
                    yield node.lineno, str(key.value)
            case ast.ImportFrom(module=str(source), names=names) if source.partition(".")[0] == "kafka":
                yield from ((node.lineno, a.name) for a in names if is_private(a.name))
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner))]) if owner in bases:
                yield node.lineno, f"a patch of {owner}"
            case ast.ClassDef(bases=parents):
                for parent in parents:
                    outer = parent.id if isinstance(parent, ast.Name) else ""
                    if outer in bases:
                        base = getattr(importlib.import_module(bases[outer]), outer)
                        yield from _overridden(node, base)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _stores_own(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and _is_self(node.value)


def _overridden(node: ast.ClassDef, base: type) -> Iterator[tuple[int, str]]:
    """Yield the private names of a class that its base in kafka-python has, or sets on its instances."""
    inherited = set(dir(base)) | {
        each.attr
        for parent in base.__mro__[:-1]
        if parent.__module__.partition(".")[0] == "kafka"
        for each in ast.walk(ast.parse(inspect.cleandoc("\n" + inspect.getsource(parent))))
        if isinstance(each, ast.Attribute) and _stores_own(each)
    }
    for each in ast.walk(node):
        name = getattr(each, "attr", None) or getattr(each, "name", None) or ""
        if is_private(name) and name in inherited:
            yield node.lineno, f"{node.name}.{name}, of {base.__name__}"


def test_no_other_module_uses_private_names_of_the_client() -> None:
    texts = (path.read_text(encoding="utf-8") for path in Path(kafka.__file__).parent.rglob("*.py"))
    theirs = {"a patch"}.union(*(re.findall(r"\b_[a-z]\w*", text) for text in texts)) - {"_exit"}
    assert {"_fetcher", "_sender", "_sock_recv"} < theirs
    problems = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.stem == "patches" or "kafka" not in text:
            continue
        problems += [
            f"{path}:{line}: {name}"
            for line, name in private_uses(ast.parse(text))
            if set(re.findall(r"\b_\w+|^a patch", name)) & theirs
        ]
    assert not problems, "\n".join(["", *problems])


def test_other_modules_import_documented_modules_of_the_client() -> None:
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        allowed = DOCUMENTED | INNER.get(path.stem, set())
        if path.stem == "patches":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            inner = {name for name in names if name.partition(".")[0] == "kafka"} - allowed
            assert not inner, f"{path}: {inner}"


@pytest.mark.parametrize(
    "source",
    [
        "consumer._fetcher",
        "consumer._fetcher._append = 1",
        "getattr(consumer, '_fetcher')",
        "setattr(consumer, '_fetcher', 1)",
        "from kafka.consumer.group import _private",
        "from kafka import KafkaConsumer\nKafkaConsumer.poll = 1",
        "from kafka import KafkaConsumer\nclass C(KafkaConsumer):\n def _coordinate(self): self._fetcher",
        "from kafka import KafkaConsumer\nclass C(KafkaConsumer):\n def _coordinator(self): pass",
    ],
)
def test_the_search_finds_private_names(source: str) -> None:
    assert list(private_uses(ast.parse(source)))


def test_the_search_accepts_a_module_s_own_names() -> None:
    source = (
        "class A:\n def __init__(self): self._a = 1\n def _f(self): pass\n"
        "a = A()\na._a\na._f()\na.__dict__\na.public\n"
    )
    assert not list(private_uses(ast.parse(source)))


# -- faults of kafka-python ------------------------------------------------


def test_patches_are_in_effect_once_clients_are_imported() -> None:
    for owner, name, replacement in patches._REPLACED:
        assert getattr(owner, name) is replacement
        assert patches.ORIGINALS[replacement].__module__.partition(".")[0] == "kafka"


def original(name: str) -> Callable[..., Any]:
    return patches.ORIGINALS[getattr(patches, name)]


class Recording(KafkaNetSocket):  # type: ignore[misc]
    """Maker of sockets that keeps them."""

    SCHEMES: tuple[str, ...] = ()

    def socket(self, *args: int) -> socket.socket:
        self.made = [super().socket(*args)]
        return self.made[0]


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_the_client_leaves_the_socket_of_a_failed_connection_open() -> None:
    class Refusing(Recording):
        async def sock_connect(self, *args: Any, **more: Any) -> Any:
            raise KafkaConnectionError

    address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))
    for connect, is_open in ((original("_connect"), True), (patches._connect, False)):
        refusing = Refusing()
        with pytest.raises(KafkaConnectionError):
            asyncio.run(connect(refusing, None, address))
        assert (refusing.made[0].fileno() >= 0) == is_open
        refusing.made[0].close()


def test_the_client_reads_in_small_pieces() -> None:
    sizes: list[int] = []

    def recv(size: int) -> bytes:
        sizes.append(size)
        if len(sizes) > 1:
            raise BlockingIOError
        return b"x"

    original("_read_piece")(SimpleNamespace(_sock=SimpleNamespace(recv=recv)))
    assert max(sizes) < patches.PIECE_BYTES


def test_the_client_copies_a_response() -> None:
    answer = KafkaBytes(2 * patches._LEAST_SHARED_BYTES)
    assert isinstance(original("_read_rest")(answer), bytes)
    assert isinstance(DefaultRecordBatch(memoryview(batch([record(b"a")])))._buffer, bytearray)


def test_the_client_passes_on_an_error_of_certificate_files(pair: Pair) -> None:
    transport = KafkaSSLTransport.__new__(KafkaSSLTransport)
    with pytest.raises(FileNotFoundError):
        original("_make_transport")(transport, None, pair[0], host="localhost", ssl_cafile="/missing")
    assert pair[0].fileno() >= 0


def test_the_client_waits_for_a_handshake_without_a_limit(pair: Pair) -> None:
    class Waited(Exception):
        pass

    async def wait_read(*args: Any, **more: Any) -> None:
        raise Waited(len(args) + len(more))

    transport = KafkaSSLTransport(SimpleNamespace(wait_read=wait_read), pair[0], host="localhost")
    for shake, arguments in ((original("_shake_hands"), 1), (patches._shake_hands, 2)):
        with pytest.raises(Waited, match=str(arguments)):
            asyncio.run(shake(transport))


def test_a_handshake_has_the_time_of_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"127.0.0.1:{mute.getsockname()[1]}"
        net = NetworkSelector()
        manager = KafkaConnectionManager(net, bootstrap_servers=[place], security_protocol="SSL")
        node = manager.cluster.bootstrap_brokers()[0]
        began = time.monotonic()
        waiting = net.call_soon_with_future(original("_build_transport"), manager, node, began + 0.1)
        ended = net.call_soon_with_future(patches._build_transport, manager, node, began + 1)
        net.poll(timeout_ms=60_000, future=ended)
        assert time.monotonic() >= began + 1
        assert isinstance(ended.exception, KafkaConnectionError)
        assert not waiting.is_done
        net.close()


def test_the_client_gives_up_after_a_refused_password() -> None:
    fixed = {"mechanisms": ["PLAIN"], "API_VERSION": 1, "auth_bytes": b"", "error_message": "no"}

    async def answer(*args: Any, **more: Any) -> Any:
        return SimpleNamespace(error_code=answers.pop(), **fixed)

    config = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    connection = SimpleNamespace(config=config, _send_request=answer, _timeout_at=lambda: 1e12)
    connection.transport = SimpleNamespace(host="h")
    refused = SaslAuthenticationFailedError
    for authenticate, error in (
        (original("_authenticate"), refused),
        (patches._authenticate, KafkaConnectionError),
    ):
        answers = [refused.errno, 0]
        with pytest.raises(error):
            asyncio.run(authenticate(connection))
    assert not issubclass(refused, KafkaConnectionError)


def test_the_client_swallows_a_failed_initialisation() -> None:
    async def fail(*args: Any) -> None:
        raise KafkaConnectionError("refused")

    closed: list[Exception] = []
    failed = SimpleNamespace(failed=lambda: True, exception=KafkaConnectionError("refused"))
    connection = SimpleNamespace(
        _timeout_at=lambda: 1e12, _get_api_versions=fail, close=closed.append, _init_future=failed
    )
    asyncio.run(original("_initialize")(connection))
    assert len(closed) == 1
    with pytest.raises(KafkaConnectionError):
        asyncio.run(patches._initialize(connection))


@pytest.mark.parametrize(("kind", "stays"), [(NetworkSelector, True), (patches._Selector, False)])
def test_the_client_s_errors_keep_the_variables_of_callers(kind: type[Any], stays: bool) -> None:
    class Known:
        pass

    async def fail() -> None:
        raise KafkaConnectionError

    def wait_in_vain(net: Any) -> weakref.ref[Known]:
        known = Known()
        with pytest.raises(KafkaConnectionError):
            net.run(fail)
        return weakref.ref(known)

    net = kind()
    net.start()
    gc.collect()
    gc.disable()
    try:
        assert (wait_in_vain(net)() is not None) == stays
    finally:
        gc.enable()
        net.close()


def test_the_client_s_idle_timer_reschedules_itself() -> None:
    tasks: list[Any] = []
    net = SimpleNamespace(call_at=lambda at, task: tasks.append(task))
    manager = SimpleNamespace(
        least_used_connections=list, _idle_check_delay=1, _net=net, close_idle_connections=0
    )
    for kind in (KafkaConnectionManager, patches._Manager):
        kind.close_idle_connections(manager)
        assert len(tasks) == 1


def test_the_client_raises_where_its_producer_expects_false() -> None:
    class Lost(patches.TransactionalClient):
        def __init__(self) -> None:
            self._manager = SimpleNamespace(_conns={}, get_connection=lambda node: None)

    with pytest.raises(KafkaConnectionError):
        KafkaNetClient.await_ready(Lost(), 1)
    assert not Lost().await_ready(1)


def test_the_client_repeats_a_commit_that_may_arrive_late() -> None:
    ended = ORIGINALS[patches._end_transaction]
    for complete, repeats in ((ended, True), (patches._end_transaction, False)):
        manager = TransactionManager(transactional_id="t")
        handler = EndTxnHandler(manager, committed=True)
        manager._in_flight_request_correlation_id = 7
        complete(handler, 7, KafkaConnectionError("lost"))
        assert not manager.has_in_flight_transactional_request()
        assert handler.is_retry == repeats
        assert manager.has_fatal_error() != repeats
        assert handler.result.is_done != repeats


def test_the_client_believes_the_offset_in_a_record() -> None:
    assert next(DefaultRecordBatch(batch([record(b"x", 10**6)], base=70))).offset == 70 + 10**6


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (Fetcher._handle_fetch_error, "handle_error"),
        (Fetcher._append, "part.take(max_records)"),
        (ConsumerCoordinator.fetch_committed_offsets_async, "_offset_fetch_futures[future_key]"),
        (KafkaProducer.close, "force_close"),
        (BaseCoordinator.request_rejoin, ""),
    ],
    ids=["slow fetches", "long polls", "late positions", "closing a producer", "forgotten joins"],
)
def test_the_code_around_a_workaround_is_as_it_was(where: Callable[..., Any], words: str) -> None:
    """Faults that only a broker shows: tests/kafka covers the workarounds."""
    source = inspect.getsource(where)
    assert words in source
    assert "fetch_max_bytes" not in source


def test_the_client_s_seek_does_not_take_an_epoch() -> None:
    assert list(inspect.signature(KafkaConsumer.seek).parameters) == ["self", "partition", "offset"]


# -- failed connections ----------------------------------------------------


class Waiting(NetworkSelector):  # type: ignore[misc]
    """Selector that signals when one of its tasks waits for a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def _wait_io(self, *args: object) -> None:
        super()._wait_io(*args)
        self.waits.set()


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_files_that_cannot_be_used_are_a_lost_connection(
    tmp_path: Path, pair: Pair, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(KafkaConnectionError, match=r"kafka\.ssl_"):
        KafkaSSLTransport(None, pair[0], host="localhost", ssl_cafile=str(file))
    assert pair[0].fileno() == -1


def test_a_failed_handshake_closes_its_socket(pair: Pair) -> None:
    transport = KafkaSSLTransport(None, pair[0], host="localhost")
    pair[1].sendall(b"no TLS here\r\n")
    wrapped = transport._sock
    with pytest.raises(ssl.SSLError):
        asyncio.run(transport.handshake())
    assert wrapped.fileno() == -1


def test_a_handshake_under_way_leaves_no_socket_when_its_client_is_closed(pair: Pair) -> None:
    net = Waiting()
    transport = KafkaSSLTransport(net, pair[0], host="localhost")
    wrapped = transport._sock
    net.start()
    net.call_soon_threadsafe(transport.handshake)
    assert net.waits.wait(LIMIT)
    net.close()
    assert wrapped.fileno() == -1


def test_a_connect_under_way_leaves_no_socket_when_its_client_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as first:
        address = server.getsockname()
        first.connect(address)
        net, full = Waiting(), Recording()
        net.start()
        place = (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
        net.call_soon_threadsafe(lambda: full.connect(net, place, (), time.monotonic() + LIMIT))
        assert net.waits.wait(LIMIT)
        net.close()
        assert full.made[0].fileno() == -1


# -- large reads -----------------------------------------------------------


def read(sock: socket.socket) -> tuple[bytes, Exception | None]:
    return patches._read_piece(SimpleNamespace(_sock=sock, _protocol=None))


def test_the_client_is_taught_where_there_is_no_tls() -> None:
    assert KafkaTCPTransport._sock_recv is patches._read_piece
    # Bytes that TLS has decrypted do not show at the socket, so its own reading continues to the end.
    assert KafkaSSLTransport._sock_recv is not patches._read_piece


def test_what_was_sent_comes_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PIECE_BYTES", 10)
    ours, theirs = pair
    theirs.sendall(b"0123456789abc")
    assert read(ours) == (b"0123456789", None)
    assert read(ours) == (b"abc", None)
    assert read(ours) == (b"", None)


def test_the_other_end_closing_and_a_broken_socket_are_errors(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"last")
    theirs.close()
    assert read(ours) == (b"last", None)
    for is_broken in (False, True):
        if is_broken:
            ours.close()
        data, error = read(ours)
        assert data == b""
        assert isinstance(error, KafkaConnectionError)


@pytest.mark.parametrize("size", [1, 10**5, patches._LEAST_SHARED_BYTES + 1, 3 * 10**6])
def test_answers_come_out_whole_and_in_order(pair: Pair, size: int) -> None:
    ours, theirs = pair
    answers = [bytes([i]) * (size + i) for i in range(4)]
    found: list[bytes] = []

    class Parser(KafkaProtocol):  # type: ignore[misc]
        def _process_response(self, read_buffer: KafkaBytes) -> None:
            found.append(bytes(read_buffer))

    parser = Parser(client_id="c")
    transport = SimpleNamespace(_sock=ours, _protocol=SimpleNamespace(parser=parser))
    framed = [struct.pack(">i", len(each)) + each for each in answers]
    sender = threading.Thread(target=lambda: [*map(theirs.sendall, framed)])
    sender.start()
    in_place = 0
    while len(found) < len(answers):
        select.select([ours], [], [])
        before = 0 if parser._rbuffer is None else parser._rbuffer.tell()
        data, error = patches._read_piece(transport)
        assert error is None
        in_place += not data and parser._rbuffer.tell() > before
        parser.receive_bytes(data)
    sender.join()
    assert found == answers
    # At most a piece may have arrived before its answer's place was known.
    assert in_place > 0 or size <= patches.PIECE_BYTES


def test_an_end_within_an_answer_is_an_error(pair: Pair) -> None:
    ours, theirs = pair
    parser = KafkaProtocol(client_id="c")
    transport = SimpleNamespace(_sock=ours, _protocol=SimpleNamespace(parser=parser))
    parser.receive_bytes(struct.pack(">i", 10**6))
    assert patches._read_piece(transport) == (b"", None)
    theirs.close()
    assert isinstance(patches._read_piece(transport)[1], KafkaConnectionError)


@pytest.mark.parametrize("size", [0, 100, patches._LEAST_SHARED_BYTES + 4, 10**6])
def test_the_rest_of_an_answer_is_what_it_was(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    answer = KafkaBytes(size)
    answer.write(data)
    answer.seek(0)
    header = answer.read(4)
    assert isinstance(header, bytes)
    assert header == data[:4]
    rest = answer.read()
    assert rest == data[4:]
    large = size - 4 >= patches._LEAST_SHARED_BYTES
    # No copy if that matters; otherwise bytes, which other code may expect.
    assert isinstance(rest, memoryview if large else bytes)
    assert answer.tell() == size
    assert answer.read() == b""


def test_every_client_has_the_selector() -> None:
    io = patches.shared_selector("logs")
    assert isinstance(io._selector, KeySelector)
    assert clients._common_options(KafkaSettings())["selector"] is KeySelector
    # The client's own selector writes a message with the socket's addresses, twice.
    assert NetworkSelector.DEFAULT_CONFIG["selector"] is selectors.DefaultSelector


def test_a_selector_knows_its_files(pair: Pair) -> None:
    ours, theirs = pair
    with KeySelector() as selector:
        key = selector.register(ours, selectors.EVENT_READ, "a")
        assert selector.get_key(ours) == key
        with pytest.raises(KeyError):
            selector.get_key(theirs)
        key = selector.modify(ours, selectors.EVENT_READ | selectors.EVENT_WRITE, "b")
        assert selector.get_key(ours) == key
        theirs.sendall(b"x")
        assert selector.select(0) == [(key, selectors.EVENT_READ | selectors.EVENT_WRITE)]
        # As the client does: modified for only one kind of event, then released.
        selector.modify(ours, selectors.EVENT_WRITE, "c")
        assert [events for _, events in selector.select(0)] == [selectors.EVENT_WRITE]
        assert selector.unregister(ours).data == "c"
        for use in (selector.get_key, selector.unregister):
            with pytest.raises(KeyError):
                use(ours)
        assert selector.register(ours, selectors.EVENT_READ).fileobj is ours
        with pytest.raises(KeyError):
            selector.register(ours, selectors.EVENT_READ)
        assert selector.get_key(ours).events == selectors.EVENT_READ


def test_a_file_that_was_closed_can_be_let_go(pair: Pair) -> None:
    with KeySelector() as selector:
        key = selector.register(pair[0], selectors.EVENT_READ)
        pair[0].close()
        assert selector.get_key(pair[0]) == key
        assert selector.unregister(pair[0]) == key
