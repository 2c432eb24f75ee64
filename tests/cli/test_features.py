"""`streaming-pca features`: suggestions from a schema, and a map's rows of sample records."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from google.protobuf import descriptor_pb2

from tests.cli.command import call
from tests.cli.test_app import one_line
from tests.data.features.formats import message_type
from tests.service.registry.producers import record_type

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

SETTINGS = '[stream]\nname = "visits"\ninput = "visits"\nrank = 1\nepsilon = 1.0\ndelta = 1e-6\n\n'
AVRO = record_type(
    "Visit",
    user=record_type("User", age=["null", "int"], friend=["null", "User"]),
    spent={"type": "bytes", "logicalType": "decimal", "precision": 9},
    country={"type": "enum", "name": "Country", "symbols": ["DE", "FR"]},
    home="Country",
    city="string",
    at={"type": "long", "logicalType": "timestamp-millis"},
    place={"type": "array", "items": "float"},
    paid="boolean",
    raw="bytes",
)
JSON_SCHEMA = {
    "$defs": {
        "Node": {"type": "object", "properties": {"x": {"type": "number"}, "next": {"$ref": "#/$defs/Node"}}}
    },
    "type": "object",
    "required": ["age", "at", "born", "tags", "country", "user", "node"],
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "spent": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "at": {"type": "string", "format": "date-time"},
        "born": {"type": "string", "format": "date"},
        "country": {"enum": ["DE", "FR", 7]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        "user": {"type": "object", "required": ["paid"], "properties": {"paid": {"type": "boolean"}}},
        "node": {"$ref": "#/$defs/Node"},
        "city": {"type": ["string", "null"]},
        "a.b": {"type": "number"},
        "loop": {"$ref": "#/properties/loop"},
    },
}


def suggested(capfd: Capture, path: Path) -> str:
    done = call(capfd, "features", "suggest", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def tables(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n")]


NEEDS_BOUNDS = "bounds = []  # least and largest"
STAND_IN = "# missing = ...  # public stand-in; without it, a record that lacks the field is null"
ASKS_WORDS = """\
# categories = []  # words that matter; or leave the feature out
# parse = true  # instead of categories, if the texts are numbers
# parts = ["hour", "weekday"]  # instead of categories, if the texts are times of ISO 8601"""


def table(*lines: str) -> str:
    return "\n".join(("[[stream.features]]", *lines))


def test_an_avro_schema_becomes_features(capfd: Capture, tmp_path: Path) -> None:
    (tmp_path / "visit.avsc").write_text(json.dumps(AVRO))
    assert tables(suggested(capfd, tmp_path / "visit.avsc")) == [
        table('name = "user.age"', NEEDS_BOUNDS, STAND_IN),
        '# "user.friend": its type cannot be converted to numbers',
        table('name = "spent"', NEEDS_BOUNDS),
        table('name = "country"', 'categories = ["DE", "FR"]'),
        table('name = "home"', 'categories = ["DE", "FR"]'),
        "\n".join(["# [[stream.features]]", '# name = "city"', ASKS_WORDS]),
        table('name = "at"', 'parts = ["hour", "weekday", "month"]'),
        table('name = "place"', "size = 0  # numbers in each list", NEEDS_BOUNDS),
        table('name = "paid"', "bounds = [0, 1]"),
        '# "raw": its type cannot be converted to numbers',
    ]


def test_a_json_schema_becomes_features(capfd: Capture, tmp_path: Path) -> None:
    (tmp_path / "visit.json").write_text(json.dumps(JSON_SCHEMA))
    assert tables(suggested(capfd, tmp_path / "visit.json")) == [
        table('name = "age"', "bounds = [0, 120]"),
        table('name = "spent"', NEEDS_BOUNDS, STAND_IN),
        table('name = "at"', 'parts = ["hour", "weekday", "month"]'),
        table('name = "born"', 'parts = ["weekday", "month"]'),
        table('name = "country"', 'categories = ["DE", "FR", "7"]'),
        '# "tags": its type cannot be converted to numbers',
        table('name = "place"', "size = 2", NEEDS_BOUNDS, STAND_IN),
        table('name = "user.paid"', "bounds = [0, 1]"),
        table('name = "node.x"', NEEDS_BOUNDS, STAND_IN),
        '# "node.next": its type cannot be converted to numbers',
        "\n".join(["# [[stream.features]]", '# name = "city"', ASKS_WORDS, f"# {STAND_IN}"]),
        table('name = "a.b"', 'path = ["a.b"]', NEEDS_BOUNDS, STAND_IN),
        '# "loop": its type cannot be converted to numbers',
    ]


def test_descriptors_of_protobuf_become_features(capfd: Capture, tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="v.proto", package="t", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "wrappers"))
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    fields = [
        ("user", ".t.User"),
        ("spent", 1),
        ("seen", 3, "optional"),
        ("colour", 14, {"type_name": ".t.Colour"}),
        ("city", 9),
        ("at", ".google.protobuf.Timestamp"),
        ("place", 2, "repeated"),
        ("price", ".google.protobuf.DoubleValue"),
        ("raw", 12),
        ("users", ".t.User", "repeated"),
    ]
    message_type(file, "Visit", fields)
    message_type(file, "User", [("paid", 8), ("friend", ".t.User")])
    path = tmp_path / "visit.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    assert tables(suggested(capfd, path)) == [
        table('name = "user.paid"', "bounds = [0, 1]", STAND_IN),
        '# "user.friend": its type cannot be converted to numbers',
        table('name = "spent"', NEEDS_BOUNDS),
        table('name = "seen"', NEEDS_BOUNDS, STAND_IN),
        table('name = "colour"', 'categories = ["RED"]'),
        "\n".join(["# [[stream.features]]", '# name = "city"', ASKS_WORDS]),
        table('name = "at"', 'parts = ["hour", "weekday", "month"]', STAND_IN),
        table('name = "place"', "size = 0  # numbers in each list", NEEDS_BOUNDS),
        table('name = "price"', NEEDS_BOUNDS, STAND_IN),
        '# "raw": its type cannot be converted to numbers',
        '# "users": its type cannot be converted to numbers',
    ]
    done = call(capfd, "features", "suggest", path, "--message", "t.User")
    assert tables(done.stdout)[0] == table('name = "paid"', "bounds = [0, 1]")
    done = call(capfd, "features", "suggest", path, "--message", "t.Nobody")
    assert (done.returncode, done.stderr) == (2, f"error: {path}: the schema has no message 't.Nobody'\n")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_the_schema_of_a_table_becomes_features(suffix: str, capfd: Capture, tmp_path: Path) -> None:
    types = {
        "age": pa.int32(),
        "user": pa.struct([pa.field("paid", pa.bool_(), nullable=False)]),
        "at": pa.timestamp("us"),
        "city": pa.dictionary(pa.int8(), pa.string()),
        "place": pa.list_(pa.float32(), 2),
        "raw": pa.binary(),
    }
    schema = pa.schema([pa.field(name, type_, nullable=False) for name, type_ in types.items()])
    path = tmp_path / f"t{suffix}"
    empty = schema.empty_table()
    if suffix == ".parquet":
        pyarrow.parquet.write_table(empty, path)
    else:
        make = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
        with make(str(path), schema) as writer:
            writer.write_table(empty)
    assert tables(suggested(capfd, path)) == [
        table('name = "age"', NEEDS_BOUNDS),
        table('name = "user.paid"', "bounds = [0, 1]"),
        table('name = "at"', 'parts = ["hour", "weekday", "month"]'),
        "\n".join(["# [[stream.features]]", '# name = "city"', ASKS_WORDS]),
        table('name = "place"', "size = 2", NEEDS_BOUNDS),
        '# "raw": its type cannot be converted to numbers',
    ]


def test_what_is_left_to_fill_in_is_asked_for_by_its_name(capfd: Capture, tmp_path: Path) -> None:
    (tmp_path / "visit.avsc").write_text(json.dumps(AVRO))
    text = SETTINGS + suggested(capfd, tmp_path / "visit.avsc")
    config = tmp_path / "stream.toml"
    config.write_text(text)
    done = call(capfd, "config", "check", "--config", str(config))
    assert done.returncode == 2
    places = [line.split(": ")[2].removeprefix("stream.features.") for line in done.stderr.splitlines()]
    assert sorted(places) == ["0.bounds", "1.bounds", "5.bounds", "5.size"]
    config.write_text(text.replace("bounds = []", "bounds = [0, 9]").replace("size = 0", "size = 2"))
    assert call(capfd, "config", "check", "--config", str(config)).returncode == 0


def test_values_of_records_that_cannot_be_decoded_are_counted_too(
    capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "stream.toml"
    nested = '{name = "when", path = "at.ms", unit = "ms", parts = ["hour"]}'
    config.write_text(f"{SETTINGS}{FEATURES.rstrip()[:-1]}, {nested}]\n")
    lines = (
        b'{"age": 1e400, "country": "DE", "at": {"ms": 1700000000000}}',
        b'{"age": 5, "country": "DE", "at": 5}',
        b'{"age": 5, "country": "DE", "at": {"ms": 1700000000}}',
        b"[",
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines))))
    done = call(capfd, "features", "check", "-", "--config", str(config))
    assert done.stdout.splitlines()[:3] == [
        "age: 1 refused",
        "country: fits every record",
        "when: 1 refused, 1 in 1970, set the unit that the numbers count",
    ]
    assert done.stdout.splitlines()[-1] == "3 of 4 records are null"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    done = call(capfd, "features", "check", "-", "--config", str(config))
    assert (done.returncode, done.stderr) == (2, "error: -: has no line with an object\n")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.json", b"{", "Expecting"),
        ("x.json", b'{"a": 1}\n{"a": 2}', "it is not a schema, which is one JSON document"),
        ("x.json", b"5", "it is not a JSON Schema of objects"),
        ("x.json", b"{}", "it is not a JSON Schema of objects"),
        ("x.json", b'{"properties": {}}', "its schema has no fields"),
        ("x.json", b'{"properties": {"a": {"anyOf": 5}}}', "it is not a schema"),
        ("x.json", b"[" * 100_000, "x.json"),
        ("x.avsc", b'"string"', "it is not an Avro schema of records"),
        ("x.avsc", b'{"type": "record", "fields": [{}]}', "it is not a schema"),
        ("x.parquet", b"PAR1", "x.parquet"),
        ("x.arrow", b"ARROW1", "x.arrow"),
        ("x.arrow", b"", "x.arrow"),
        ("x.json", b"\xff", "x.json"),
        ("none.json", None, "No such file"),
    ],
)
def test_a_wrong_schema_is_one_line(
    name: str, content: bytes | None, words: str, capfd: Capture, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = call(capfd, "features", "suggest", tmp_path / name)
    one_line(done, 2, words)
    assert done.stdout == ""


FEATURES = """\
features = [{name = "age", bounds = [0, 120], missing = 40}, {name = "country", categories = ["DE", "FR"]}]
"""
SAMPLE: list[Any] = [
    {"age": 30, "country": "DE"},
    {"country": "DE"},
    {"age": 500, "country": "PL"},
    {"age": "x", "country": 1.5},
    {"age": 1},
    [1],
]


def test_a_sample_is_counted_feature_by_feature(capfd: Capture, tmp_path: Path, monkeypatch: Patch) -> None:
    config = tmp_path / "stream.toml"
    config.write_text(SETTINGS + FEATURES)
    sample = tmp_path / "sample.jsonl"
    sample.write_text("\n".join(map(json.dumps, SAMPLE)) + "\n\n")

    def check(file: object, *more: str, given: str = "") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        return call(capfd, "features", "check", file, "--config", config, *more)

    done = check(sample)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "age: 1 missing, 1 refused, 1 clamped",
        "country: 1 missing, 2 refused, 1 outside categories",
        "record 4: field 'age' is 'x', which is not a number",
        "record 5: field 'country' is missing, and has no stand-in: set missing of its feature",
        "record 6: it is not a JSON object with these fields: Expected `object`, got `int`",
        "3 of 6 records are null",
    ]
    found = json.loads(check(sample, "--json").stdout)
    assert (found["records"], found["null"], found["unread"]) == (6, 3, 1)
    of_age, of_country = found["features"]
    assert of_age == {
        **{"name": "age", "missing": 1, "refused": 1, "clamped": 1},
        **{"in_categories": 0, "outside_categories": 0, "in_1970": 0},
    }
    assert (of_country["in_categories"], of_country["outside_categories"]) == (2, 1)
    done = check("-", given="\n".join(map(json.dumps, SAMPLE[:3])))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 of 3 records are null")
    # A message of several objects is a record of several rows, which pairs read as null.
    config.write_text(f'{SETTINGS}estimator = "private-oja"\noptions = {{ clip_radius = 1.0 }}\n{FEATURES}')
    done = check("-", given=json.dumps(SAMPLE[:2]))
    reason = 'it has 2 rows, but centering = "pairs" reads records of one row'
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [f"record 1: {reason}", "1 of 1 records are null"]


def test_a_misspelt_vocabulary_is_a_warning(capfd: Capture, tmp_path: Path) -> None:
    config, sample = tmp_path / "stream.toml", tmp_path / "sample.jsonl"
    sample.write_text('{"by": "card", "at": "b"}\n{"at": "a"}\n{"by": "cash", "at": "a"}\n')
    for other in ("true", "false"):
        by = f'{{name = "by", categories = ["Card", "Cash"], missing = "Cash", other = {other}}}'
        config.write_text(f'{SETTINGS}features = [{by}, {{name = "at", categories = ["a"]}}]\n')
        done = call(capfd, "features", "check", sample, "--config", config)
        assert done.stdout.splitlines() == [
            "by: 1 missing, 2 outside categories",
            "at: 1 outside categories",
            "0 of 3 records are null",
        ]
        one_line(done, 0, "warning: by: no record has one of its categories: correct their spelling")
