"""Site of the dashboard: pages and API that share one observer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Mount

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import Settings
from streaming_pca.service.http.server import Site

if TYPE_CHECKING:
    from streaming_pca.dashboard.observing.observer import Observer

_NEEDED = ("fastapi", "sse-starlette", "plotly")


def check_extra() -> None:
    """Refuse an installation without the extra.

    Raises
    ------
    ConfigurationError
        If a package is missing; the message shows how to install it.
    """
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise ConfigurationError(
            f"the dashboard needs {', '.join(missing)}: pip install '.[dashboard]' in the checkout"
        )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def make_site(settings: Sequence[Settings]) -> Site:
    """Return the dashboard of these streams, not yet started.

    Raises
    ------
    ConfigurationError
        If the extra is not installed.
    """
    check_extra()
    from streaming_pca.dashboard.api.application import make_api
    from streaming_pca.dashboard.observing.observer import Observer
    from streaming_pca.dashboard.pages import page_routes

    observer = Observer(settings)
    # The API comes last: it answers all other paths with an RFC 9457 problem.
    return _ObserverSite(observer, [*page_routes(), Mount("", app=make_api(observer))])


class _ObserverSite:
    """Site with an observer as its source."""

    def __init__(self, observer: Observer, routes: Sequence[BaseRoute]) -> None:
        self._observer = observer
        self.routes = routes

    def start(self) -> None:
        """Start to read the topics."""
        self._observer.start()

    def stop(self) -> None:
        """Stop the observer's threads."""
        self._observer.stop()
