"""Demo on public data, with an embedded broker."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
