"""Kafka clients, with the faults of kafka-python that the service works around.

Raises
------
ImportError
    If kafka-python has another version than those whose private names this package uses.
"""

from __future__ import annotations

import re
from importlib.metadata import version

_FIRST, _END = (3, 0, 12), (3, 1)
"""The first version that works, and the first that moves modules which this package imports."""


def _check_version() -> None:
    installed = version("kafka-python")
    if not _FIRST <= tuple(map(int, re.findall(r"\d+", installed))) < _END:
        needed = f">={'.'.join(map(str, _FIRST))},<{'.'.join(map(str, _END))}"
        raise ImportError(
            f"kafka-python {installed} is not supported: pip install 'kafka-python[crc32c]{needed}'",
            name="kafka",
        )


_check_version()
