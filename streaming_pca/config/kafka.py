"""Settings of the Kafka connection.

They stand apart from all other settings because the clock's process imports nothing else of this package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

__all__ = ["ClearText", "ConfigurationError", "KafkaSettings", "Section"]


_ADDRESS = re.compile(r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:/]+)(:[0-9]{1,5})?")


class ConfigurationError(Exception):
    """Error of wrong settings; each line of the message names one of them.

    Attributes
    ----------
    lines : tuple of str
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Section(BaseModel):
    """Table of the settings file."""

    # Errors do not quote values: one may be a password in the wrong place.
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )


class ClearText(str):
    """Secret in clear text, masked where a library logs or prints its options."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"


class KafkaSettings(Section):
    """Connection to the broker, and its time limits."""

    bootstrap_servers: str = "localhost:9092"
    """Addresses of brokers as HOST:PORT, separated by commas."""
    bootstrap_timeout_ms: int = Field(default=5000, ge=100)
    """Longest time to look for a broker, in milliseconds."""
    request_timeout_ms: int = Field(default=10_000, ge=1000)
    """Longest time to wait for the answer to a request, in milliseconds."""
    session_timeout_ms: int = Field(default=6000, ge=1000)
    """Silence after which a stream's leader is replaced, in milliseconds."""
    transaction_timeout_ms: int = Field(default=15_000, ge=1000)
    """Time after which the broker aborts an open transaction, in milliseconds; messages may take 11 s
    more to arrive."""
    unchecked_topics: bool = False
    """Continue if the broker does not report how topics are kept, as the embedded broker does not."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Encryption and authentication of the connection."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """Authentication mechanism, needed by the two SASL protocols."""
    sasl_username: str | None = None
    """User name, needed by the two SASL protocols."""
    sasl_password: SecretStr | None = None
    """Password, read only from the environment variable ``STREAMING_PCA_KAFKA__SASL_PASSWORD``."""
    sasl_password_file: Path | None = None
    """File that holds the password, in place of the environment variable."""
    ssl_cafile: Path | None = None
    """PEM file of trusted certificate authorities; if not set, the system's are trusted."""
    ssl_certfile: Path | None = None
    """PEM file of the client's certificate."""
    ssl_keyfile: Path | None = None
    """PEM file of the client's private key."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_addresses(cls, servers: str) -> str:
        for address in servers.split(","):
            if address.strip().lower().startswith(("http://", "https://")):
                raise ValueError("must be HOST:PORT, without http://")
            if not _ADDRESS.fullmatch(address.strip()):
                raise ValueError("must be HOST:PORT, or several with commas between")
        return servers

    @model_validator(mode="after")
    def _check(self) -> KafkaSettings:
        if self.sasl_password is not None and self.sasl_password_file is not None:
            raise ValueError("set sasl_password or sasl_password_file, not both")
        if self.security_protocol.startswith("SASL"):
            if self.sasl_mechanism is None or self.sasl_username is None:
                raise ValueError(
                    f"security_protocol {self.security_protocol} needs sasl_mechanism and sasl_username"
                )
            if self.sasl_password is None and self.sasl_password_file is None:
                raise ValueError(
                    "a password is needed: sasl_password_file, or STREAMING_PCA_KAFKA__SASL_PASSWORD"
                )
        return self

    @property
    def password(self) -> str | None:
        """Password in clear text, for the client.

        Raises
        ------
        ConfigurationError
            If the password file cannot be read.
        """
        if self.sasl_password_file is None:
            return None if self.sasl_password is None else ClearText(self.sasl_password.get_secret_value())
        try:
            return ClearText(self.sasl_password_file.read_text(encoding="utf-8").rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not UTF-8 text"
            raise ConfigurationError(
                f"kafka.sasl_password_file: {self.sasl_password_file}: {reason}"
            ) from None
