"""Report on a map's results for sample records, for the holder of these records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.records import JSON
from streaming_pca.data.judging import judge_message


@dataclass
class _Message:
    value: bytes | None
    key: bytes | None = b"key"
    headers: Sequence[tuple[str, bytes]] = (("content-type", JSON.encode()),)


@dataclass
class FeatureReport:
    """Counts of one feature's values.

    Attributes
    ----------
    missing : int
        Records that lack the field, with or without a stand-in.
    refused : int
        Records with a value that the feature refuses, or without one and without a stand-in.
    clamped : int
        Records with a number beyond the bounds.
    """

    name: str
    missing: int = 0
    refused: int = 0
    clamped: int = 0


@dataclass
class MapReport:
    """Counts of records, and of the values of each feature.

    Attributes
    ----------
    unread : int
        Null records that are not an object of these fields.
    reasons : list of (int, str)
        Places of the first null records, from 0, with the reason.
    """

    records: int = 0
    null: int = 0
    unread: int = 0
    features: list[FeatureReport] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)


def check_records(codec: PayloadCodec, texts: Sequence[bytes], reasons: int) -> MapReport:
    """Apply a map to JSON objects.

    Parameters
    ----------
    codec : PayloadCodec
        Codec of a stream with features.
    texts : sequence of bytes
        A JSON object each.
    reasons : int
        Most null records whose reason is reported.
    """
    reader = codec.fields
    assert reader is not None, "a stream without features"
    rows = reader.map
    report = MapReport(features=[FeatureReport(feature.name) for feature in rows.features])
    for place, text in enumerate(texts):
        # The worker's decoder decides, for a message with a key.
        reason = judge_message(codec, _Message(text)).reason
        values = reader.values_of(text, {})
        report.records += 1
        report.null += bool(reason)
        if reason and len(report.reasons) < reasons:
            report.reasons.append((place, reason))
        if values is None:
            report.unread += 1
            continue
        for feature, value, own in zip(rows.features, values, report.features, strict=True):
            columns = feature.columns_of(value)
            own.missing += value is None
            if not np.isfinite(columns).all():
                own.refused += 1
            elif feature.column_bounds is not None:
                least, most = feature.column_bounds
                own.clamped += bool(((columns < least) | (columns > most)).any())
    return report
