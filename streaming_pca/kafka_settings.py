"""How to reach the broker: apart from all other settings, so that the clock's process loads nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

__all__ = ["ConfigurationError", "KafkaSettings", "Section"]


class ConfigurationError(Exception):
    """A setting is wrong; the message is one line that names it."""


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class KafkaSettings(Section):
    """How to reach the broker, and how long to wait for it."""

    bootstrap_servers: str = "localhost:9092"
    """HOST:PORT, or several with commas between."""
    bootstrap_timeout_ms: int = Field(default=5000, ge=100)
    """How long to look for a broker."""
    request_timeout_ms: int = Field(default=10_000, ge=1000)
    """How long to wait for an answer."""
    session_timeout_ms: int = Field(default=6000, ge=1000)
    """A leader that was silent for so long is replaced."""
    transaction_timeout_ms: int = Field(default=15_000, ge=1000)
    """The broker aborts a transaction that was open for so long; messages may take 11 s more to arrive."""
    unchecked_topics: bool = False
    """Go on where the broker does not tell how topics are kept: the embedded one does not."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Encryption and authentication of the connection."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """How to authenticate, where the protocol is one of SASL's."""
    sasl_username: str | None = None
    """Who to authenticate as."""
    sasl_password: SecretStr | None = None
    """Only from the environment: ``STREAMING_PCA_KAFKA__SASL_PASSWORD``."""
    sasl_password_file: Path | None = None
    """A file that holds the password, instead."""
    ssl_cafile: Path | None = None
    """Certificates of the authorities that are trusted, PEM; the system's where not given."""
    ssl_certfile: Path | None = None
    """The client's certificate, PEM."""
    ssl_keyfile: Path | None = None
    """Its key, PEM."""

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
        """The password in clear, for the client; ConfigurationError if its file cannot be read."""
        if self.sasl_password_file is None:
            return None if self.sasl_password is None else self.sasl_password.get_secret_value()
        try:
            return self.sasl_password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not UTF-8 text"
            raise ConfigurationError(
                f"kafka.sasl_password_file: {self.sasl_password_file}: {reason}"
            ) from None
