"""Passwords and tokens, read again for each connection: rotation does not need a restart.

Certificate files do not need code here: kafka-python reads them for each connection.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import math
import os
import threading
import time
import urllib.parse
from collections.abc import Callable
from functools import partial
from typing import Any

from kafka.net.sasl import SaslMechanismPlain, SaslMechanismScram, register_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings, trusting
from streaming_pca.service.http_exchange import exchange, failure_text

log = logging.getLogger(__name__)

_RENEW_AT = 0.8  # share of a token's lifetime after which the next one is requested
_RETRY_SECONDS = (1.0, 30.0)  # shortest and longest pause after failed grants, doubling in between
_LONGEST_LIFE = 7 * 86400.0
"""Longest use of a token: `time.sleep` refuses some numbers that a provider may return."""
_MOST_BYTES = 1 << 20  # most bytes read from a response


class TokenRefused(Exception):
    """Refusal or failure of a token grant; the message names the setting to change."""


def sasl_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return kafka-python's authentication options.

    Raises ConfigurationError for an unreadable secret; TokenRefused if the identity provider grants no token.
    """
    options: dict[str, Any] = {"sasl_mechanism": settings.sasl_mechanism}
    if settings.sasl_mechanism == "OAUTHBEARER":
        provider = _TokenFile(settings) if settings.sasl_oauth_token_url is None else _shared_grant(settings)
        # A client retries a refused connection until its time limit, so report mistakes before.
        provider.token()
        return options | {"sasl_oauth_token_provider": provider}

    def password() -> str:
        """Return the current password; the text form of a function hides it."""
        return settings.password or ""

    password()
    return options | {"sasl_plain_username": settings.sasl_username, "sasl_plain_password": password}


def _with_current_password(mechanism: Callable[..., Any], /, **config: Any) -> Any:
    password = config.get("sasl_plain_password")
    return mechanism(**config | {"sasl_plain_password": password() if callable(password) else password})


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Token that another program renews in a file."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def token(self) -> str:
        return self._settings.read_secret("sasl_oauth_token_file").strip()


class _Grant(AbstractTokenProvider):  # type: ignore[misc]
    """Token of the client-credentials grant (RFC 6749, 4.4), renewed by a thread before it expires.

    Threads of connections never wait for the provider: each serves the sockets of many clients.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._token: str | None = None
        self._renew_at = self._expires_at = 0.0
        self._renewer: threading.Thread | None = None

    def prepare(self) -> None:
        """Request a token if needed, and start renewing it; raise TokenRefused on refusal."""
        with self._lock:
            if time.monotonic() >= self._expires_at:
                self._take(_ask(self._settings))
            # A forked process does not have its parent's threads.
            if self._renewer is None or not self._renewer.is_alive():
                self._renewer = threading.Thread(target=self._keep_fresh, name="token", daemon=True)
                self._renewer.start()

    def token(self) -> str:
        """Return the current token; raise TokenRefused if it has expired."""
        if self._token is None or time.monotonic() >= self._expires_at:
            raise TokenRefused(
                f"kafka.sasl_oauth_token_url = {self._settings.sasl_oauth_token_url!r}: expired"
            )
        return self._token

    def _keep_fresh(self) -> None:
        pause, longest = _RETRY_SECONDS
        while True:
            time.sleep(max(self._renew_at - time.monotonic(), pause))
            try:
                granted = _ask(self._settings)
            except Exception as error:
                # No other thread renews the token, so this one must survive every error. An unforeseen
                # error may quote the response.
                reason = (
                    error if isinstance(error, ConfigurationError | TokenRefused) else type(error).__name__
                )
                log.warning("the token for the broker was not renewed: %s", reason)
                pause = min(2 * pause, longest)
            else:
                self._take(granted)
                pause = _RETRY_SECONDS[0]

    def _take(self, granted: tuple[str, float]) -> None:
        now, (self._token, life) = time.monotonic(), granted
        life = min(life, _LONGEST_LIFE)
        self._renew_at, self._expires_at = now + _RENEW_AT * life, now + life


_grants_lock = threading.Lock()
_grants: dict[KafkaSettings, _Grant] = {}


def _shared_grant(settings: KafkaSettings) -> _Grant:
    """Return the grant shared by all clients with these settings, with a token."""
    with _grants_lock:
        grant = _grants.setdefault(settings, _Grant(settings))
    grant.prepare()
    return grant


def _renew_locks() -> None:
    """Replace the locks in a forked child: a thread of the parent may have held them."""
    global _grants_lock
    _grants_lock = threading.Lock()
    for grant in _grants.values():
        grant._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


def _ask(settings: KafkaSettings) -> tuple[str, float]:
    """Request a token from the identity provider; return it and its lifetime in seconds.

    Raises ConfigurationError for an unreadable file; TokenRefused without a response, or if refused.
    """
    url, who = str(settings.sasl_oauth_token_url), str(settings.sasl_oauth_client_id)
    asked = f"kafka.sasl_oauth_token_url = {url!r}"
    secret = settings.read_secret("sasl_oauth_client_secret_file")
    # RFC 6749, 2.3.1: both are form-encoded first, because either may hold a colon.
    pair = ":".join(urllib.parse.quote(part, safe="") for part in (who, secret))
    form = {"grant_type": "client_credentials"}
    if settings.sasl_oauth_scope is not None:
        form["scope"] = settings.sasl_oauth_scope
    headers = {
        "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    parts, posted = urllib.parse.urlsplit(url), urllib.parse.urlencode(form).encode()
    target = (parts.path or "/") + f"?{parts.query}" * bool(parts.query)
    try:
        trusted = trusting("kafka.sasl_oauth_cafile", settings.sasl_oauth_cafile)
        context = trusted if parts.scheme == "https" else None
        how = (headers, context, settings.request_timeout_ms / 1000, _MOST_BYTES)
        status, body = exchange(parts, target, *how, posted=posted, tunnels=True)
        # Redirects too: following one would send the secret to another host.
        if not 200 <= status < 300:
            raise TokenRefused(
                f"{asked} refuses kafka.sasl_oauth_client_id = {who!r} "
                f"(HTTP {status}{_reason(body)}): correct the name, kafka.sasl_oauth_scope, "
                f"or the secret (kafka.sasl_oauth_client_secret_file = "
                f"{str(settings.sasl_oauth_client_secret_file)!r})"
            )
        granted = json.loads(body)
        token, life = granted["access_token"], float(granted.get("expires_in", 300))
        is_token = isinstance(token, str) and token.isascii() and token.isprintable()
        if not (is_token and 0 < life < math.inf):
            raise ValueError
    except ConfigurationError as error:
        raise TokenRefused(str(error)) from None
    except (http.client.HTTPException, OSError) as error:
        raise TokenRefused(failure_text(error, asked, "kafka.sasl_oauth_cafile")) from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise TokenRefused(f"{asked} answers without a token: it must be the token endpoint") from None
    return token, life


def _reason(body: bytes) -> str:
    """Return the error code of a response (RFC 6749, 5.2)."""
    try:
        code = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return f", {code}" if isinstance(code, str) and code.isidentifier() and len(code) < 40 else ""


def install() -> None:
    for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        own = SaslMechanismPlain if name == "PLAIN" else SaslMechanismScram
        register_sasl_mechanism(name, partial(_with_current_password, own), overwrite=True)
