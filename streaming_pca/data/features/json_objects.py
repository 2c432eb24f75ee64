"""Reader of JSON objects: the values of a map's fields, by a decoder that skips all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from streaming_pca.data.features.paths import Path, find, is_index

_Getter = Callable[[Any], Any]


class JsonObjects:
    """Decoder of JSON objects to records, and getters of their fields.

    Parameters
    ----------
    places : sequence of paths
        Places of the fields that are read.

    Attributes
    ----------
    decode : callable
        Bytes to a record. It raises for anything but one object, in UTF-8. The last of two
        members of one name counts.
    getters : list of callable
        Record to the value of each field, None where it is absent or null.

    Notes
    -----
    Fields are read with any type: each feature refuses wrong ones itself.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        tree: dict[str, Any] = {}
        for place in places:
            node = tree
            for name in place:
                node = node.setdefault(name, {})
        try:
            record = _struct(tree)
        except ValueError:
            # A name that no struct can have, with quotes for example.
            self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(dict[str, Any]).decode
            self.getters: list[_Getter] = [_found(place) for place in places]
        else:
            self.decode = msgspec.json.Decoder(record).decode
            self.getters = [_getter(tree, place) for place in places]


def _struct(tree: dict[str, Any]) -> type[msgspec.Struct]:
    """Return a struct of optional fields f0, f1, ... for the names below a node."""
    fields: list[tuple[str, Any, Any]] = []
    renamed: dict[str, str] = {}
    for i, (name, below) in enumerate(tree.items()):
        renamed[f"f{i}"] = name
        fields.append((f"f{i}", _struct(below) | None if _is_object(below) else Any, None))
    # Untracked by the garbage collector, which would list each of millions.
    return msgspec.defstruct("JsonRecord", fields, rename=renamed, gc=False)


def _is_object(below: dict[str, Any]) -> bool:
    """Return whether a field is an object, rather than a value or perhaps a list."""
    return bool(below) and not any(map(is_index, below))


def _getter(tree: dict[str, Any], place: Path) -> _Getter:
    attributes: list[str] = []
    node = tree
    for name in place:
        attributes.append(f"f{list(node).index(name)}")
        node = node[name]
        if not _is_object(node):
            break
    rest = place[len(attributes) :]
    if len(attributes) == 1 and not rest:
        return attrgetter(attributes[0])

    def get(record: Any) -> Any:
        for attribute in attributes:
            if record is None:
                return None
            record = getattr(record, attribute)
        return find(record, rest)

    return get


def _found(place: Path) -> _Getter:
    return lambda record: find(record, place)
