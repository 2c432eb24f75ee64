"""External operations on a stream: status, ledger, watch, pause, charge, backup, produce."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
