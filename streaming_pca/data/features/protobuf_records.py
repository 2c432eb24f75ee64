"""Reader of Protobuf messages: the values of a map's fields, by messages with only these fields.

The library makes an object for each message of a list, as large as its type: two bytes of a payload could
take kilobytes. So new message types are made from the stream's descriptors, with only the fields that
features read; lists and maps are bytes in them, and only the needed ones are parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

from streaming_pca.data.features.records import (
    NOTHING,
    REGISTERED_BYTES,
    Node,
    Path,
    is_index,
    library,
    path_tree,
)
from streaming_pca.data.features.values import utc_time
from streaming_pca.data.payloads import MalformedPayload
from streaming_pca.text import first_line

Parse = Callable[[bytes], Any]
Fill = Callable[[Any, list[Any]], None]
"""Takes a message and the slots to fill."""
Convert = Callable[[Any], Any]

_MOST_BYTES = 2**24
_MOST_INDEXES = 32
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_TIMESTAMP = "google.protobuf.Timestamp"
_COMMON = ("timestamp", "wrappers", "duration", "struct", "any", "empty", "field_mask")
"""Files of the library that a set of descriptors may lack."""
_INT32, _BOOL, _STRING, _GROUP, _MESSAGE, _BYTES, _ENUM = 5, 8, 9, 10, 11, 12, 14
_OPTIONAL, _REPEATED = 1, 3


class ProtobufRecords:
    """Decoder of Protobuf messages, and getters of their fields.

    ``data`` is a set of file descriptors, as ``protoc --descriptor_set_out`` writes it, and ``message`` the
    full name of the message; without it, the first one of the last file. ``absent`` has the places without a
    value. No message begins with a zero: a payload that does is Confluent's wire format, and its indexes
    must be those of this message in its file.

    Raises ValueError, one line about the schema, or LibraryMissing.
    """

    def __init__(self, data: bytes, message: str | None, places: Sequence[Path]) -> None:
        root, slots = path_tree(places)
        self._empty = [None] * (max(slots, default=-1) + 1)
        type_ = message_type(data, message)
        # Writers differ in whether the entries of maps, which are messages too, count.
        self._indexes = [_message_indexes(type_, with_maps) for with_maps in (False, True)]
        builder = _Builder()
        try:
            self._parse, self._fill = builder.message(
                lambda made, name: builder.fields(type_, root, made, name)
            )
        except RecursionError:
            raise ValueError("the message nests too deeply") from None
        self.getters: list[Callable[[Any], Any]] = [itemgetter(slot) for slot in slots]
        self.absent = tuple(
            place for place, slot in zip(places, slots, strict=True) if slot not in builder.found
        )

    def decode(self, value: bytes) -> list[Any]:
        if value[:1] == b"\0":
            return self.decode_registered(value)
        return self._decode(value)

    def decode_registered(self, value: bytes) -> list[Any]:
        """Return the record after an id and indexes, or raise an error of any kind."""
        indexes, at = _read_indexes(value, REGISTERED_BYTES)
        if indexes not in self._indexes:
            raise MalformedPayload(f"it is message {indexes} of its file, not {self._indexes[0]}")
        return self._decode(value[at:])

    def _decode(self, value: bytes) -> list[Any]:
        out = self._empty.copy()
        self._fill(self._parse(value), out)
        return out


def _library(load: Callable[[], Any]) -> Any:
    return library("protobuf", "protobuf", load)


def _descriptors_library() -> Any:
    return import_module("google.protobuf.descriptor_pb2")


def _pool_library() -> Any:
    return import_module("google.protobuf.descriptor_pool")


def message_type(data: bytes, name: str | None) -> Any:
    """Return the descriptor of a message; without a name, of the first one of the last file.

    ValueError in one line, if the data has no such message; LibraryMissing.
    """
    descriptors, pools = _library(_descriptors_library), _library(_pool_library)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"the schema is longer than {_MOST_BYTES} octets")
    try:
        given = descriptors.FileDescriptorSet.FromString(data).file
        files = {each.name: each for each in given}
        for common in _COMMON:
            module = _library(partial(import_module, f"google.protobuf.{common}_pb2"))
            if module.DESCRIPTOR.name not in files:
                found = descriptors.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
                files[found.name] = found
        pool = pools.DescriptorPool()
        for file in _in_order(files):
            pool.Add(file)
    except RecursionError:
        raise ValueError("the files depend on one another too deeply") from None
    except Exception as error:
        raise ValueError(f"it is not a set of file descriptors: {first_line(error)}") from None
    if not name:
        if not given or not given[-1].message_type:
            raise ValueError("the schema has no message")
        name = ".".join(filter(None, (given[-1].package, given[-1].message_type[0].name)))
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise ValueError(f"the schema has no message {name!r}") from None


def _in_order(files: dict[str, Any]) -> Iterator[Any]:
    """Yield each file after its imports."""
    done: set[str] = set()

    def walk(name: str) -> Iterator[Any]:
        if name not in done and name in files:
            done.add(name)
            for other in files[name].dependency:
                yield from walk(other)
            yield files[name]

    for name in files:
        yield from walk(name)


def _message_indexes(type_: Any, with_maps: bool) -> list[int]:
    """Return the places of a message in its file: of messages around it, and its own."""
    outer = type_.containing_type
    around = type_.file.message_types_by_name.values() if outer is None else outer.nested_types
    names = [each.full_name for each in around if with_maps or not each.GetOptions().map_entry]
    return [*([] if outer is None else _message_indexes(outer, with_maps)), names.index(type_.full_name)]


def _read_indexes(value: bytes, at: int) -> tuple[list[int], int]:
    count, at = _signed(value, at)
    if not 0 <= count <= _MOST_INDEXES:
        raise MalformedPayload(f"{count} message indexes")
    if count == 0:
        # The first message of a file has a short form.
        return [0], at
    indexes = []
    for _ in range(count):
        index, at = _signed(value, at)
        indexes.append(index)
    return indexes, at


def _signed(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        byte = value[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
    raise MalformedPayload("it ends within its message indexes")


class _Builder:
    """Maker of messages of the wanted fields, and of functions that fill slots from them.

    ``found`` has the slots that one of the functions fills.
    """

    def __init__(self) -> None:
        self._descriptors = _library(_descriptors_library)
        self._classes = _library(lambda: import_module("google.protobuf.message_factory"))
        self._pool = _library(_pool_library).DescriptorPool()
        self._files = 0
        self.found: set[int] = set()

    def message(self, build: Callable[[Any, str], Fill]) -> tuple[Parse, Fill]:
        """Return the parser of a message, and the function that ``build`` makes."""
        name = f"m{self._files}"
        self._files += 1
        # Explicit presence; texts and enumerations stay raw, and are interpreted here.
        file = self._descriptors.FileDescriptorProto(name=name, package=name, syntax="proto2")
        fill = build(file.message_type.add(name="M"), f".{name}.M")
        self._pool.Add(file)
        made = self._pool.FindMessageTypeByName(f"{name}.M")
        return self._classes.GetMessageClass(made).FromString, fill

    def fields(self, type_: Any, node: Node, made: Any, name: str, entry: bool = False) -> Fill:
        """Add the wanted fields of a message to a descriptor; return the function that reads them."""
        plain: list[tuple[str, int]] = []
        steps: list[Fill] = []
        oneofs: dict[str, int] = {}
        for field in type_.fields:
            below, oneof = node.below.get(field.name), field.containing_oneof
            # The other fields of a oneof replace a wanted one.
            rivals = [] if oneof is None else [each.name for each in oneof.fields]
            if below is None and not any(rival in node.below for rival in rivals):
                continue
            if below is not None and field.is_repeated and field.type == _GROUP:
                continue
            new = _add_field(made, field, f"f{field.number}")
            if len(rivals) > 1:
                if oneof.name not in oneofs:
                    oneofs[oneof.name] = len(made.oneof_decl)
                    made.oneof_decl.add(name=f"o{len(made.oneof_decl)}")
                new.oneof_index = oneofs[oneof.name]
            if field.type == _GROUP or (
                field.type == _MESSAGE and below is not None and not field.is_repeated
            ):
                new.type, new.type_name = field.type, f"{name}.M{field.number}"
                inner = made.nested_type.add(name=f"M{field.number}")
                if below is not None:
                    fill = self._body(field.message_type, below, inner, new.type_name)
                    steps.append(_within(new.name, fill, entry))
            elif below is not None and field.is_repeated:
                new.label = _REPEATED
                steps.append(self._repeated(field, below, new.name))
            elif below is not None:
                step = self._single(field, below, new.name)
                if step is None:
                    assert below.slot is not None
                    plain.append((new.name, below.slot))
                else:
                    steps.append(step)
        if not plain and len(steps) == 1:
            return steps[0]

        def fill_all(message: Any, out: list[Any]) -> None:
            for attribute, slot in plain:
                out[slot] = getattr(message, attribute)
            for step in steps:
                step(message, out)

        return fill_all

    def _body(self, type_: Any, node: Node, made: Any, name: str) -> Fill:
        """Return the function that reads a message: its fields, or the one value that it represents."""
        slot = node.slot
        if slot is None:
            return self.fields(type_, node, made, name)
        names, value_of = _special(type_)
        if names:
            self.found.add(slot)
        for field in type_.fields:
            if field.name in names:
                _add_field(made, field, field.name)
        return _setter(node, value_of)

    def _single(self, field: Any, node: Node, attribute: str) -> Fill | None:
        """Return the function that reads one value; None if the attribute is the value."""
        slot, wrong, convert = node.slot, _slots_below(node), _conversion(field)
        if slot is not None:
            self.found.add(slot)
        has_presence = field.has_presence
        if slot is not None and not wrong and convert is None and not has_presence:
            return None

        def fill(message: Any, out: list[Any]) -> None:
            if has_presence and not message.HasField(attribute):
                return
            value = getattr(message, attribute)
            if convert is not None:
                value = convert(value)
                if value is None:
                    return
            if slot is not None:
                out[slot] = value
            for each in wrong:
                out[each] = NOTHING

        return fill

    def _repeated(self, field: Any, node: Node, attribute: str) -> Fill:
        type_, slot = field.message_type, node.slot
        if type_ is not None and type_.GetOptions().map_entry and slot is None:
            return self._map(type_, node, attribute)
        items: list[tuple[int, Fill]] = []
        for name, each in node.below.items():
            if not is_index(name):
                continue
            if type_ is None:
                items.append((int(name), self._item(each)))
            else:
                items.append((int(name), self._message_item(type_, each)))
        wrong = [each for name, below in node.below.items() if not is_index(name) for each in below.slots]
        if slot is not None and type_ is None:
            self.found.add(slot)
        convert = _conversion(field)

        def fill(message: Any, out: list[Any]) -> None:
            values = getattr(message, attribute)
            if not values:
                # An empty list cannot be distinguished from a list that was not set.
                return
            if convert is not None:
                values = [value for value in map(convert, values) if value is not None]
            for each in wrong:
                out[each] = NOTHING
            if slot is not None:
                out[slot] = list(values) if type_ is None else NOTHING
            for place, item in items:
                if place < len(values):
                    item(values[place], out)

        return fill

    def _item(self, node: Node) -> Fill:
        if node.slot is not None:
            self.found.add(node.slot)
        return _setter(node, lambda value: value)

    def _message_item(self, type_: Any, node: Node) -> Fill:
        parse, fill = self.message(lambda made, name: self._body(type_, node, made, name))
        return lambda data, out: fill(parse(data), out)

    def _map(self, type_: Any, node: Node, attribute: str) -> Fill:
        key = type_.fields_by_name["key"]
        parse_key = self.message(lambda made, name: _no_fill(_add_field(made, key, "key")))[0]
        wanted: dict[Any, tuple[Parse, Fill, list[int]]] = {}
        for text, each in node.below.items():
            name = _map_key(text, key.type)
            if name is not None:
                entry = Node()
                entry.below["value"] = each
                wanted[name] = (*self._entry(type_, entry), each.slots)

        def fill(message: Any, out: list[Any]) -> None:
            for data in getattr(message, attribute):
                found = wanted.get(parse_key(data).key)
                if found is not None:
                    parse, fill_entry, slots = found
                    for slot in slots:
                        # The last of two values of one name counts.
                        out[slot] = None
                    fill_entry(parse(data), out)

        return fill

    def _entry(self, type_: Any, node: Node) -> tuple[Parse, Fill]:
        return self.message(lambda made, name: self.fields(type_, node, made, name, entry=True))


def _add_field(made: Any, field: Any, name: str) -> Any:
    """Add a field to a descriptor; texts, messages and enumerations have their plain forms."""
    kind = {_STRING: _BYTES, _MESSAGE: _BYTES, _ENUM: _INT32}.get(field.type, field.type)
    new = made.field.add(name=name, number=field.number, label=_OPTIONAL, type=kind)
    if field.enum_type is not None and not field.has_presence and not field.is_repeated:
        # A field that has no presence has its first value where it is absent.
        new.default_value = str(field.enum_type.values[0].number)
    return new


def _no_fill(_: Any) -> Fill:
    return lambda message, out: None


def _within(attribute: str, fill_inner: Fill, always: bool) -> Fill:
    def fill(message: Any, out: list[Any]) -> None:
        if always or message.HasField(attribute):
            fill_inner(getattr(message, attribute), out)

    return fill


def _setter(node: Node, value_of: Convert) -> Fill:
    """Return the function that fills the slot of a node; slots below it get NOTHING."""
    slot, wrong = node.slot, _slots_below(node)

    def fill(value: Any, out: list[Any]) -> None:
        if slot is not None:
            out[slot] = value_of(value)
        for each in wrong:
            out[each] = NOTHING

    return fill


def _slots_below(node: Node) -> list[int]:
    return [slot for each in node.below.values() for slot in each.slots]


def _map_key(text: str, kind: int) -> Any:
    """Return a name as a key of a map; None if no key has that name."""
    if kind == _STRING:
        return text.encode()
    if kind == _BOOL:
        return {"true": True, "false": False}.get(text)
    return int(text) if is_index(text.removeprefix("-")) else None


def _conversion(field: Any) -> Convert | None:
    """Return the function from a plain form to a value; None if the plain form is the value."""
    if field.type == _STRING:
        return _text
    if field.type != _ENUM:
        return None
    words = {each.number: each.name for each in reversed(field.enum_type.values)}
    if field.enum_type.is_closed:
        return words.get
    # A word that this schema does not have yet is its number.
    return lambda number: words.get(number, number)


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return NOTHING


def _special(type_: Any) -> tuple[tuple[str, ...], Convert]:
    """Return the fields and the function that make a message one value; no fields for others."""
    if type_.full_name == _TIMESTAMP:
        return ("seconds", "nanos"), _time
    if type_.full_name in WRAPPERS:
        of_text = type_.fields_by_name["value"].type == _STRING
        return ("value",), (lambda message: _text(message.value)) if of_text else (
            lambda message: message.value
        )
    return (), lambda message: NOTHING


def _time(message: Any) -> Any:
    if not 0 <= message.nanos < 10**9:
        return NOTHING
    return utc_time(message.seconds * 10**6 + message.nanos // 1000, 10**6)
