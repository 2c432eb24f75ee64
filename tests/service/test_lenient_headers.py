"""One record with a header name that is not UTF-8 does not stop its partition."""

from __future__ import annotations

import pytest
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from streaming_pca.service import clients, lenient_headers


def a_batch() -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10**6)
    for offset, name in enumerate(["one", "two", "abc", "four"]):
        builder.append(offset, 1000 + offset, b"key", b"value", [(name, b"x")])
    data = bytes(builder.build())
    assert data.count(b"abc") == 1
    return data.replace(b"abc", b"\xff\xfe\xfd")


def test_the_record_is_null_and_the_others_are_read() -> None:
    assert clients.lenient_headers is lenient_headers
    lenient_headers.install()
    records = list(DefaultRecordBatch(a_batch()))
    assert [r.offset for r in records] == [0, 1, 2, 3]
    assert [r.timestamp for r in records] == [1000, 1001, 1002, 1003]
    assert [r.value for r in records] == [b"value", b"value", None, b"value"]
    assert records[2].headers == []


def test_the_client_still_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, the client has learnt it: delete the module."""
    monkeypatch.setattr(DefaultRecordBatch, "_read_msg", lenient_headers._read)
    with pytest.raises(CorruptRecordError, match="UnicodeDecodeError"):
        list(DefaultRecordBatch(a_batch()))
