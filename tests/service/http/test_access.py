"""Tokens and their files, host names, origins and listening addresses decide on access."""

from __future__ import annotations

import hmac
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from streaming_pca.config.http import HttpSettings, check_access, is_loopback
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.service.http import access
from tests.config.refusals import refusal
from tests.service.http.running import OTHER, TOKEN, Running, serving
from tests.waiting import LIMIT

SECRET: dict[str, Any] = {"token": SecretStr(TOKEN)}


@pytest.fixture(scope="module")
def unsecured() -> Iterator[Running]:
    """Yield a server on loopback without a token, for tests that do not change it."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def secured() -> Iterator[Running]:
    """Yield a server with a token."""
    with serving(**SECRET) as running:
        yield running


@pytest.fixture(scope="module")
def probed(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Yield a server with the settings of a test's parameter."""
    with serving(**request.param) as running:
        yield running


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_on_loopback_nothing_needs_a_token(unsecured: Running) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/v1/streams", "/"):
        assert unsecured.status(path) == 200, path
    assert unsecured.ask("/readyz").json == {"ready": True, "streams": {"s": "leading"}}


def test_with_a_token_data_needs_it_and_probes_and_pages_do_not(secured: Running) -> None:
    for path in ("/healthz", "/readyz", "/"):
        assert secured.status(path) == 200, path
    for path in ("/metrics", "/v1/streams", "/v1/none", "/v1", "/v1/events", "/v1/../v1/streams", "/v1/%2e"):
        refused = secured.ask(path)
        assert refused.status == 401, path
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json["instance"].startswith(("/v1", "/metrics"))
        assert "http." in refused.json["detail"]
    for path in ("/metrics", "/v1/streams"):
        assert secured.status(path, token=TOKEN) == 200
    assert secured.status("/v1/streams", method="HEAD") == 401


@pytest.mark.parametrize(
    "path", ["//v1/streams", "/V1/streams", "/%2Fv1/streams", "/./v1/streams", "/v1%2fstreams"]
)
def test_no_spelling_of_a_path_gets_around_the_token(path: str, secured: Running) -> None:
    assert secured.status(path) in (401, 404), path


@pytest.mark.parametrize("path", ["/metrics%0A", "/readyz%0a", "/v1/events%0A", "/v1/streams%0A", "/%0A"])
@pytest.mark.parametrize("probed", [SECRET | {"event_streams": 1}], indirect=True)
def test_a_line_feed_behind_a_path_gets_around_no_token_and_no_limit(path: str, probed: Running) -> None:
    for token in (None, TOKEN):
        assert probed.status(path, token=token) == 404, path


OTHERS = ("", f"{TOKEN}x", TOKEN[:-1], TOKEN.upper(), f"{TOKEN} {TOKEN}", "é" * 20, "x" * 10_000)
HEADERS = ["", TOKEN, f"Basic {TOKEN}", "Bearer", *(f"Bearer {other}" for other in OTHERS)]


@pytest.mark.parametrize("header", HEADERS, ids=range(11))
def test_a_wrong_token_is_refused_in_words_that_do_not_repeat_it(
    header: str, caplog: pytest.LogCaptureFixture, secured: Running
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = secured.ask("/v1/streams", Authorization=header.encode().decode("latin-1"))
    assert answer.status == 401
    assert TOKEN not in answer.body.decode()
    assert TOKEN not in caplog.text


def test_two_headers_of_a_token_are_refused(secured: Running) -> None:
    connection = secured.connect()
    connection.putrequest("GET", "/v1/streams")
    for token in (TOKEN, OTHER):
        connection.putheader("Authorization", f"Bearer {token}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_tokens_are_compared_by_their_digests_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    genuine = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        seen.append((len(one), len(other)))
        return genuine(one, other)

    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    token = access.Token("token", SecretStr(TOKEN), None)
    assert token.matches(TOKEN)
    assert not token.matches("x")
    assert seen == [(32, 32)] * 2
    assert TOKEN not in str(vars(token))


def test_readiness_tells_strangers_whether_alone() -> None:
    with serving(**SECRET) as running:
        assert running.ask("/readyz").json == {"ready": True}
        assert running.ask("/readyz", token=TOKEN).json["streams"] == {"s": "leading"}
        running.roles["s"] = "starting"
        refused = running.ask("/readyz")
        assert (refused.status, refused.json) == (503, {"ready": False})
        assert running.ask("/healthz").json == {"status": "ok"}


def test_metrics_can_have_a_token_of_their_own(tmp_path: Path) -> None:
    file = written(tmp_path / "metrics", OTHER)
    with serving(**SECRET, metrics_token_file=file) as running:
        assert running.status("/metrics", token=TOKEN) == 401
        assert running.status("/metrics", token=OTHER) == 200
        assert running.status("/v1/streams", token=OTHER) == 401
        assert running.status("/v1/streams", token=TOKEN) == 200
    # Alone, it leaves the rest of loopback open.
    with serving(metrics_token=SecretStr(OTHER)) as running:
        assert [running.status(path) for path in ("/metrics", "/v1/streams")] == [401, 200]


def test_a_file_is_read_again_once_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path / "token", TOKEN + "\n")
    with serving(token_file=file) as running:
        assert running.status("/v1/streams", token=TOKEN) == 200
        # As an orchestrator rotates secrets: another file under the same name.
        os.replace(written(tmp_path / "new", OTHER), file)
        assert running.status("/v1/streams", token=TOKEN) == 401
        assert running.status("/v1/streams", token=OTHER) == 200
        written(file, TOKEN)
        assert running.status("/v1/streams", token=TOKEN) == 200
        for wrong in ("", "short"):
            written(file, wrong)
            assert [running.status("/v1/streams", token=given) for given in (TOKEN, wrong)] == [401, 401]
        file.unlink()
        assert running.status("/v1/streams", token=TOKEN) == 401
        written(file, TOKEN)
        assert running.status("/v1/streams", token=TOKEN) == 200
    assert TOKEN not in caplog.text
    assert OTHER not in caplog.text
    printed = [record.message.partition(": no token is accepted") for record in caplog.records]
    assert [begin for begin, found, _ in printed if found] == [
        f"http.token_file: {file}: is empty",
        f"http.token_file: {file}: its token must have at least 16 characters, not 5",
    ]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("x" * 15, "at least 16"),
        ("two words of a token", "letters, digits"),
        ("é" * 20, "its token must be letters, digits"),
        (None, "No such file"),
    ],
)
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str | None, printed: str) -> None:
    if text is not None:
        written(tmp_path / "token", text)
    line = refusal(ConfigurationError, serving(token_file=tmp_path / "token").__enter__)
    assert "http.token_file" in line
    assert printed in line


def test_a_file_that_all_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(token_file=written(tmp_path / "token", TOKEN, 0o640)):
        assert "chmod" not in caplog.text
    with serving(token_file=written(tmp_path / "token", TOKEN, 0o644)):
        assert "every user of this machine can read it: chmod o-r" in caplog.text


# -- listening addresses ---------------------------------------------------

LOOPBACK = ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST", "::1"]
ELSEWHERE = ["0.0.0.0", "::", "", "192.0.2.1", "example.org", "localhost.example.org", "0", "127.1.example"]


@pytest.mark.parametrize("host", ELSEWHERE)
def test_elsewhere_it_needs_a_token_or_certificates(host: str, tmp_path: Path) -> None:
    assert not is_loopback(host)
    bare = HttpSettings(host=host, port=0)
    assert "is not loopback" in refusal(ConfigurationError, serving(bare).__enter__)
    for one in ({"token": SecretStr(TOKEN)}, {"token_file": tmp_path / "x"}):
        check_access(HttpSettings(host=host, **one))
    pair = {"certificate": tmp_path / "c", "private_key": tmp_path / "k"}
    check_access(HttpSettings(host=host, **pair, client_authority=tmp_path / "a"))
    for one in (pair, {"metrics_token": SecretStr(TOKEN)}):
        with pytest.raises(ConfigurationError, match="is not loopback"):
            check_access(HttpSettings(host=host, **one))


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    with serving(host=host) as running:
        assert running.status("/v1/streams") == 200


def test_with_a_token_it_listens_everywhere() -> None:
    with serving(host="0.0.0.0", **SECRET) as running:
        assert running.status("/v1/streams", token=TOKEN, Host="pca.example.org") == 200
        assert running.status("/v1/streams", Host="pca.example.org") == 401


# -- pages of other sites --------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.org", "127.1", "0x7f.0.0.1", "[::g]:1"]
)
def test_on_loopback_a_name_of_another_host_is_refused(host: str, unsecured: Running) -> None:
    for path in ("/v1/streams", "/", "/metrics"):
        assert unsecured.status(path, Host=host) == 421
    assert unsecured.status("/healthz", Host=host) == 200
    assert "leading" not in str(unsecured.ask("/readyz", Host=host).json)


PROBES = [b"Host: 10.1.2.3:9464\r\n", b"Host: [fd00::7]:9464\r\n", b"Host: worker-0.pca.svc:80\r\n", b""]
"""Host headers of kubelets, load balancers, service meshes, and of HTTP/1.0 clients without one."""


PROBED = [{}, {"hosts": ["pca.example.org"]}, SECRET | {"hosts": ["pca.example.org"]}]


@pytest.mark.parametrize("host", PROBES)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(("how", "probed"), [(how, how) for how in PROBED], indirect=["probed"])
def test_probes_of_any_platform_are_answered_without_details(
    how: dict[str, Any], host: bytes, version: bytes, probed: Running
) -> None:
    def ask(method: bytes, path: bytes) -> bytes:
        # HTTP/1.1 requires the header.
        named = host or (b"Host:\r\n" if version == b"1.1" else b"")
        head = b"%s %s HTTP/%s\r\n%sConnection: close\r\n\r\n" % (method, path, version, named)
        with closing(socket.create_connection(probed.place, timeout=LIMIT)) as client:
            client.sendall(head)
            return b"".join(iter(partial(client.recv, 2**16), b""))

    for path in (b"/healthz", b"/readyz"):
        for method in (b"GET", b"HEAD"):
            assert ask(method, path).startswith(b"HTTP/1.1 200")
    is_name = b"pca.svc" in host
    assert (b"leading" in ask(b"GET", b"/readyz")) == (not is_name and "token" not in how)
    # A scraper uses a pod's address; a name may belong to a page after DNS rebinding.
    expected = b"421" if is_name else (b"401" if "token" in how else b"200")
    assert ask(b"GET", b"/metrics").startswith(b"HTTP/1.1 " + expected)


@pytest.mark.parametrize("host", ["localhost", "LocalHost.:80", "127.0.0.1:1", "127.0.0.9", "[::1]:99"])
def test_names_of_loopback_are_known(host: str, unsecured: Running) -> None:
    assert unsecured.status("/v1/streams", Host=host) == 200


def test_the_names_can_be_set() -> None:
    with serving(hosts=["PCA.example.org"]) as running:
        hosts = ("pca.Example.org:443", "localhost", "other.example.org")
        assert [running.status("/v1/streams", Host=host) for host in hosts] == [200, 200, 421]


def test_other_sites_get_no_leave_unless_named(unsecured: Running) -> None:
    asked = unsecured.ask("/v1/streams", Origin="https://a.example")
    assert (asked.status, "access-control-allow-origin" in asked.headers) == (200, False)
    assert unsecured.status("/v1/echo", "POST", Origin="https://a.example") == 403
    assert unsecured.status("/v1/echo", "POST", Origin="null") == 403
    own = f"http://{unsecured.server.address}"
    assert unsecured.status("/v1/echo", "POST", Origin=own) == 200
    assert unsecured.status("/v1/echo", "POST") == 200


def test_a_named_site_may_send_a_token() -> None:
    with serving(**SECRET, origins=["https://a.example"]) as running:
        wanted = {"Access_Control_Request_Method": "GET", "Access_Control_Request_Headers": "authorization"}
        leave = running.ask("/v1/streams", "OPTIONS", Origin="https://a.example", **wanted)
        assert leave.status == 200
        assert leave.headers["access-control-allow-origin"] == "https://a.example"
        assert "authorization" in leave.headers["access-control-allow-headers"].lower()
        assert running.status("/v1/streams", "OPTIONS", Origin="https://b.example", **wanted) == 400
        refused = running.ask("/v1/streams", Origin="https://a.example")
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "https://a.example")
        assert running.status("/v1/echo", "POST", TOKEN, Origin="https://a.example") == 200
        assert running.status("/v1/echo", "POST", TOKEN, Origin="https://b.example") == 403


# -- settings --------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "printed"),
    [
        ({"token": "short"}, "at least 16"),
        ({"token": "a b c d e f g h i j"}, "letters, digits"),
        ({"token": TOKEN, "token_file": "x"}, "token or token_file, not both"),
        ({"metrics_token": TOKEN, "metrics_token_file": "x"}, "or metrics_token_file, not both"),
        ({"certificate": "x"}, "belong together"),
        ({"private_key": "x"}, "belong together"),
        ({"client_authority": "x"}, "needs certificate"),
        ({"origins": ["*"]}, "must be like https://"),
        ({"origins": ["https://a.example/"]}, "must be like https://"),
        ({"hosts": ["a.example:80"]}, "without a scheme and a port"),
        ({"event_streams": 0}, "greater than or equal to 1"),
        ({"requests_per_second": 0}, "greater than 0"),
        ({"requests_per_second": True}, "not true or false"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(values: dict[str, Any], printed: str) -> None:
    with pytest.raises(ValidationError, match=printed):
        HttpSettings(**values)


def test_tokens_are_masked() -> None:
    settings = HttpSettings(token=SecretStr(TOKEN), metrics_token=SecretStr(OTHER))
    for shown in (str(settings), repr(settings), settings.model_dump_json()):
        assert TOKEN not in shown
        assert OTHER not in shown
