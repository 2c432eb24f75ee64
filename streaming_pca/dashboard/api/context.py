"""Shared objects of the API's routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_pca.dashboard.api.asking import Asker

if TYPE_CHECKING:
    from streaming_pca.dashboard.observing.observer import Observer


@dataclass(frozen=True)
class Context:
    """Observer, and the askers that call it.

    Attributes
    ----------
    memory : Asker
        For answers from memory, which wait at most for a lock.
    broker : Asker
        For answers that may wait for the broker.
    plans : Asker
        For computations.
    """

    observer: Observer
    memory: Asker
    broker: Asker
    plans: Asker
