"""One image and one deployment for all tests, and a broker that requires passwords."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from streaming_pca.admin.access import ROLES, Role, apply_permissions, permissions, topic_ids
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings
from tests.conftest import SHORT_LIVED
from tests.deploy.compose import Deployment
from tests.deploy.dockerfile import Image
from tests.deploy.image import build_once
from tests.deploy.sandbox import require
from tests.deploy.tools import tool
from tests.java_archive import archive_options
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.security.secured import pem_of, properties, set_passwords


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the Dockerfile's result, which all processes share: it takes a minute to build."""
    base = tmp_path_factory.getbasetemp()
    return build_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "image")


@pytest.fixture(scope="module")
def deployment(
    image: Image, kafka_installation: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Return the services of docker-compose.yml, none of them started."""
    tool("prometheus")
    require()
    options = archive_options(*kafka_installation, SHORT_LIVED)
    made = Deployment(tmp_path_factory.mktemp("deployment"), image, *kafka_installation, options)
    yield made
    made.destroy()


@dataclass(frozen=True)
class Guarded:
    """A broker with TLS, passwords and an authorizer, at the settings' name and port."""

    address: str
    open_settings: KafkaSettings
    authority: str
    """Certificate of its authority."""
    passwords: dict[Role, str]

    def permit(self, streams: Sequence[Settings], *roles: Role) -> None:
        """Grant the users named like these roles the roles' permissions."""
        for role in roles:
            ids = topic_ids(role, [each.model_copy(update={"kafka": self.open_settings}) for each in streams])
            apply_permissions(self.open_settings, permissions(role, streams, None, ids), f"User:{role}")


@pytest.fixture(scope="module")
def guard(
    make_cluster: Callable[..., FaultyCluster], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Guarded]:
    """Start such a broker for HOST:PORT of a settings file; only sandboxes know the host."""

    def start(server: str) -> Guarded:
        require()
        host, _, port = server.partition(":")
        directory, dice = tmp_path_factory.mktemp("guarded"), random.SystemRandom()
        address = f"127.{dice.randint(1, 254)}.{dice.randint(1, 254)}.{dice.randint(1, 254)}"
        authority = trustme.CA()
        key_store = directory / "broker.pem"
        key_store.write_text(pem_of(authority.issue_cert(host)))
        inner, scram = "PLAINTEXT://127.0.0.1:{port}", "org.apache.kafka.common.security.scram"
        more = {
            "listeners": f"{inner},CONTROLLER://127.0.0.1:{{controller_port}},CLIENTS://{address}:{port}",
            "advertised.listeners": f"{inner},CLIENTS://{server}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "listener.name.clients.ssl.keystore.location": str(key_store),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{scram}.ScramLoginModule required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        cluster = make_cluster(nodes=1, replication=1, in_sync=1, more=properties(more))
        opened = KafkaSettings(bootstrap_servers=cluster.bootstrap)
        passwords = {role: secrets.token_urlsafe(16) for role in ROLES}
        set_passwords(opened, passwords)
        return Guarded(address, opened, authority.cert_pem.bytes().decode(), passwords)

    return start


def give(path: Path, text: str, mode: int, user: int, group: int) -> Path:
    """Write a file as another user's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, user, group)
    return path
