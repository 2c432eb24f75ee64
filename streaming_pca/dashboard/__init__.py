"""Dashboard and HTTP API: streams, releases and ledgers as their topics show them."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
