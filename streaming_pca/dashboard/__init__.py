"""Dashboard and HTTP API: streams, releases and ledgers, read from their topics."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
