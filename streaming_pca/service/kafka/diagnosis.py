"""Diagnosis of a failed connection: the failing step, and the setting to change.

kafka-python retries until its time limit and does not report the reason. So this module repeats the steps
of a connection once, each with a time limit: name, socket, TLS, Kafka's protocol, authentication.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

from kafka.cluster import get_ip_port_afi
from kafka.errors import KafkaError
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.service.errors import without_traceback
from streaming_pca.service.kafka.credentials import TokenRefused, sasl_options
from streaming_pca.text import one_line

_SECONDS = 5.0  # time limit of a diagnosis; all servers are examined in parallel
_STEP_SECONDS = 2.0  # time limit of a step

# OpenSSL codes: X509_V_ERR_CERT_NOT_YET_VALID, _CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH.
_NOT_VALID_NOW = (9, 10)
_OF_ANOTHER_NAME = (62, 64)
# Kafka's error codes of SaslHandshake.
_NO_SASL_HERE = 34
_MECHANISM_OR_NONE = (0, 33)


class Diagnosis(Exception):
    """Reason for failed connections; ``answers``: a broker responds but the settings do not fit it."""

    def __init__(self, text: str, *, answers: bool = True) -> None:
        super().__init__(text)
        self.text, self.answers = text, answers


def diagnose(
    settings: KafkaSettings, servers: Sequence[str], *, advertised: bool = False
) -> Diagnosis | None:
    """Return the reason why these servers cannot be used; None if none is visible.

    Wrong settings come before servers that do not respond. ``advertised``: examine brokers' addresses too.
    """
    found: dict[str, Diagnosis] = {}

    def examine(server: str) -> None:
        try:
            _Examination(settings, server).run(advertised)
        except Diagnosis as reason:
            found[server] = without_traceback(reason)
        except (ConfigurationError, TokenRefused) as reason:
            found[server] = Diagnosis(str(reason))
        except Exception:
            return  # a diagnosis must not replace the error that it explains

    # Threads, because name resolution does not have a time limit.
    threads = [threading.Thread(target=examine, args=(s,), daemon=True, name="diagnosis") for s in servers]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        return None  # the interpreter ends, and Python 3.12 starts no threads then
    deadline = time.monotonic() + _SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    reasons = [found[server] for server in servers if server in found]
    for reason in reasons:
        if reason.answers:
            return reason
    return Diagnosis("; ".join(r.text for r in reasons), answers=False) if reasons else None


class _Peer:
    """Other end of a socket, for requests in Kafka's protocol."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._protocol = KafkaProtocol(client_id="streaming-pca", receive_message_max_bytes=2**20)

    def ask(self, request: Any) -> Any:
        """Send a request and return the response; raise OSError or KafkaError without one."""
        self._protocol.send_request(request)
        self._sock.sendall(self._protocol.send_bytes())
        while True:
            data = self._sock.recv(2**16)
            if not data:
                raise ConnectionError("closed")
            for _, answer in self._protocol.receive_bytes(data):
                return answer

    def has_records(self) -> bool:
        """Return True for a broker, False for a controller."""
        answer = self.ask(ApiVersionsRequest(version=0))
        return MetadataRequest.API_KEY in {each.api_key for each in answer.api_keys}

    def mechanisms(self, wanted: str) -> list[str] | None:
        """Return the listener's authentication mechanisms, [] without authentication; None if not listed."""
        answer = self.ask(SaslHandshakeRequest(version=1, mechanism=wanted))
        if answer.error_code == _NO_SASL_HERE:
            return []
        return list(answer.mechanisms) if answer.error_code in _MECHANISM_OR_NONE else None


class _Examination:
    """Steps of a connection to one server."""

    def __init__(self, settings: KafkaSettings, server: str) -> None:
        self._settings, self._server = settings, server
        self._host, self._port, _ = get_ip_port_afi(server)
        self._tls = settings.security_protocol.endswith("SSL")
        self._sasl = settings.security_protocol.startswith("SASL")

    def run(self, advertised: bool = False) -> None:
        context = self._settings.tls_context() if self._tls else None
        with self._connect() as bare, self._encrypt(bare, context) as sock:
            peer = _Peer(sock)
            try:
                has_records = peer.has_records()
            except TimeoutError:
                raise self._silent() from None
            except (OSError, KafkaError) as error:
                raise self._not_kafka(error) from None
            if not has_records:
                raise Diagnosis(
                    f"{self._server} is the port of a controller: "
                    f"name a broker's port in {self._settings.argument}"
                )
            self._authenticate(peer)
            if advertised:
                self._follow(peer)

    def _follow(self, peer: _Peer) -> None:
        for broker in peer.ask(MetadataRequest(version=1, topics=[])).brokers:
            host = f"[{broker.host}]" if ":" in broker.host else broker.host
            try:
                _Examination(self._settings, f"{host}:{broker.port}").run()
            except Diagnosis as reason:
                raise Diagnosis(
                    f"the broker at {self._server} refers clients to {host}:{broker.port}, "
                    f"by its advertised.listeners: {reason.text}"
                ) from None

    def _connect(self) -> socket.socket:
        try:
            socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "no valid name"
            raise self._dead(f"the name {self._host!r} cannot be resolved ({reason})") from None
        try:
            return socket.create_connection((self._host, self._port), _STEP_SECONDS)
        except OSError as error:
            fault = f"cannot be reached ({error.strerror})"
            if isinstance(error, ConnectionRefusedError):
                fault = "refuses connections: check the port, and that a broker runs there"
            elif isinstance(error, TimeoutError):
                fault = "does not answer: check the address, and firewalls in front of it"
            raise self._dead(f"{self._server} {fault}") from None

    def _dead(self, text: str) -> Diagnosis:
        return Diagnosis(text, answers=False)

    def _silent(self) -> Diagnosis:
        return self._dead(
            f"{self._server} accepts connections but does not reply: it hangs, is slow, or is not a broker"
        )

    def _encrypt(self, sock: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
        if context is None:
            return sock
        try:
            return context.wrap_socket(sock, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            raise Diagnosis(self._fault_of_certificate(error, context)) from None
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise self._not_kafka(error) from None

    def _fault_of_certificate(self, error: ssl.SSLCertVerificationError, context: ssl.SSLContext) -> str:
        certificate, cafile = f"the certificate of the broker at {self._server}", self._settings.ssl_cafile
        if error.verify_code in _NOT_VALID_NOW:
            return f"{certificate} is not valid now ({error.verify_message}): renew it, or set the clock"
        if error.verify_code in _OF_ANOTHER_NAME:
            context.check_hostname = False
            with self._connect() as bare, context.wrap_socket(bare, server_hostname=self._host) as sock:
                names = [str(entry[1]) for entry in (sock.getpeercert() or {}).get("subjectAltName", ())]
            return (
                f"{certificate} is for {', '.join(names) or 'no name'}, not for {self._host!r}: "
                f"use a name of the certificate in {self._settings.argument}, or a certificate with this one"
            )
        remedy = f"kafka.ssl_cafile = {str(cafile)!r} does not hold the authority that signed it"
        if cafile is None:
            remedy = "set kafka.ssl_cafile to the PEM file of the authority that signed it"
        return f"{certificate} is not trusted ({error.verify_message}): {remedy}"

    def _not_kafka(self, error: Exception) -> Diagnosis:
        """Return the reason for a closed connection or another protocol."""
        if isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(error.reason):
            own = self._settings.ssl_certfile
            remedy = f"refuses the client's certificate, kafka.ssl_certfile = {str(own)!r}"
            if own is None:
                remedy = "asks for a client's certificate: set kafka.ssl_certfile and kafka.ssl_keyfile"
            return Diagnosis(f"the broker at {self._server} {remedy}")
        spoken = self._other_protocol()
        if spoken is not None:
            return Diagnosis(
                f"the listener at {self._server} speaks {spoken}, not {self._settings.security_protocol}: "
                f'set kafka.security_protocol = "{spoken}"'
                + (", without encryption, or use the port of a listener with TLS" if self._tls else "")
            )
        return self._dead(f"{self._server} accepts connections and closes them: it is not a broker")

    def _other_protocol(self) -> str | None:
        """Return the listener's protocol if it differs from the settings in TLS."""
        with self._connect() as bare:
            sock = bare
            if not self._tls:
                anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
                try:
                    sock = anyone.wrap_socket(bare, server_hostname=self._host)
                except OSError:
                    return None
            name = "PLAINTEXT" if self._tls else "SSL"
            with sock:
                try:
                    return f"SASL_{name}" if _Peer(sock).mechanisms("") else name
                except (OSError, KafkaError):
                    return None if self._tls else name

    def _authenticate(self, peer: _Peer) -> None:
        settings, transport = self._settings, "SSL" if self._tls else "PLAINTEXT"
        wanted = settings.sasl_mechanism or ""
        try:
            offered = peer.mechanisms(wanted)
        except (OSError, KafkaError):
            return  # known for brokers before 1.0, and for brokers other than Apache Kafka
        if offered is None:
            return
        listed = " or ".join(offered)
        if offered and not self._sasl:
            what, how = "a password", "kafka.sasl_username and a password"
            if offered == ["OAUTHBEARER"]:
                what, how = "a token", "and kafka.sasl_oauth_token_file or kafka.sasl_oauth_token_url"
            raise Diagnosis(
                f"the broker at {self._server} asks for {what}: set kafka.security_protocol = "
                f'"SASL_{transport}", kafka.sasl_mechanism ({listed}), {how}'
            )
        if self._sasl and not offered:
            raise Diagnosis(
                f"the listener at {self._server} has no authentication: "
                f'set kafka.security_protocol = "{transport}", or use the port of another listener'
            )
        if self._sasl and wanted not in offered:
            raise Diagnosis(
                f"kafka.sasl_mechanism is {wanted!r}, but the broker at {self._server} offers {listed}"
            )
        if self._sasl:
            self._log_in(peer)

    def _log_in(self, peer: _Peer) -> None:
        settings, options = self._settings, sasl_options(self._settings)
        mechanism = get_sasl_mechanism(settings.sasl_mechanism)(host=self._host, **options)
        while not mechanism.is_done():
            answer = peer.ask(SaslAuthenticateRequest(version=1, auth_bytes=mechanism.auth_bytes()))
            if answer.error_code:
                words = one_line(answer.error_message or "no reason", 160)
                if settings.sasl_mechanism == "OAUTHBEARER":
                    text = self._refused_token(options["sasl_oauth_token_provider"].token(), words)
                else:
                    text = self._refused_password(words)
                raise Diagnosis(f"the broker at {self._server} refuses {text}")
            mechanism.receive(answer.auth_bytes)

    def _refused_password(self, words: str) -> str:
        file = self._settings.sasl_password_file
        given = f"kafka.sasl_password_file = {str(file)!r}"
        where = "STREAMING_PCA_KAFKA__SASL_PASSWORD" if file is None else given
        return (
            f"kafka.sasl_username = {self._settings.sasl_username!r} "
            f"with its password ({words}): correct the name, or the password ({where})"
        )

    def _refused_token(self, token: str, words: str) -> str:
        file, url = self._settings.sasl_oauth_token_file, self._settings.sasl_oauth_token_url
        source = f"kafka.sasl_oauth_token_{'file' if url is None else 'url'} = {str(file or url)!r}"
        expired = _expired_since(token)
        if expired is not None:
            return f"the token of {source}, which expired {expired:.0f} s ago: renew it, or set the clock"
        return (
            f"the token of {source} ({words}): it must be signed by the issuer that the broker trusts, "
            "for its audience and with its scope"
        )


def _expired_since(token: str) -> float | None:
    """Return the seconds since a JSON Web Token (RFC 7519) expired; None for others."""
    try:
        payload = token.split(".")[1]
        since = time.time() - float(json.loads(base64.urlsafe_b64decode(payload + "=="))["exp"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return since if since > 0 else None
