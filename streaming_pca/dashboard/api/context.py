"""Shared objects of the API's routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_pca.dashboard.api.limiter import Limiter

if TYPE_CHECKING:
    from streaming_pca.dashboard.observing.observer import Observer


@dataclass(frozen=True)
class Context:
    """Observer, and the limits of calls to it.

    Attributes
    ----------
    memory : Limiter
        For answers from memory, which wait at most for a lock.
    broker : Limiter
        For answers that may wait for the broker.
    plans : Limiter
        For computations.
    """

    observer: Observer
    memory: Limiter
    broker: Limiter
    plans: Limiter
