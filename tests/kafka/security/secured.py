"""An Apache Kafka that demands credentials: a listener for each kind, and an authorizer.

The unencrypted listener without authentication, which all tests have, stays: its user is a super user.
"""

from __future__ import annotations

import base64
import http.server
import json
import os
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from kafka.admin import UserScramCredentialUpsertion

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.clients import admin_client
from tests.kafka.faulty_cluster import FaultyCluster
from tests.ports import steady_ports
from tests.security.needles import secret
from tests.waiting import LIMIT

ISSUER, AUDIENCE = "https://issuer.test", "kafka"
USERS = ("worker", "producer", "reader", "dashboard", "auditor", "projector", "operator", "stranger")
PROTOCOLS = {"TLS": "SSL", "MUTUAL": "SSL", "PLAIN": "SASL_SSL", "SCRAM": "SASL_SSL", "OAUTH": "SASL_SSL"}
MECHANISMS = {"PLAIN": "PLAIN", "SCRAM": "SCRAM-SHA-512", "OAUTH": "OAUTHBEARER"}
_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM": "scram.ScramLoginModule",
    "OAUTH": "oauthbearer.OAuthBearerLoginModule",
}
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


def password_of(user: str) -> str:
    return secret(f"of-{user}")


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Issuer of signed tokens, and the key set for a broker's check of them."""

    def __init__(self, directory: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        numbers = self._key.public_key().public_numbers()
        key = {
            name: _encoded(value.to_bytes((value.bit_length() + 7) // 8))
            for name, value in (("n", numbers.n), ("e", numbers.e))
        }
        self.keys = directory / "jwks.json"
        key |= {"kty": "RSA", "kid": "one", "alg": "RS256", "use": "sig"}
        self.keys.write_text(json.dumps({"keys": [key]}))

    def token(self, user: str, life: float = 3600, *, signed: bool = True, **claims: Any) -> str:
        now = time.time()
        # Brokers read whole seconds only.
        times = {"iat": int(min(now, now + life)) - 1, "exp": int(now + life)}
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "scope": "kafka", "jti": secret("token")}
        claims = usual | times | claims
        header = {"alg": "RS256", "kid": "one"} if signed else {"alg": "none"}
        body = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        if not signed:
            return f"{body}."
        return f"{body}.{_encoded(self._key.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@dataclass
class Secured:
    """Addresses of a broker, and credentials of its clients."""

    directory: Path
    issuer: Issuer
    authority: trustme.CA
    ports: dict[str, int] = field(default_factory=dict)
    advertised: dict[str, int] = field(default_factory=dict)
    cluster: FaultyCluster | None = None

    @property
    def open_settings(self) -> KafkaSettings:
        """Return settings of the super user."""
        assert self.cluster is not None
        return KafkaSettings(bootstrap_servers=self.cluster.bootstrap)

    def address(self, listener: str) -> str:
        return f"localhost:{self.advertised.get(listener, self.ports[listener])}"

    def client(self, listener: str, user: str = "worker", **changes: Any) -> dict[str, Any]:
        """Return the settings of a user's connection, with its secrets in files."""
        found = {
            "bootstrap_servers": self.address(listener),
            "bootstrap_timeout_ms": int(LIMIT * 1000),
            "security_protocol": PROTOCOLS[listener.partition("_")[0]],
            "ssl_cafile": str(self.directory / "authority.pem"),
        }
        kind = listener.partition("_")[0]
        if kind == "MUTUAL":
            certificate = self.certificate(user)
            found |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
        if kind in MECHANISMS:
            found["sasl_mechanism"] = MECHANISMS[kind]
        if kind in ("PLAIN", "SCRAM"):
            found |= {"sasl_username": user, "sasl_password_file": str(self.secret(user, password_of(user)))}
        if kind == "OAUTH":
            found["sasl_oauth_token_file"] = str(self.secret(f"{user}.jwt", self.issuer.token(user)))
        return found | changes

    def settings(self, listener: str, user: str = "worker", **changes: Any) -> KafkaSettings:
        return KafkaSettings(**self.client(listener, user, **changes))

    def secret(self, name: str, content: str) -> Path:
        """Write a file whole, by a rename, as secret stores do."""
        return write_whole(self.directory / f"secret.{name}", content)

    def certificate(self, user: str, authority: trustme.CA | None = None) -> Path:
        """Write a certificate of a user with its key."""
        made = (authority or self.authority).issue_cert("localhost", common_name=user)
        return write_whole(self.directory / f"{user}.pem", pem_of(made))

    def broker_certificate(self, authority: trustme.CA) -> trustme.LeafCert:
        """Issue a certificate; a broker accepts only the name of its first certificate."""
        return authority.issue_cert("localhost", organization_unit_name="broker")

    def set_password(self, user: str, password: str) -> None:
        set_passwords(self.open_settings, {user: password})


def set_passwords(kafka: KafkaSettings, passwords: Mapping[str, str]) -> None:
    """Set passwords of users for SCRAM."""
    changes = [UserScramCredentialUpsertion(user, "SCRAM-SHA-512", word) for user, word in passwords.items()]
    with closing(admin_client(kafka)) as admin:
        admin.alter_user_scram_credentials(changes)


def write_whole(path: Path, content: str) -> Path:
    part = path.with_name(f"{path.name}.{threading.get_ident()}.part")
    part.write_text(content)
    os.replace(part, path)
    return path


def pem_of(certificate: trustme.LeafCert) -> str:
    """Return key and certificates; brokers accept keys in PKCS 8 only."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (plain + b"".join(pem.bytes() for pem in certificate.cert_chain_pems)).decode()


def _server_settings(secured: Secured, more: Mapping[str, str]) -> str:
    directory, names = secured.directory, list(secured.ports)
    protocols = {name: PROTOCOLS[name.partition("_")[0]] for name in names}
    found = listening(secured.ports, protocols, {name: secured.address(name) for name in names}) | {
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{directory}/clients.pem",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.oauthbearer.jwks.endpoint.url": secured.issuer.keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": "1",
        # Without it, Kafka 4.1 accepts unsigned tokens.
        "sasl.oauthbearer.jwt.validator.class": f"{_OAUTH}.BrokerJwtValidator",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS",
        # Certificates' principals without their organisation.
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
    }
    for name in names:
        kind, of = name.partition("_")[0], f"listener.name.{name.lower()}"
        found[f"{of}.ssl.keystore.location"] = f"{directory}/broker.pem"
        if kind == "MUTUAL":
            found[f"{of}.ssl.client.auth"] = "required"
        if kind not in MECHANISMS:
            continue
        mechanism = f"{of}.{MECHANISMS[kind].lower()}"
        found[f"{of}.sasl.enabled.mechanisms"] = MECHANISMS[kind]
        users = " ".join(f'user_{u}="{password_of(u)}"' for u in USERS) if kind == "PLAIN" else ""
        module = f"org.apache.kafka.common.security.{_MODULES[kind]}"
        found[f"{mechanism}.sasl.jaas.config"] = f"{module} required {users};"
        if kind == "OAUTH":
            handler = f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
            found[f"{mechanism}.sasl.server.callback.handler.class"] = handler
    return properties(found | dict(more))


def listening(
    ports: Mapping[str, int], protocols: Mapping[str, str], advertised: Mapping[str, str]
) -> dict[str, str]:
    """Return a broker's settings of listeners, besides those that all brokers of the tests have."""
    inner = "PLAINTEXT://127.0.0.1:{port}"
    outer = [inner, "CONTROLLER://127.0.0.1:{controller_port}"]
    kinds = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT"} | dict(protocols)
    return {
        "listeners": ",".join([*outer, *(f"{name}://127.0.0.1:{port}" for name, port in ports.items())]),
        "advertised.listeners": ",".join([inner, *(f"{name}://{at}" for name, at in advertised.items())]),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in kinds.items()),
    }


def properties(found: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in found.items())


def start_secured(
    make_cluster: Callable[..., FaultyCluster],
    directory: Path,
    listeners: tuple[str, ...],
    more: Mapping[str, str] | None = None,
    advertised: Mapping[str, int] | None = None,
) -> Secured:
    """Start a broker with these listeners, each named KIND or KIND_SUFFIX.

    Clients are referred to the ports in ``advertised``, if any, instead of the listeners' own ports.
    """
    secured = Secured(directory, Issuer(directory), trustme.CA())
    secured.ports = dict(zip(listeners, steady_ports(len(listeners)), strict=True))
    secured.advertised = dict(advertised or {})
    for name in ("authority", "clients"):
        secured.authority.cert_pem.write_to_path(str(directory / f"{name}.pem"))
    write_whole(directory / "broker.pem", pem_of(secured.broker_certificate(secured.authority)))
    url, settings = secured.issuer.keys.as_uri(), _server_settings(secured, more or {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}")
        secured.cluster = make_cluster(nodes=1, replication=1, in_sync=1, more=settings)
    set_passwords(secured.open_settings, {user: password_of(user) for user in USERS})
    return secured


@contextmanager
def identity_provider(
    secured: Secured, life: float = 3600, certificate: trustme.LeafCert | None = None
) -> Iterator[_Provider]:
    """Serve the client-credentials grant on a loopback port; tokens are issued to the client's name."""
    provider = _Provider(secured, life, certificate)
    thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        thread.join()
        provider.server_close()


class _Provider(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, secured: Secured, life: float, certificate: trustme.LeafCert | None) -> None:
        super().__init__(("127.0.0.1", 0), _Grants)
        self.secured, self.life = secured, life
        self.granted: list[dict[str, str]] = []
        self.url = f"http://localhost:{self.server_port}/token"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(context)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.url = self.url.replace("http:", "https:")

    def login(self, user: str) -> dict[str, Any]:
        """Return the settings of a client that asks this provider for its tokens."""
        secret = self.secured.secret(f"{user}.client", password_of(user))
        asked = {"sasl_oauth_token_url": self.url, "sasl_oauth_client_id": user}
        return asked | {"user": user, "sasl_oauth_token_file": None, "sasl_oauth_client_secret_file": secret}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hangs up."""


class _Grants(http.server.BaseHTTPRequestHandler):
    server: _Provider

    def do_POST(self) -> None:
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        pair = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        user, secret = map(urllib.parse.unquote, pair.split(":"))
        right = secret == password_of(user) and form["grant_type"] == "client_credentials"
        if self.path == "/moved":
            self.send_response(307)
            self.send_header("Location", "/token")
            self.end_headers()
            return
        if right:
            self.server.granted.append(form)
            token = self.server.secured.issuer.token(user, self.server.life)
            answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.server.life}
        else:
            answer = {"error": "invalid_client"}
        self.send_response(200 if right else 401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({} if self.path == "/other" else answer).encode())

    def log_message(self, *args: Any) -> None:
        """Log nothing."""
