"""Reader of Avro records: the values of a map's fields, by functions made from the schema.

Libraries that read Avro trust their payloads: a count of 2**62 items, a length below zero or records nested
a million times make them loop, misread or crash. Here every step takes at least one byte, only values that
features read are made, and the steps of a payload are bounded by its length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from streaming_pca.data.features.avro.schema import AvroSchema, type_name
from streaming_pca.data.features.avro.values import (
    PLAIN,
    Value,
    block,
    choice,
    double,
    logical,
    long,
    single,
    sized,
    skip_long,
    skip_sized,
)
from streaming_pca.data.features.records import NOTHING, REGISTERED_BYTES, Node, Path, is_index, path_tree
from streaming_pca.data.payloads import MalformedPayload
from streaming_pca.text import first_line

Skip = Callable[[bytes, int, int], int]
"""Takes a payload, a place in it and a depth; returns the place after a value."""
Read = Callable[[bytes, int, list[Any]], int]
"""Takes a payload, a place in it and the slots to fill; returns the place after a value."""

_DEEPEST = 200  # most values within one another


class AvroRecords:
    """Decoder of Avro records by the writer's schema, and getters of their fields.

    ``absent`` has the places without a value in the schema. A payload that begins with a zero, like
    Confluent's wire format, is read as such if exactly one record follows its five bytes; otherwise the
    record begins with the payload.

    Raises ValueError, one line about the schema, or LibraryMissing.
    """

    def __init__(self, data: bytes, places: Sequence[Path]) -> None:
        root, slots = path_tree(places)
        self._empty = [None] * (max(slots, default=-1) + 1)
        schema = AvroSchema(data)
        compiler = _Compiler(schema)
        try:
            self._read = compiler.read(schema.root, root)
        except RecursionError:
            raise ValueError("the schema nests too deeply") from None
        except (KeyError, TypeError, struct.error) as error:
            raise ValueError(f"not an Avro schema: {type(error).__name__}: {first_line(error)}") from None
        self.getters: list[Callable[[Any], Any]] = [itemgetter(slot) for slot in slots]
        self.absent = tuple(
            place for place, slot in zip(places, slots, strict=True) if slot not in compiler.found
        )

    def decode(self, value: bytes) -> list[Any]:
        if value[:1] == b"\0":
            with suppress(Exception):
                return self.decode_registered(value)
        return self._decode(value, 0)

    def decode_registered(self, value: bytes) -> list[Any]:
        """Return the record after a schema's id, or raise an error of any kind."""
        return self._decode(value, REGISTERED_BYTES)

    def _decode(self, value: bytes, at: int) -> list[Any]:
        out = self._empty.copy()
        try:
            end = self._read(value, at, out)
        except (IndexError, struct.error):
            raise MalformedPayload("it ends within the record") from None
        if end != len(value):
            raise MalformedPayload("more follows the record" if end < len(value) else "it ends early")
        return out


class _Compiler:
    """Maker of functions that read a schema's types. ``found`` has the slots that they fill."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._skips: dict[str, Skip] = {}
        self.found: set[int] = set()

    def skip(self, type_: Any) -> Skip:
        type_ = self._schema.definition(type_)
        width = self._schema.width(type_)
        if width is not None:
            return lambda data, at, deep: at + width
        kind = type_name(type_)
        if kind in ("record", "error"):
            return self._skip_record(type_)
        if kind in ("int", "long"):
            return skip_long
        if kind in ("bytes", "string"):
            return skip_sized
        if kind == "enum":
            symbols = len(type_["symbols"])
            return lambda data, at, deep: choice(data, at, symbols, "symbol")[1]
        if kind == "union":
            branches = [self.skip(each) for each in type_]

            def skip(data: bytes, at: int, deep: int) -> int:
                index, at = choice(data, at, len(branches), "branch")
                return branches[index](data, at, deep + 1)

            return skip
        item = self._item_skip(type_)
        fewest = self._fewest_of_item(type_)

        def skip_blocks(data: bytes, at: int, deep: int) -> int:
            while True:
                count, end, at = block(data, at, fewest)
                if count == 0:
                    return at
                at = item(data, at, deep + 1, count) if end is None else end

        return skip_blocks

    def _fewest_of_item(self, type_: Any) -> int:
        # A map's item has a key of at least one byte.
        of_map = type_name(type_) == "map"
        return int(of_map + self._schema.fewest(type_["values" if of_map else "items"]))

    def _item_skip(self, type_: Any) -> Callable[[bytes, int, int, int], int]:
        """Return the function that passes over a number of items."""
        if type_name(type_) == "map":
            value = self.skip(type_["values"])

            def skip_pairs(data: bytes, at: int, deep: int, count: int) -> int:
                for _ in range(count):
                    at = value(data, skip_sized(data, at, deep), deep)
                return at

            return skip_pairs
        width = self._schema.width(type_["items"])
        if width is not None:
            return lambda data, at, deep, count: at + count * width
        each = self.skip(type_["items"])

        def skip_items(data: bytes, at: int, deep: int, count: int) -> int:
            for _ in range(count):
                at = each(data, at, deep)
            return at

        return skip_items

    def _skip_record(self, type_: Any) -> Skip:
        name = type_["name"]
        if name in self._skips:
            return self._skips[name]
        # A record within itself is resolved once its definition is complete.
        self._skips[name] = lambda data, at, deep: self._skips[name](data, at, deep)
        steps: list[Skip] = []
        width = 0
        for field in type_["fields"]:
            of_field = self._schema.width(field["type"])
            if of_field is not None:
                width += of_field
                continue
            if width:
                steps.append(_passing(width))
                width = 0
            steps.append(self.skip(field["type"]))
        if width:
            steps.append(_passing(width))

        def skip(data: bytes, at: int, deep: int) -> int:
            deep += 1
            if deep > _DEEPEST:
                raise MalformedPayload("it nests too deeply")
            for step in steps:
                at = step(data, at, deep)
            return at

        self._skips[name] = skip
        return skip

    def read(self, type_: Any, node: Node) -> Read:
        type_ = self._schema.definition(type_)
        kind = type_name(type_)
        if kind == "null":
            return lambda data, at, out: at
        if kind == "union":
            return self._read_union(type_, node)
        if kind in ("record", "error") and node.slot is None:
            return self._read_record(type_, node)
        if kind == "map" and node.slot is None:
            return self._read_map(type_, node)
        if kind == "array" and node.slot is None:
            return self._read_array(type_, node)
        return self._read_leaf(type_, node)

    def _read_leaf(self, type_: Any, node: Node) -> Read:
        """Return the function that fills the slot of a node; items of its list may have slots too."""
        slot, kind = node.slot, type_name(type_)
        items = [
            (int(name), each.slot)
            for name, each in node.below.items()
            if kind == "array" and is_index(name) and each.slot is not None
        ]
        named = {slot, *(each for _, each in items)}
        others = [each for each in node.slots if each not in named]
        if kind not in ("record", "error", "map"):
            self.found |= {each for each in named if each is not None}
        value = self._list(type_) if kind == "array" else self._scalar(type_)
        if slot is None or items or others:

            def read(data: bytes, at: int, out: list[Any]) -> int:
                found, at = value(data, at)
                if slot is not None:
                    out[slot] = found
                for place, each in items:
                    out[each] = found[place] if place < len(found) else None
                for each in others:
                    out[each] = NOTHING
                return at

            return read
        of_slot: int = slot
        if kind in ("int", "long") and value is long:

            def read_long(data: bytes, at: int, out: list[Any]) -> int:
                byte = data[at]
                if byte < 128:
                    out[of_slot] = (byte >> 1) ^ -(byte & 1)
                    return at + 1
                out[of_slot], at = long(data, at)
                return at

            return read_long
        if kind in ("float", "double"):
            unpack, width = (single, 4) if kind == "float" else (double, 8)

            def read_float(data: bytes, at: int, out: list[Any]) -> int:
                (out[of_slot],) = unpack(data, at)
                return at + width

            return read_float

        def read_value(data: bytes, at: int, out: list[Any]) -> int:
            out[of_slot], at = value(data, at)
            return at

        return read_value

    def _read_record(self, type_: Any, node: Node) -> Read:
        steps: list[Read] = []
        layout: list[tuple[str, int | None]] = []
        for field in type_["fields"]:
            below = node.below.get(field["name"])
            width = self._schema.width(field["type"])
            kind = type_name(field["type"])
            if below is None and width is not None:
                layout.append((f"{width}x", None))
            elif below is not None and not below.below and kind in ("float", "double"):
                assert below.slot is not None
                self.found.add(below.slot)
                layout.append((kind[0], below.slot))
            else:
                steps += _of_layout(layout)
                layout = []
                if below is not None:
                    steps.append(self.read(field["type"], below))
                else:
                    steps.append(_shallow(self.skip(field["type"])))
        steps += _of_layout(layout)
        if len(steps) == 1:
            return steps[0]

        def read(data: bytes, at: int, out: list[Any]) -> int:
            for step in steps:
                at = step(data, at, out)
            return at

        return read

    def _read_union(self, types: list[Any], node: Node) -> Read:
        branches = [self.read(each, node) for each in types]
        count = len(branches)

        def read(data: bytes, at: int, out: list[Any]) -> int:
            index, at = choice(data, at, count, "branch")
            return branches[index](data, at, out)

        kinds = [type_name(each) for each in types]
        if count != 2 or kinds.count("null") != 1:
            return read
        null = 2 * kinds.index("null")
        some, other = 2 - null, branches[1 - null // 2]

        def read_optional(data: bytes, at: int, out: list[Any]) -> int:
            byte = data[at]
            if byte == some:
                return other(data, at + 1, out)
            return at + 1 if byte == null else read(data, at, out)

        if type_name(types[1 - null // 2]) != "double" or node.slot is None or node.below:
            return read_optional
        slot: int = node.slot

        def read_optional_double(data: bytes, at: int, out: list[Any]) -> int:
            byte = data[at]
            if byte == some:
                (out[slot],) = double(data, at + 1)
                return at + 9
            return at + 1 if byte == null else read(data, at, out)

        return read_optional_double

    def _read_map(self, type_: Any, node: Node) -> Read:
        wanted = {
            name.encode(): (self.read(type_["values"], each), each.slots) for name, each in node.below.items()
        }
        skip = self.skip(type_["values"])
        fewest = self._fewest_of_item(type_)

        def read(data: bytes, at: int, out: list[Any]) -> int:
            while True:
                count, end, at = block(data, at, fewest)
                if count == 0:
                    return at
                for _ in range(count):
                    key, at = sized(data, at)
                    if key not in wanted:
                        at = skip(data, at, 0)
                        continue
                    value, slots = wanted[key]
                    for slot in slots:
                        # The last of two values of one name counts.
                        out[slot] = None
                    at = value(data, at, out)
                _check_end(at, end)

        return read

    def _read_array(self, type_: Any, node: Node) -> Read:
        items = {
            int(name): self.read(type_["items"], each) for name, each in node.below.items() if is_index(name)
        }
        wrong = [slot for name, each in node.below.items() if not is_index(name) for slot in each.slots]
        last = max(items, default=-1)
        skip = self.skip(type_["items"])
        skip_many = self._item_skip(type_)
        fewest = self._fewest_of_item(type_)

        def read(data: bytes, at: int, out: list[Any]) -> int:
            for slot in wrong:
                out[slot] = NOTHING
            place = 0
            while True:
                count, end, at = block(data, at, fewest)
                if count == 0:
                    return at
                few = min(count, max(last + 1 - place, 0))
                for index in range(place, place + few):
                    item = items.get(index)
                    at = skip(data, at, 0) if item is None else item(data, at, out)
                at = skip_many(data, at, 0, count - few)
                place += count
                _check_end(at, end)

        return read

    def _list(self, type_: Any) -> Value:
        item = self._scalar(type_["items"])
        kind = type_name(type_["items"])
        fewest = self._fewest_of_item(type_)

        def read(data: bytes, at: int) -> tuple[list[Any], int]:
            found: list[Any] = []
            while True:
                count, end, at = block(data, at, fewest)
                if count == 0:
                    return found, at
                if kind in ("float", "double"):
                    found += struct.unpack_from(f"<{count}{kind[0]}", data, at)
                    at += count * fewest
                else:
                    for _ in range(count):
                        value, at = item(data, at)
                        found.append(value)
                _check_end(at, end)

        return read

    def _scalar(self, type_: Any) -> Value:
        """Return the function that reads one value; types without a single value give NOTHING."""
        type_ = self._schema.definition(type_)
        kind = type_name(type_)
        if kind == "union":
            branches = [self._scalar(each) for each in type_]

            def read(data: bytes, at: int) -> tuple[Any, int]:
                index, at = choice(data, at, len(branches), "branch")
                return branches[index](data, at)

            return read
        if kind == "enum":
            symbols = tuple(type_["symbols"])

            def read_symbol(data: bytes, at: int) -> tuple[Any, int]:
                index, at = choice(data, at, len(symbols), "symbol")
                return symbols[index], at

            return read_symbol
        plain = PLAIN.get(kind)
        if kind == "fixed":
            size = int(type_["size"])

            def read_fixed(data: bytes, at: int) -> tuple[Any, int]:
                if size > len(data) - at:
                    raise IndexError
                return data[at : at + size], at + size

            plain = read_fixed
        if plain is None:
            skip = self.skip(type_)
            return lambda data, at: (NOTHING, skip(data, at, 0))
        name = type_.get("logicalType") if isinstance(type_, dict) else None
        of = logical(name, kind, type_)
        if of is None:
            return plain
        convert, plain_value = of, plain

        def read_logical(data: bytes, at: int) -> tuple[Any, int]:
            value, at = plain_value(data, at)
            return convert(value), at

        return read_logical


def _check_end(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise MalformedPayload("the length of a block differs from its declared length")


def _passing(width: int) -> Skip:
    return lambda data, at, deep: at + width


def _shallow(skip: Skip) -> Read:
    return lambda data, at, out: skip(data, at, 0)


def _of_layout(layout: Sequence[tuple[str, int | None]]) -> list[Read]:
    """Return the functions, none or one, that read neighbours of fixed widths together."""
    slots = [slot for _, slot in layout if slot is not None]
    whole = struct.Struct("<" + "".join(code for code, _ in layout))
    unpack, width = whole.unpack_from, whole.size
    if not width:
        return []
    if not slots:
        return [lambda data, at, out: at + width]
    first, end = slots[0], slots[0] + len(slots)
    if slots == list(range(first, end)):

        def read(data: bytes, at: int, out: list[Any]) -> int:
            out[first:end] = unpack(data, at)
            return at + width

        return [read]

    def read_apart(data: bytes, at: int, out: list[Any]) -> int:
        for slot, value in zip(slots, unpack(data, at), strict=True):
            out[slot] = value
        return at + width

    return [read_apart]
