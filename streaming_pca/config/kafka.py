"""Settings of the Kafka connection, apart because the clock process needs only them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, SecretStr, model_validator

from streaming_pca.errors import UserError
from streaming_pca.validation_errors import Table

T = TypeVar("T")
_ADDRESS = re.compile(r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:/]+)(:[0-9]{1,5})?")
TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}")
"""Names of streams and of their inputs."""
_TOPIC_RULE = "must be 1 to 200 letters, digits, '.', '_' or '-', and not '.' or '..'"
_OWN = ("kafka.ssl_certfile", "kafka.ssl_keyfile")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class ConfigurationError(UserError):
    """Wrong settings; each line of the message names one of them."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Section(Table, hide_input_in_errors=True):
    """Table of the settings file; errors hide values: one may be a misplaced password."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {name for name, value in self.__dict__.items() if value is not None}
        lines = [f"set {name} or {name}_file, not both" for name in sorted(given) if f"{name}_file" in given]
        lines += self.conflicts(given)
        if lines:
            raise ValueError("\n".join(lines))
        return self

    def conflicts(self, given: Set[str]) -> Iterable[str]:
        """Return the problems of combined settings; ``given`` are names of set ones."""
        return ()


class ClearText(str):
    """Secret in clear text, masked when a library logs or prints its options."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"


def check_topic(name: str) -> None:
    """Raise ValueError for a name that no topic can have."""
    if not TOPIC_NAME.fullmatch(name):
        raise ValueError(_TOPIC_RULE)


def check_topic_name(argument: str, name: Any) -> None:
    """Raise ValueError, naming the argument, for a name that no topic can have."""
    if not isinstance(name, str):
        raise ValueError(f"{argument} {_TOPIC_RULE}; this is of type {type(name).__name__}")
    if not TOPIC_NAME.fullmatch(name):
        raise ValueError(f"{argument} {_TOPIC_RULE}; this is {name[:40]!r}{'...' * (len(name) > 40)}")


def check_https(url: str, instead: str) -> None:
    """Raise ValueError if an address is not encrypted (on other machines) or contains a password.

    ``instead`` are the settings to use for the password.
    """
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ValueError(f"must not hold a password: use {instead}")
    try:
        numbered = parts.port is None or parts.port > 0
    except ValueError:
        # Its message quotes the port, which is a password if @HOST was left out.
        numbered = False
    encrypted = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)
    if not (encrypted and parts.hostname and numbered):
        raise ValueError("must be https://HOST..., or http:// on localhost")


def read_secret_file(setting: str, path: Path) -> str:
    """Return the content of a secret's file, without the final line break."""
    try:
        content = path.read_text(encoding="utf-8").rstrip("\r\n")
        reason = "" if content.strip() else "is empty"
    except (OSError, UnicodeDecodeError) as error:
        content, reason = "", getattr(error, "strerror", None) or "is not UTF-8 text"
    if reason:
        raise ConfigurationError(f"{setting}: {path}: {reason}")
    return ClearText(content)


def read_pem(setting: str, path: Path | None, load: Callable[[], T], fault: str) -> T:
    """Return what ``load`` reads from a setting's file; ``fault`` describes a file in another form."""
    try:
        return load()
    except (OSError, ValueError) as error:
        reason = fault if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{setting}: {path}: {reason}") from None


def trusting(setting: str, path: Path | None) -> ssl.SSLContext:
    """Return a context that trusts the authorities of a setting's file; None: the system's."""
    load = partial(ssl.create_default_context, cafile=path)
    return read_pem(setting, path, load, "holds no certificate in PEM")


def read_key(section: BaseModel, names: tuple[str, str], context: ssl.SSLContext | None = None) -> None:
    """Load a section's certificate and key, the settings ``names``; without a key, one file holds both."""
    cert, key = (getattr(section, name.partition(".")[2]) for name in names)
    if cert is None:
        return
    other = trusting(names[0], cert)
    fault = f"is not the private key of {names[0]} in PEM, without a pass phrase"
    fault = fault if key is not None else f"holds no private key: set {names[1]}"
    # Without a password, OpenSSL would ask for one at the terminal.
    load = partial((context or other).load_cert_chain, cert, key, password="")  # nosec B106  # not a secret
    read_pem(names[key is not None], key or cert, load, fault)


def check_together(*checks: Callable[[], object]) -> None:
    """Make checks, and raise one ConfigurationError with the lines of all."""
    lines: list[str] = []
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            lines += error.lines
    if lines:
        raise ConfigurationError(*lines)


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that refuses a value, except None, if ``check`` raises ValueError."""

    def validate(value: Any) -> Any:
        if value is not None:
            check(value)
        return value

    return AfterValidator(validate)


def _check_addresses(servers: str) -> None:
    for address in servers.split(","):
        if address.strip().lower().startswith(("http://", "https://")):
            raise ValueError("must be HOST:PORT, without http://")
        found = _ADDRESS.fullmatch(address.strip())
        if found is None or not 0 < int((found[3] or ":9092")[1:]) < 2**16:
            raise ValueError("must be HOST:PORT, or several with commas between; PORT is from 1 to 65535")


class KafkaSettings(Section):
    """Connection to the broker, and its time limits."""

    bootstrap_servers: Annotated[str, checked(_check_addresses)] = "localhost:9092"
    """Addresses of brokers as HOST:PORT, separated by commas."""
    bootstrap_timeout_ms: int = Field(default=5000, ge=100)
    """Longest time to look for a broker, in milliseconds."""
    # kafka-python closes idle connections after 540 s, and makes no consumer that waits longer.
    request_timeout_ms: int = Field(default=10_000, ge=1000, lt=540_000)
    """Longest time to wait for the response to a request, in milliseconds."""
    session_timeout_ms: int = Field(default=6000, ge=1000)
    """Silence after which a stream's leader is replaced, in milliseconds."""
    transaction_timeout_ms: int = Field(default=15_000, ge=1000)
    """Time until the broker aborts an open transaction, in milliseconds; delivery takes up to 11 s more."""
    unchecked_topics: bool = False
    """Continue if the broker does not return the topics' configuration, like the embedded broker."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Encryption and authentication of the connection."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """Authentication mechanism, needed by the two SASL protocols."""
    sasl_username: str | None = None
    """User name, needed by PLAIN and SCRAM."""
    sasl_password: SecretStr | None = None
    """Password, read only from the environment variable ``STREAMING_PCA_KAFKA__SASL_PASSWORD``."""
    sasl_password_file: Path | None = None
    """File that contains the password, instead of the environment variable; read at each connection."""
    sasl_oauth_token_file: Path | None = None
    """File that contains a token for OAUTHBEARER, which another program renews; read at each connection."""
    sasl_oauth_token_url: Annotated[
        str | None, checked(partial(check_https, instead="sasl_oauth_client_secret_file"))
    ] = None
    """Address of an identity provider that grants tokens for OAUTHBEARER, instead of a file."""
    sasl_oauth_client_id: str | None = None
    """Name of this client at the identity provider, needed by ``sasl_oauth_token_url``."""
    sasl_oauth_client_secret_file: Path | None = None
    """File of this client's secret, needed by ``sasl_oauth_token_url``; read at each grant."""
    sasl_oauth_scope: str | None = None
    """Scope of the requested tokens."""
    sasl_oauth_cafile: Path | None = None
    """PEM file of the identity provider's authorities; if not set, the system's are trusted."""
    ssl_cafile: Path | None = None
    """PEM file of trusted certificate authorities; if not set, the system's are trusted."""
    ssl_certfile: Path | None = None
    """PEM file of the client's certificate."""
    ssl_keyfile: Path | None = None
    """PEM file of the client's private key."""

    _argument: str = PrivateAttr(default="kafka.bootstrap_servers")

    @classmethod
    def of_argument(cls, argument: str, servers: str | None) -> Self:
        """Return settings of an address alone, or the defaults; messages name the argument."""
        settings = cls() if servers is None else cls(bootstrap_servers=servers)
        settings._argument = argument
        return settings

    @property
    def argument(self) -> str:
        """Name of the setting, argument or option that the address comes from."""
        return self._argument

    @property
    def given_servers(self) -> str:
        """Addresses with the name of their setting, argument or option, for messages."""
        joint = " " if self._argument.startswith("--") else " = "
        default = "" if "bootstrap_servers" in self.model_fields_set else ", the default,"
        return f"{self._argument}{joint}{self.bootstrap_servers!r}{default}"

    def conflicts(self, given: Set[str]) -> Iterator[str]:
        protocol, mechanism = self.security_protocol, self.sasl_mechanism
        sasl, oauth = protocol.startswith("SASL"), mechanism == "OAUTHBEARER"
        by_password = sasl and not oauth and mechanism is not None
        others = given - {"sasl_oauth_token_file"}
        missing = {"sasl_oauth_client_id", "sasl_oauth_client_secret_file"} - given
        # The variable of a password may be meant for other files.
        for name in sorted(given - {"sasl_password"}):
            if name.startswith("ssl_") and not protocol.endswith("SSL"):
                yield f'{name} needs security_protocol = "SSL" or "SASL_SSL"'
            elif name.startswith("sasl_") and not sasl:
                yield f'{name} needs security_protocol = "SASL_SSL" or "SASL_PLAINTEXT"'
            elif name.startswith("sasl_oauth_") and by_password:
                yield f'{name} needs sasl_mechanism = "OAUTHBEARER"'
        if "ssl_keyfile" in given and "ssl_certfile" not in given:
            yield "ssl_keyfile needs ssl_certfile"
        if "sasl_oauth_token_file" in given and any(each.startswith("sasl_oauth_") for each in others):
            yield "set sasl_oauth_token_file or the settings of sasl_oauth_token_url, not both"
        if sasl and mechanism is None:
            yield f"security_protocol {protocol} needs sasl_mechanism"
        elif sasl and oauth and "sasl_oauth_token_url" in given and missing:
            yield f"sasl_oauth_token_url needs {' and '.join(sorted(missing))}"
        elif sasl and oauth and not given & {"sasl_oauth_token_url", "sasl_oauth_token_file"}:
            yield "sasl_mechanism OAUTHBEARER needs sasl_oauth_token_file or sasl_oauth_token_url"
        if by_password and "sasl_username" not in given:
            yield f"sasl_mechanism {mechanism} needs sasl_username"
        if by_password and not given & {"sasl_password", "sasl_password_file"}:
            yield "a password is needed: sasl_password_file, or STREAMING_PCA_KAFKA__SASL_PASSWORD"

    @property
    def password(self) -> str | None:
        """Password in clear text, for the client; a file is reread each time."""
        if self.sasl_password_file is None:
            return None if self.sasl_password is None else ClearText(self.sasl_password.get_secret_value())
        return self.read_secret("sasl_password_file")

    def read_secret(self, name: str) -> str:
        return read_secret_file(f"kafka.{name}", getattr(self, name))

    def tls_context(self) -> ssl.SSLContext:
        """Return the context that kafka-python would make from these settings."""
        context = trusting("kafka.ssl_cafile", self.ssl_cafile)
        context.verify_flags = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).verify_flags
        read_key(self, _OWN, context)
        return context

    def check_files(self) -> None:
        """Refuse unusable files of secrets and certificates."""
        given = [n for n in type(self).model_fields if n.endswith("file") and getattr(self, n) is not None]
        secrets = (partial(self.read_secret, n) for n in given if n.endswith("_file"))
        trust = (partial(trusting, f"kafka.{n}", getattr(self, n)) for n in given if n.endswith("cafile"))
        check_together(*secrets, *trust, partial(read_key, self, _OWN))
