"""Operations on a stream from outside: status, ledger, watch, pause, charge, backup, produce."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
