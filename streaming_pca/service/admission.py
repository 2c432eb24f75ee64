"""Whether the ledger admits a stream as it is configured."""

from __future__ import annotations

import json
from typing import Any

from streaming_pca.privacy.ledger import Ledger, Standing
from streaming_pca.privacy.parameters import format_rational
from streaming_pca.service.errors import StreamRefused
from streaming_pca.settings import StreamSettings

__all__ = ["check_admission", "check_opened"]
