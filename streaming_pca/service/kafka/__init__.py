"""Kafka clients with workarounds for kafka-python; ImportError for a version of other private names."""

from __future__ import annotations

import re
from importlib.metadata import version

_FIRST, _END = (3, 0, 12), (3, 1)
"""The first supported version, and the first version that moves modules used here."""


def _check_version() -> None:
    installed = version("kafka-python")
    if not _FIRST <= tuple(map(int, re.findall(r"\d+", installed))) < _END:
        needed = f">={'.'.join(map(str, _FIRST))},<{'.'.join(map(str, _END))}"
        raise ImportError(
            f"kafka-python {installed} is not supported: pip install 'kafka-python[crc32c]{needed}'",
            name="kafka",
        )


_check_version()
