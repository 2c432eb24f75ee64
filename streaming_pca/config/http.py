"""Settings of the HTTP server: metrics, health, the API and the dashboard."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from streaming_pca.config.kafka import (
    ConfigurationError,
    Section,
    check_together,
    checked,
    read_key,
    read_secret_file,
    trusting,
)

MIN_TOKEN = 16  # fewest characters of a token
# The characters that RFC 6750 allows after "Bearer".
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_Token = Annotated[SecretStr | None, checked(lambda token: check_token(token.get_secret_value()))]
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")


def check_token(token: str) -> None:
    """Raise ValueError if a token is too short or not allowed in a header."""
    if len(token) < MIN_TOKEN:
        raise ValueError(f"must have at least {MIN_TOKEN} characters, not {len(token)}")
    if not _TOKEN.fullmatch(token):
        raise ValueError("must be letters, digits and '-._~+/' alone, with '=' only at its end")


def read_token(setting: str, file: Path) -> str:
    """Read the token from the file of a setting; errors do not repeat the file's text."""
    text = read_secret_file(f"http.{setting}", file).strip()
    try:
        check_token(text)
    except ValueError as error:
        raise ConfigurationError(f"http.{setting}: {file}: its token {error}") from None
    return text


def _each(form: re.Pattern[str], like: str) -> AfterValidator:
    """Return the validator of names of one form, which makes them lower case."""

    def validate(names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not form.fullmatch(name):
                raise ValueError(f"must be like {like}, not {name!r}")
        return tuple(name.lower() for name in names)

    return AfterValidator(validate)


class HttpSettings(Section):
    """HTTP server for metrics and health, and optionally for the API and the dashboard.

    On an address other than loopback it needs a token or client certificates.
    """

    enabled: bool = True
    """Run the HTTP server of a worker."""
    host: str = "127.0.0.1"
    """Address to listen on; an address other than loopback needs `token_file`, `token` or
    `client_authority`."""
    port: int = Field(default=9464, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one and logs it."""
    dashboard: bool = False
    """Also serve the API and the dashboard from the worker; this needs the extra `dashboard`."""
    token: _Token = None
    """Bearer token of the API and the metrics, at least 16 characters, read only from the environment
    variable ``STREAMING_PCA_HTTP__TOKEN``."""
    token_file: Path | None = None
    """File that contains the token, instead of the environment variable; it is read again when it changes."""
    metrics_token: _Token = None
    """Bearer token of the metrics only, read only from the environment variable
    ``STREAMING_PCA_HTTP__METRICS_TOKEN``; if not set, the API's token applies."""
    metrics_token_file: Path | None = None
    """File that contains the metrics token, instead of the environment variable."""
    certificate: Path | None = None
    """PEM file of the server's certificate with its chain, for HTTPS."""
    private_key: Path | None = None
    """PEM file of the certificate's private key, without a pass phrase."""
    client_authority: Path | None = None
    """PEM file of the certificate authorities for clients: only clients with a certificate signed by them
    can connect (mutual TLS)."""
    hosts: Annotated[tuple[str, ...], _each(_HOST, "pca.example.org, without a scheme and a port")] = ()
    """Accepted names in the header ``Host``, without the port. If empty: on loopback its names, else any."""
    origins: Annotated[tuple[str, ...], _each(_ORIGIN, "https://example.org or http://127.0.0.1:8000")] = ()
    """Origins of other sites whose pages may use the API, such as `https://example.org` (CORS)."""
    event_streams: int = Field(default=32, ge=1, le=1024)
    """Most clients that receive events at the same time."""
    process_metrics: bool = False
    """Include `process_*` in the metrics: memory, CPU time, descriptors. They can depend on the contents of
    records, so enable them only if the readers of the metrics may know these."""
    requests_per_second: float = Field(default=50.0, gt=0)
    """Sustained requests per second of one client address; short bursts may have twice as many."""

    def conflicts(self, given: Set[str]) -> Iterator[str]:
        if ("certificate" in given) != ("private_key" in given):
            yield "certificate and private_key belong together: set both"
        elif "client_authority" in given and "certificate" not in given:
            yield "client_authority needs certificate and private_key"

    def check_files(self) -> None:
        if self.enabled:
            check_files(self)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_access(settings: HttpSettings) -> None:
    """Refuse an address that other machines could reach without a token or certificate."""
    if not (is_loopback(settings.host) or settings.token or settings.token_file or settings.client_authority):
        raise ConfigurationError(
            f"http.host = {settings.host!r} is not loopback: set http.token_file, the variable "
            "STREAMING_PCA_HTTP__TOKEN, or http.client_authority (mutual TLS); or listen on 127.0.0.1"
        )


def check_files(settings: HttpSettings) -> None:
    """Refuse an address without protection, and unusable files of tokens and certificates."""
    tokens = ("token_file", "metrics_token_file")
    read = [partial(read_token, name, file) for name in tokens if (file := getattr(settings, name))]
    load = partial(read_key, settings, ("http.certificate", "http.private_key"))
    authorities = partial(trusting, "http.client_authority", settings.client_authority)
    check_together(partial(check_access, settings), *read, load, authorities)
