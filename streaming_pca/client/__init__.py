"""Client for programs: a producer of records and readers of releases, which need no estimator or kernel."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
from streaming_pca.client.producer import Producer
from streaming_pca.client.releases import Releases, UnreadableRelease, follow, latest
from streaming_pca.client.sending import DeliveryError
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.data.release import Release
from streaming_pca.service.errors import BrokerUnreachable, TopicError

__all__ = [
    "BrokerUnreachable",
    "DeliveryError",
    "KafkaSettings",
    "Producer",
    "Release",
    "Releases",
    "TopicError",
    "UnreadableRelease",
    "follow",
    "latest",
]
