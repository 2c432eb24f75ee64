"""Ports of programs that listen seconds after they were chosen, or never."""

from __future__ import annotations

from streaming_pca.dev.cluster import _steady_port


def steady_ports(count: int) -> list[int]:
    """Return different free loopback ports, which outgoing connections and other listeners do not get."""
    found: set[int] = set()
    while len(found) < count:
        found.add(_steady_port())
    return list(found)


def steady_port() -> int:
    """Return one such port."""
    return _steady_port()
