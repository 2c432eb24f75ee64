"""One image and one deployment for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streaming_pca.dev.jars import KafkaUnavailable
from tests.conftest import installation
from tests.deploy.compose import Deployment
from tests.deploy.dockerfile import Image
from tests.deploy.tools import missing, tool


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """What the lines of the Dockerfile make."""
    made = Image(tmp_path_factory.mktemp("image"))
    made.build()
    return made


@pytest.fixture(scope="module")
def deployment(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The services of docker-compose.yml, none of them started."""
    found = installation()
    if isinstance(found, KafkaUnavailable):
        raise missing(found.reason, found.detail)
    tool("prometheus")
    made = Deployment(tmp_path_factory.mktemp("deployment"), image, *found)
    yield made
    made.destroy()
