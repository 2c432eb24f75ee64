"""Errors name their remedies."""

from __future__ import annotations

import pytest

from streaming_pca.service.errors import TopicError


@pytest.mark.parametrize("suffix", ["", ".ledger", ".state", ".releases"])
def test_a_lost_ledger_or_state_is_restored(suffix: str) -> None:
    line = str(TopicError.missing(f"trips{suffix}"))
    assert "streaming-pca topics create" in line
    remedy = ", or, if it was lost, restore it by `streaming-pca import`"
    assert line.endswith(remedy) == (suffix in (".ledger", ".state"))
