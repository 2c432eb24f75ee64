"""Settings of the Kafka connection, apart because the clock process needs only them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streaming_pca.errors import UserError
from streaming_pca.validation_errors import refuse_boolean

_ADDRESS = re.compile(r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:/]+)(:[0-9]{1,5})?")
TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}")
"""Names of streams and of their inputs."""
TOPIC_RULE = "must be 1 to 200 letters, digits, '.', '_' or '-', and not '.' or '..'"
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_GRANT = (
    "sasl_oauth_token_url",
    "sasl_oauth_client_id",
    "sasl_oauth_client_secret_file",
    "sasl_oauth_scope",
    "sasl_oauth_cafile",
)
"""Settings of the client-credentials grant; the first three are required."""


class ConfigurationError(UserError):
    """Wrong settings; each line of the message names one of them."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Section(BaseModel):
    """Table of the settings file."""

    # Errors must not quote values: one may be a misplaced password.
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )


class ClearText(str):
    """Secret in clear text, masked when a library logs or prints its options."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"


def check_topic_name(argument: str, name: Any) -> None:
    """Raise ValueError, naming the argument, for a name that no topic can have."""
    if not isinstance(name, str):
        raise ValueError(f"{argument} {TOPIC_RULE}; this is of type {type(name).__name__}")
    if not TOPIC_NAME.fullmatch(name):
        raise ValueError(f"{argument} {TOPIC_RULE}; this is {name[:40]!r}{'...' * (len(name) > 40)}")


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
        reason = "is empty"
    except (OSError, UnicodeDecodeError) as error:
        content, reason = "", getattr(error, "strerror", None) or "is not UTF-8 text"
    if not content:
        raise ConfigurationError(f"{setting}: {path}: {reason}")
    return ClearText(content)


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


class StrictSection(Section):
    """Table that refuses booleans for numbers, since Python treats them as 0 and 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        return refuse_boolean(value, cls.model_fields[str(info.field_name)].annotation)


class KafkaSettings(Section):
    """Connection to the broker, and its time limits."""

    bootstrap_servers: Annotated[str, checked(_check_addresses)] = "localhost:9092"
    """Addresses of brokers as HOST:PORT, separated by commas."""
    bootstrap_timeout_ms: int = Field(default=5000, ge=100)
    """Longest time to look for a broker, in milliseconds."""
    request_timeout_ms: int = Field(default=10_000, ge=1000)
    """Longest time to wait for the response to a request, in milliseconds."""
    session_timeout_ms: int = Field(default=6000, ge=1000)
    """Silence after which a stream's leader is replaced, in milliseconds."""
    transaction_timeout_ms: int = Field(default=15_000, ge=1000)
    """Time after which the broker aborts an open transaction, in milliseconds; messages may take 11 s
    more to arrive."""
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

    @model_validator(mode="after")
    def _check(self) -> KafkaSettings:
        if self.sasl_password is not None and self.sasl_password_file is not None:
            raise ValueError("set sasl_password or sasl_password_file, not both")
        grant = {name: getattr(self, name) for name in _GRANT}
        if self.sasl_oauth_token_file is not None and any(value is not None for value in grant.values()):
            raise ValueError("set sasl_oauth_token_file or the settings of sasl_oauth_token_url, not both")
        if self.security_protocol.startswith("SASL"):
            if self.sasl_mechanism is None:
                raise ValueError(f"security_protocol {self.security_protocol} needs sasl_mechanism")
            if self.sasl_mechanism == "OAUTHBEARER":
                self._check_oauth(grant)
            else:
                self._check_password()
        return self

    def _check_password(self) -> None:
        if self.sasl_username is None:
            raise ValueError(f"sasl_mechanism {self.sasl_mechanism} needs sasl_username")
        if self.sasl_password is None and self.sasl_password_file is None:
            raise ValueError(
                "a password is needed: sasl_password_file, or STREAMING_PCA_KAFKA__SASL_PASSWORD"
            )

    def _check_oauth(self, grant: dict[str, object]) -> None:
        if self.sasl_oauth_token_file is None and self.sasl_oauth_token_url is None:
            raise ValueError("sasl_mechanism OAUTHBEARER needs sasl_oauth_token_file or sasl_oauth_token_url")
        missing = [name for name in _GRANT[:3] if grant[name] is None]
        if self.sasl_oauth_token_url is not None and missing:
            raise ValueError(f"sasl_oauth_token_url needs {' and '.join(missing)}")

    @property
    def password(self) -> str | None:
        """Password in clear text, for the client; a file is reread each time."""
        if self.sasl_password_file is None:
            return None if self.sasl_password is None else ClearText(self.sasl_password.get_secret_value())
        return self.read_secret("sasl_password_file")

    def read_secret(self, name: str) -> str:
        """Return the content of a setting's file, without the final line break."""
        return read_secret_file(f"kafka.{name}", getattr(self, name))
