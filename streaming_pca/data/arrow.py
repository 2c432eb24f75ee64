"""Reader and writer of Arrow IPC payloads, and the only import of the optional pyarrow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.payloads import MalformedPayload
from streaming_pca.errors import LibraryMissing
from streaming_pca.text import install_command

NUMBER_TYPES = {
    **{
        f"{sign}int{8 * size}": np.dtype(f"<{sign or 'i'}{size}")
        for sign in ("", "u")
        for size in (1, 2, 4, 8)
    },
    "halffloat": np.dtype("<f2"),
    "float": np.dtype("<f4"),
    "double": np.dtype("<f8"),
}
"""Number types by Arrow's names."""


def find_pyarrow() -> Any | None:
    """Return the package with its ``ipc`` module, or None if it is not installed."""
    try:
        import_module("pyarrow.ipc")
        return import_module("pyarrow")
    except ImportError:
        return None


def need_pyarrow(purpose: str) -> Any:
    """Return the package, or raise :class:`LibraryMissing` with the purpose it is needed for."""
    found = find_pyarrow()
    if found is None:
        raise LibraryMissing(f"{purpose} needs pyarrow: {install_command('arrow')}")
    return found


def rows_of_arrow(pyarrow: Any, value: bytes, dim: int, most_rows: int) -> NDArray[np.floating]:
    """Return the rows of one IPC stream's record batches, (n, dim) float32 or float64.

    The schema, the number of batches and their lengths are structure. There are ``dim`` columns of numbers in
    order (names are ignored), or one column of ``FixedSizeList`` of ``dim`` numbers. A null makes its row
    NaN. Each number is read from its own place in Arrow's buffers, so no row's numbers depend on another row.

    Raises exceptions of any kind if the bytes are not such a stream, too large, big-endian, compressed
    (decompression has no bound), or written before Arrow 1.0 (whose metadata can hide a compression).
    """
    stream = read_stream(pyarrow, value, dim, most_rows)
    dtypes = _number_types(pyarrow, next(stream), dim)
    parts = [_rows_of_batch(batch, dtypes, dim) for batch in stream]
    return np.concatenate(parts) if parts else np.zeros((0, dim), _common(dtypes))


def read_stream(pyarrow: Any, value: bytes, columns: int, most_rows: int) -> Iterator[Any]:
    """Yield the schema of one IPC stream, and then its record batches.

    ``columns``, the number that is read, bounds the metadata; ``most_rows`` bounds rows and batches.
    Errors are those of :func:`rows_of_arrow`.
    """
    reader = pyarrow.ipc.MessageReader.open_stream(pyarrow.py_buffer(value))
    schema = None
    left = batches = most_rows
    for message in reader:
        # This bounds the fields of a schema: each becomes an object much larger than its text.
        if len(message.metadata) > 2**16 + 1024 * columns:
            raise MalformedPayload("too much metadata")
        if message.metadata_version != pyarrow.ipc.MetadataVersion.V5:
            raise MalformedPayload("written before Arrow 1.0")
        if schema is None:
            if message.type != "schema":
                raise MalformedPayload("no schema")
            if is_big_endian(message.metadata):
                raise MalformedPayload("big-endian")
            schema = pyarrow.ipc.read_schema(message)
            yield schema
            continue
        if message.type != "record batch" or is_compressed(message.metadata):
            raise MalformedPayload("not a plain record batch")
        batch = pyarrow.ipc.read_record_batch(message, schema)
        left, batches = left - batch.num_rows, batches - 1
        if left < 0 or batches < 0:
            raise MalformedPayload("too many rows, or too many batches")
        yield batch
    if schema is None:
        raise MalformedPayload("no schema")


def _number_types(pyarrow: Any, schema: Any, dim: int) -> list[np.dtype[Any]]:
    types = [field.type for field in schema]
    if len(types) == 1 and pyarrow.types.is_fixed_size_list(types[0]):
        if types[0].list_size != dim:
            raise MalformedPayload(f"lists of {types[0].list_size} numbers, but dim = {dim}")
        types = [types[0].value_type]
    elif len(types) != dim:
        raise MalformedPayload(f"{len(types)} columns, but dim = {dim}")
    for each in types:
        if str(each) not in NUMBER_TYPES:
            raise MalformedPayload(f"a column of type {each}, which is not numeric")
    return [NUMBER_TYPES[str(each)] for each in types]


def _common(dtypes: list[np.dtype[Any]]) -> type[np.floating]:
    return np.float32 if all(each == np.float32 for each in dtypes) else np.float64


def _rows_of_batch(batch: Any, dtypes: list[np.dtype[Any]], dim: int) -> NDArray[np.floating]:
    n = batch.num_rows
    rows: NDArray[np.floating] = np.empty((n, dim), _common(dtypes))
    if n == 0:
        return rows
    columns = batch.columns
    if any(column.offset for column in columns):
        raise MalformedPayload("a batch that starts within its buffers")
    # Casting a signalling NaN warns, and a warning would reveal something of the record.
    with np.errstate(all="ignore"):
        if len(columns) == 1 and len(columns[0].buffers()) == 3:
            of_list, of_numbers, values = columns[0].buffers()
            rows[:] = np.frombuffer(values, dtypes[0], n * dim).reshape(n, dim)
            if of_numbers is not None:
                rows[~valid_bits(of_numbers, n * dim).reshape(n, dim)] = np.nan
            if of_list is not None:
                rows[~valid_bits(of_list, n)] = np.nan
            return rows
        for i, (column, dtype) in enumerate(zip(columns, dtypes, strict=True)):
            of_numbers, values = column.buffers()
            rows[:, i] = np.frombuffer(values, dtype, n)
            if of_numbers is not None:
                rows[~valid_bits(of_numbers, n), i] = np.nan
    return rows


def valid_bits(bitmap: Any, count: int) -> NDArray[np.bool_]:
    """Return the first bits of a bitmap."""
    packed = np.frombuffer(bitmap, np.uint8, -(-count // 8))
    return np.unpackbits(packed, count=count, bitorder="little").astype(bool)


# Numbers of fields in the tables of Arrow's format/Message.fbs and Schema.fbs.
_MESSAGE_HEADER = 2
_RECORD_BATCH_COMPRESSION = 3
_SCHEMA_ENDIANNESS = 0


def is_compressed(metadata: Any) -> bool:
    """Return whether a record batch's message declares compressed buffers.

    pyarrow decompresses while it reads a batch and does not report it before, so this reads the one field
    of the flatbuffer itself. MalformedPayload if the metadata is not such a flatbuffer.
    """
    data = memoryview(metadata)
    return _field(data, _header(data), _RECORD_BATCH_COMPRESSION) is not None


def is_big_endian(metadata: Any) -> bool:
    """Return whether a schema's message declares big-endian numbers; pyarrow does not report it."""
    data = memoryview(metadata)
    endianness = _field(data, _header(data), _SCHEMA_ENDIANNESS)
    return endianness is not None and _number(data, "<h", endianness) != 0


def _header(data: memoryview) -> int:
    place = _field(data, _number(data, "<I", 0), _MESSAGE_HEADER)
    if place is None:
        raise MalformedPayload("a message without a header")
    return place + _number(data, "<I", place)


def _field(data: memoryview, table: int, field: int) -> int | None:
    """Return the place of a table's field; None if it is absent and has its default."""
    vtable = table - _number(data, "<i", table)
    place = 4 + 2 * field
    if place + 2 > _number(data, "<H", vtable):
        return None
    offset = _number(data, "<H", vtable + place)
    return table + offset if offset else None


def _number(data: memoryview, kind: str, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(kind):
        raise MalformedPayload("an offset that leads out of the message")
    return int(struct.unpack_from(kind, data, at)[0])


def stream_of_rows(pyarrow: Any, rows: NDArray[np.floating]) -> bytes:
    """Return an uncompressed IPC stream of rows (n, d): one batch, one column of lists."""
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), rows.shape[1])
    batch = pyarrow.record_batch([lists], names=["rows"])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
