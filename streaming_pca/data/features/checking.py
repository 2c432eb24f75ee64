"""Report on what a map makes of sample records, for who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streaming_pca.data.features.reading import FieldReader

__all__ = ["FeatureReport", "MapReport", "check_records"]


@dataclass
class FeatureReport:
    """Counts of one feature's values.

    Attributes
    ----------
    name : str
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
    records, null : int
    unread : int
        Null records that are no object of these fields.
    features : list of FeatureReport
    reasons : list of (int, str)
        Places of the first null records, from 0, with the reason.
    """

    records: int = 0
    null: int = 0
    unread: int = 0
    features: list[FeatureReport] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)


def check_records(reader: FieldReader, texts: Sequence[bytes], reasons: int) -> MapReport:
    """Apply a map to JSON objects.

    Parameters
    ----------
    reader : FieldReader
    texts : sequence of bytes
        A JSON object each.
    reasons : int
        Most null records whose reason is told.
    """
    rows = reader.map
    report = MapReport(features=[FeatureReport(feature.name) for feature in rows.features])
    for place, text in enumerate(texts):
        faults: dict[int, str] = {}
        values = reader.values_of(text, faults)
        report.records += 1
        report.null += bool(faults)
        if faults and len(report.reasons) < reasons:
            report.reasons.append((place, faults[0]))
        if values is None:
            report.unread += 1
            continue
        for feature, value, own in zip(rows.features, values, report.features, strict=True):
            columns = np.empty((1, len(feature.columns)))
            feature.fill(columns, [value], True)
            own.missing += value is None
            if not np.isfinite(columns).all():
                own.refused += 1
            elif feature.column_bounds is not None:
                least, most = feature.column_bounds
                own.clamped += bool(((columns < least) | (columns > most)).any())
    return report
