"""Key columns as bytes: numpy and Arrow columns turned into the streams of `key_encoding`, many rows at a time.

A column becomes one or two segments a batch of rows, each a matrix of bytes with lengths; NULLs are told by a mask. Types without
a vectorised form (nested ones, jsonb, int256, vector, wide decimals) go through the scalar encoder row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.key_encoding import encoder
from magnetar.hashing.key_types import KeyType
from magnetar.hashing.vectorized.batch import Bytes, KeyBatch, Lengths, arrow_bytes, ragged_batch
from magnetar.hashing.vectorized.scalars import FIXED_WIDTH, INTEGERS, fixed_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

Valid: TypeAlias = "npt.NDArray[np.bool_]"
Segment: TypeAlias = "tuple[Bytes, Lengths | int, list[tuple[int, bytes]]]"
"""Bytes (rows, width), the length of each row or of all, and rows too long for the matrix with their whole bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """One key column. `segments(start, stop)` gives the bytes of these rows; where `valid` is False the value is NULL."""

    key_type: KeyType
    rows: int
    valid: Valid | None
    segments: Callable[[int, int], list[Segment]]
    integers: npt.NDArray[Any] | None = None
    """The values themselves where they are whole numbers of the type's own width: the lane tables take them directly."""


def column(values: Any, key_type: KeyType | None) -> Column:
    """A column from a numpy array (masked or not), an Arrow array or a list; the type from the array where it is not given."""
    if hasattr(values, "combine_chunks") and hasattr(values, "chunks"):
        values = values.combine_chunks()
        if hasattr(values, "chunks"):
            values = values.chunk(0)
    if hasattr(values, "buffers") and hasattr(values, "type"):
        return _from_arrow(values, key_type)
    if isinstance(values, np.ma.MaskedArray):
        return _from_numpy(np.asarray(values.data), key_type, ~np.ma.getmaskarray(values))
    if isinstance(values, np.ndarray):
        return _from_numpy(values, key_type, None)
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        if key_type is None:
            raise KeyEncodingError("the type of a list of values must be given")
        return _from_values(values, key_type)
    raise KeyEncodingError(
        f"cannot take a key column from {type(values).__name__}: give a numpy or Arrow array or a list"
    )


def _guess(dtype: np.dtype[Any]) -> KeyType:
    names = {
        "b1": "boolean", "i1": "tinyint", "i2": "smallint", "i4": "integer", "i8": "bigint", "f4": "real", "f8": "double",
    }  # fmt: skip
    name = names.get(f"{dtype.kind}{dtype.itemsize}")
    if name is None:
        name = {"U": "varchar", "S": "bytea", "M": "timestamp", "m": "interval"}.get(dtype.kind)
    if name is None:
        raise KeyEncodingError(f"no vnode encoding is implied by numpy type {dtype}: pass types")
    return KeyType(name)


def _from_numpy(values: npt.NDArray[Any], key_type: KeyType | None, valid: Valid | None) -> Column:
    if values.ndim != 1:
        raise KeyEncodingError(f"a key column has {values.ndim} dimensions: give one")
    key_type = key_type or _guess(values.dtype)
    kind = values.dtype.kind
    if kind in "Mm":
        absent = np.isnat(values)
        if absent.any():
            valid = ~absent if valid is None else valid & ~absent
    if key_type.name in FIXED_WIDTH and kind != "O":
        return _fixed(values, key_type, valid)
    if key_type.name in ("varchar", "bytea") and kind in "SU":
        if kind == "U" and key_type.name == "bytea":
            raise KeyEncodingError("a text column is not bytea: encode it first")
        return _text_array(values, key_type, valid)
    items = values.tolist()
    if valid is not None:
        items = [item if known else None for item, known in zip(items, valid.tolist(), strict=True)]
    return _from_values(items, key_type)


def _fixed(values: npt.NDArray[Any], key_type: KeyType, valid: Valid | None) -> Column:
    if valid is not None and not valid.all():
        # What lies under a mask may be anything: NaT, garbage, a value out of range.
        values = np.where(valid, values, np.zeros((), values.dtype))
    else:
        valid = None
    dtype = INTEGERS.get(key_type.name)
    integers = values if dtype is not None and values.dtype == dtype else None

    def segments(start: int, stop: int) -> list[Segment]:
        matrix = fixed_bytes(values[start:stop], key_type.name)
        return [(matrix, matrix.shape[1], [])]

    return Column(key_type, len(values), valid, segments, integers if valid is None else None)


def _text_array(values: npt.NDArray[Any], key_type: KeyType, valid: Valid | None) -> Column:
    def segments(start: int, stop: int) -> list[Segment]:
        items = values[start:stop].tolist()
        encoded = [item.encode() if isinstance(item, str) else item for item in items]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        return _ragged_segments(key_type, np.frombuffer(b"".join(encoded), np.uint8), offsets)

    return Column(key_type, len(values), valid, segments)


def _ragged_segments(key_type: KeyType, data: Bytes, offsets: Lengths) -> list[Segment]:
    batch, long_rows = ragged_batch(data, offsets)
    if key_type.name == "varchar":
        ended = batch.padded(batch.matrix.shape[1] + 1)
        ended[np.arange(len(batch)), batch.lengths] = 0xFF
        lengths = batch.lengths + 1
        for row, _ in long_rows:
            lengths[row] = 0
        whole = [(row, text + b"\xff") for row, text in long_rows]
        return [(ended, _one_length(KeyBatch(ended, lengths)), whole)]
    sizes = np.diff(offsets).astype("<u8").view(np.uint8).reshape(len(batch), 8)
    return [(sizes, 8, []), (batch.matrix, _one_length(batch), long_rows)]


def _one_length(batch: KeyBatch) -> Lengths | int:
    return batch.lengths if batch.uniform is None else batch.uniform


def _from_values(values: Sequence[Any], key_type: KeyType) -> Column:
    encode = encoder(key_type)

    def segments(start: int, stop: int) -> list[Segment]:
        encoded = [encode(value) for value in values[start:stop]]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        batch, long_rows = ragged_batch(np.frombuffer(b"".join(encoded), np.uint8), offsets)
        return [(batch.matrix, _one_length(batch), long_rows)]

    return Column(key_type, len(values), None, segments)


_ARROW_NUMPY: Final = {
    "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8",
    "float": "f4", "double": "f8", "date64[ms]": "M8[ms]",
}  # fmt: skip


def _from_arrow(array: Any, key_type: KeyType | None) -> Column:
    if str(array.type).startswith("dictionary"):
        array = array.dictionary_decode()
    key_type = key_type or KeyType.from_arrow(array.type)
    text = str(array.type)
    valid = _arrow_valid(array)
    if key_type.name == "boolean" and text == "bool":
        return _fixed(_bits(array.buffers()[1], array.offset, len(array)), key_type, valid)
    if key_type.name in ("varchar", "bytea") and text in (
        "string", "binary", "large_string", "large_binary", "string_view", "binary_view",
    ):  # fmt: skip
        data, offsets = arrow_bytes(array, nulls=True)
        return Column(
            key_type, len(array), valid, lambda start, stop: _ragged_segments(key_type, data, offsets[start : stop + 1])
        )
    if text == "date32[day]" and key_type.name == "date":
        days = np.frombuffer(array.buffers()[1], "<i4")[array.offset : array.offset + len(array)]
        return _fixed(days.astype("M8[D]"), key_type, valid)
    dtype = _ARROW_NUMPY.get(text) or _arrow_time_dtype(text)
    if dtype is not None and key_type.name in FIXED_WIDTH:
        width = np.dtype(dtype).itemsize
        values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * width) if len(array) else None
        return _fixed(values if values is not None else np.zeros(0, dtype), key_type, valid)
    if key_type.name == "decimal" and text.startswith("decimal128"):
        return _arrow_decimal(array, key_type, valid)
    return _from_values(array.to_pylist(), key_type)


def _arrow_time_dtype(text: str) -> str | None:
    """numpy's type for Arrow's timestamps and durations; times of day go through Python."""
    for prefix, letter in (("timestamp[", "M8"), ("duration[", "m8")):
        if text.startswith(prefix):
            return f"{letter}[{text[len(prefix) :].split(',')[0].rstrip(']')}]"
    return None


def _arrow_valid(array: Any) -> Valid | None:
    if array.null_count == 0:
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _bits(buffer: Any, offset: int, count: int) -> Valid:
    packed = np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)
    return np.unpackbits(packed, count=offset + count, bitorder="little")[offset:].astype(np.bool_)


def _arrow_decimal(array: Any, key_type: KeyType, valid: Valid | None) -> Column:
    """128-bit decimals: vectorised where the coefficient fits 63 bits, which most do."""
    scale = array.type.scale
    words = np.frombuffer(array.buffers()[1], "<i8", 2 * len(array), array.offset * 16).reshape(len(array), 2)
    low, high = words[:, 0], words[:, 1]
    narrow = (high == (low >> 63)) & (low != np.iinfo(np.int64).min)
    if valid is not None:
        narrow |= ~valid
    if not bool(narrow.all()) or not 0 <= scale <= 28:
        return _from_values(array.to_pylist(), key_type)

    def segments(start: int, stop: int) -> list[Segment]:
        matrix = decimal_matrix(low[start:stop], scale)
        return [(matrix, matrix.shape[1], [])]

    return Column(key_type, len(array), valid, segments)


def decimal_matrix(coefficients: npt.NDArray[np.int64], scale: int) -> Bytes:
    """Bytes (rows, 24) of decimals `coefficient * 10**-scale` within 63 bits and scale 0 to 28."""
    negative = coefficients < 0
    rest = np.abs(coefficients)
    scales = np.full(len(rest), scale, np.uint32)
    for _ in range(scale):
        quotient, digit = np.divmod(rest, 10)
        strip = (digit == 0) & (scales > 0)
        if not strip.any():
            break
        rest = np.where(strip, quotient, rest)
        scales -= strip
    scales[rest == 0] = 0
    out = np.zeros((len(rest), 6), "<u4")
    out[:, 0] = 1
    out[:, 2] = rest & 0xFFFFFFFF
    out[:, 3] = rest >> 32
    out[:, 5] = scales << np.uint32(16) | (negative.astype(np.uint32) << np.uint32(31))
    return out.view(np.uint8).reshape(len(rest), 24)
