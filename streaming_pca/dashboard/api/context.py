"""Surroundings of the API's routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_pca.dashboard.api.asking import Asker

if TYPE_CHECKING:
    from streaming_pca.dashboard.observing.observer import Observer


@dataclass(frozen=True)
class Context:
    """Observer, and who asks it.

    Attributes
    ----------
    memory : Asker
        Of answers from memory: they wait for a lock at most.
    broker : Asker
        Of answers that may wait for the broker.
    plans : Asker
        Of computations.
    """

    observer: Observer
    memory: Asker
    broker: Asker
    plans: Asker
