"""Settings of the schema registry."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from streaming_pca.config.kafka import (
    ClearText,
    ConfigurationError,
    Section,
    check_https,
    check_together,
    checked,
    read_secret_file,
    trusting,
)


def _plain_url(url: str) -> str:
    check_https(url, "username and password_file")
    if not url.isprintable() or " " in url or not url.isascii() or "?" in url or "#" in url:
        raise ValueError("must be the address alone, without a query, a fragment or spaces")
    return url.rstrip("/")


def _check_username(username: str) -> None:
    if ":" in username or not username.isprintable() or not username:
        raise ValueError("must be printable text without a colon")


class RegistrySettings(Section):
    """Schema registry, for streams of Avro or Protobuf without a schema file."""

    url: Annotated[str, AfterValidator(_plain_url)]
    """Address of its Confluent-compatible API: `https://HOST`, with a path if it has one; `http://` only on
    localhost. Proxies from the environment are not used."""
    username: Annotated[str | None, checked(_check_username)] = None
    """User name of basic authentication."""
    password: SecretStr | None = None
    """Password, read only from the environment variable ``STREAMING_PCA_REGISTRY__PASSWORD``."""
    password_file: Path | None = None
    """File that contains the password, instead of the environment variable; read every `seconds`."""
    token_file: Path | None = None
    """File that contains a bearer token, instead of a user name; read every `seconds`."""
    ssl_cafile: Path | None = None
    """PEM file of the registry's certificate authorities; if not set, the system's are trusted."""
    seconds: float = Field(default=2.0, ge=0.1, le=60)
    """Interval between reads of a subject's versions, in seconds; it delays the cut of a batch by up to
    this time."""
    timeout_seconds: float = Field(default=10.0, ge=0.1, le=60)
    """Longest time for one request and its response, in seconds."""

    def conflicts(self, given: Set[str]) -> Iterator[str]:
        password = given & {"password", "password_file"}
        if "token_file" in given and ("username" in given or password):
            yield "set token_file or username with a password, not both"
        if "username" in given and not password:
            yield "username needs password_file, or STREAMING_PCA_REGISTRY__PASSWORD"
        if password and "username" not in given:
            yield "a password needs username"

    @property
    def clear_password(self) -> str | None:
        """Password in clear text; a file is reread each time."""
        if self.password_file is not None:
            return read_secret_file("registry.password_file", self.password_file)
        return None if self.password is None else ClearText(self.password.get_secret_value())

    @property
    def token(self) -> str | None:
        """Bearer token; its file is reread each time."""
        if self.token_file is None:
            return None
        token = ClearText(read_secret_file("registry.token_file", self.token_file).strip())
        if not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigurationError("registry.token_file: holds no token: write it in one line of ASCII")
        return token

    def check_files(self) -> None:
        trust = partial(trusting, "registry.ssl_cafile", self.ssl_cafile)
        check_together(lambda: self.clear_password, lambda: self.token, trust)
