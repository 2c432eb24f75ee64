from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.service.registry.apicurio import Apicurio
from tests.service.registry.producers import Producer


@pytest.fixture
def producer(apicurio: Apicurio, unique_name: Callable[[str], str]) -> Iterator[Producer]:
    with Producer(apicurio, unique_name("visits")) as made:
        yield made
