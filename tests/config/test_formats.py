"""Settings of streams whose records have a schema: valid combinations, and the contract."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from streaming_pca.config.effective import describe_stream
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import StreamSettings
from streaming_pca.service.commit.admission import check_admission
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.input.source import build_codec
from tests.config.refusals import refusal
from tests.data.features.formats import Message, in_avro
from tests.privacy.ledger.test_ledger import Writer, span

SCHEMAS = Path(__file__).parent / "schemas"
AVSC, DESC = SCHEMAS / "row.avsc", SCHEMAS / "row.desc"
ROW = [{"name": "a", "size": 4}]
AVRO: dict[str, Any] = {"format": "avro", "schema_file": AVSC, "features": ROW}
PROTOBUF: dict[str, Any] = {"format": "protobuf", "schema_file": DESC, "message": "t.Row", "features": ROW}


def a_stream(**changes: Any) -> StreamSettings:
    settings: dict[str, Any] = {"name": "s", "input": "in", "rank": 2, "epsilon": 1.0, "delta": 1e-6}
    return StreamSettings(**settings | {"options": {"n_records": 300}} | changes)


def test_a_stream_reads_records_by_its_schema() -> None:
    value = in_avro(json.loads(AVSC.read_text()), {"a": [1, 2, 3, 4]})
    rows = build_codec(a_stream(**AVRO), None).decode(Message(value))
    np.testing.assert_array_equal(rows, [[1, 2, 3, 4]])  # type: ignore[arg-type]
    packed = b"\x0a\x20" + np.arange(4.0).tobytes()
    rows = build_codec(a_stream(**PROTOBUF), None).decode(Message(packed))
    np.testing.assert_array_equal(rows, [[0, 1, 2, 3]])  # type: ignore[arg-type]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"format": "avro", "dim": 4}, 'format = "avro" needs features'),
    ({**AVRO, "subject": "s"}, "set schema_file, or subject of the registry, not both"),
    ({"features": ROW, "subject": "s"}, 'subject needs format = "avro" or "protobuf"'),
    ({"format": "avro", "schema_file": AVSC, "dim": 4}, 'format = "avro" needs features'),
    ({**PROTOBUF, "message": None}, "schema_file of Protobuf needs message"),
    ({**AVRO, "message": "t.Row"}, 'message needs format = "protobuf"'),
    ({"schema_file": AVSC, "features": ROW}, 'schema_file needs format = "avro" or "protobuf"'),
    ({**AVRO, "schema_file": "/nowhere.avsc"}, "'/nowhere.avsc' cannot be read: No such file"),
    ({**AVRO, "schema_file": DESC}, "row.desc': not an Avro schema"),
    ({**PROTOBUF, "schema_file": AVSC}, "row.avsc': it is not a set of file descriptors"),
    ({**PROTOBUF, "message": "t.Other"}, "has no message 't.Other'"),
    ({**AVRO, "features": [{"name": "b"}]}, "no value at 'b', and feature 'b' has no stand-in"),
    ({**AVRO, "privacy_unit": "user", "user_field": "id"}, "no value at 'id', the path in user_field"),
    ({"format": "npy", "features": ROW, "privacy_unit": "user", "user_field": "a"}, "do not name a user"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=[words for _, words in WRONG])
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        a_stream(**settings)
    assert words in str(refused.value)


def test_the_contract_holds_a_schema_s_content_and_not_its_place(tmp_path: Path) -> None:
    contract = a_stream(**AVRO).privacy_contract
    assert set(contract["schema"]) == {"sha256"}
    moved = shutil.copy(AVSC, tmp_path / "moved.avsc")
    assert a_stream(**AVRO | {"schema_file": moved}).privacy_contract == contract
    # Processes elsewhere, for example in Spark, do not need the file.
    there = pickle.loads(pickle.dumps(a_stream(**AVRO | {"schema_file": moved})))
    Path(moved).unlink()
    assert there.fields.map.dim == 4
    assert there.privacy_contract == contract
    log = Writer("1", "1e-6")
    assert log.reserve("s", span(0, 5), promise=contract).accepted
    check_admission(a_stream(**AVRO), log.ledger)
    Path(moved).write_text(AVSC.read_text().replace("Row", "Line"))
    with pytest.raises(StreamRefused, match=r"stream\.schema_file is not what the ledger has"):
        check_admission(a_stream(**AVRO | {"schema_file": moved}), log.ledger)
    assert a_stream(**PROTOBUF).privacy_contract["message"] == "t.Row"
    assert not {"schema", "message"} & set(a_stream(features=ROW).privacy_contract)


@pytest.mark.parametrize(("settings", "name"), [(AVRO, "fastavro"), (PROTOBUF, "protobuf")], ids=str)
def test_a_format_without_its_library_is_refused_at_the_start(
    settings: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("fastavro.schema", "google.protobuf.descriptor_pb2", "google.protobuf.descriptor_pool"):
        # A value of None makes Python raise ImportError.
        monkeypatch.setitem(sys.modules, module, None)
    stream = a_stream(**settings)
    asked = f"needs {name}: pip install '.[{stream.format}]' in the checkout"
    doubts = describe_stream(stream)["warnings"]
    assert f'stream.format = "{stream.format}" {asked}; the schema was not compared' in doubts
    line = refusal(StreamRefused, check_admission, stream, Writer("1", "1e-6").ledger)
    assert line == f'stream.format = "{stream.format}" {asked}'
    assert name in refusal(ConfigurationError, build_codec, stream, None)
