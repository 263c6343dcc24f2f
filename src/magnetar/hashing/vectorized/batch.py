"""Keys as matrices: whatever holds byte strings is cut into batches of rows, padded with zeros to the longest of each batch.

A batch is small enough to stay in the second-level cache through all passes of a hash function; that is where the speed comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from magnetar.hashing.errors import KeyEncodingError

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS_PER_BATCH: Final = 32_768
"""Rows of one batch: 128 KiB a 32-bit column, so that the eight or so columns of a hash fit a 1 MiB cache."""

MAX_ROW_BYTES: Final = 512
"""Longer keys are hashed one by one with the scalar function: padding a batch to them would cost more."""

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Lengths: TypeAlias = "npt.NDArray[np.int64]"
Hashes: TypeAlias = "npt.NDArray[np.uint32]"
ScalarHash = Callable[[bytes], int]


class KeyBatch:
    """`matrix` (rows, width) of bytes, zero beyond each row's length; `lengths` (rows); `uniform`: the one length of all rows, if so."""

    __slots__ = ("lengths", "matrix", "uniform")

    def __init__(self, matrix: Bytes, lengths: Lengths) -> None:
        self.matrix = matrix
        self.lengths = lengths
        first = int(lengths[0]) if len(lengths) else 0
        self.uniform: int | None = first if bool((lengths == first).all()) else None

    def __len__(self) -> int:
        return len(self.matrix)

    def padded(self, width: int) -> Bytes:
        """A copy of the matrix with exactly `width` columns: cut, or grown by zeros. `width` must cover the longest row."""
        rows, have = self.matrix.shape
        grown = np.zeros((rows, width), np.uint8)
        grown[:, : min(have, width)] = self.matrix[:, :width]
        return grown


def hash_in_batches(
    keys: object,
    twin: Callable[[KeyBatch], npt.NDArray[Any]],
    scalar: ScalarHash,
    dtype: type[np.generic] = np.uint32,
) -> npt.NDArray[Any]:
    """Hash all keys: `twin` takes the batches, `scalar` the few rows that are too long for one."""
    out = np.empty(key_count(keys), dtype)
    for start, batch, long_rows in batches(keys):
        stop = start + len(batch)
        out[start:stop] = twin(batch)
        for row, key in long_rows:
            out[start + row] = scalar(key)
    return out


def key_count(keys: object) -> int:
    """How many keys there are. KeyEncodingError for what holds no keys."""
    if isinstance(keys, (str, bytes)) or not hasattr(keys, "__len__"):
        raise KeyEncodingError("keys must be an array or a list of bytes or text, not a single key or an iterator")
    return len(keys)


def batches(keys: object, rows: int = ROWS_PER_BATCH) -> Iterator[tuple[int, KeyBatch, list[tuple[int, bytes]]]]:
    """(first row, batch, rows too long for it with their keys). Rows that are too long are empty in the batch."""
    if isinstance(keys, np.ndarray):
        yield from _numpy_batches(keys, rows)
    elif hasattr(keys, "type") and (hasattr(keys, "buffers") or hasattr(keys, "chunks")):
        yield from _arrow_batches(keys, rows)
    elif isinstance(keys, Sequence) and not isinstance(keys, (str, bytes)):
        for start in range(0, len(keys), rows):
            yield (start, *_from_list(keys[start : start + rows]))
    else:
        raise KeyEncodingError(f"cannot take keys from {type(keys).__name__}: give a list, a numpy or an Arrow array")


def _numpy_batches(keys: npt.NDArray[Any], rows: int) -> Iterator[tuple[int, KeyBatch, list[tuple[int, bytes]]]]:
    if keys.ndim != 1:
        raise KeyEncodingError(f"keys have {keys.ndim} dimensions: give one")
    if keys.dtype.kind not in "SUO":
        raise KeyEncodingError(f"keys are of type {keys.dtype}: give bytes or text, or hashes to owners_of_hashes()")
    for start in range(0, len(keys), rows):
        part = keys[start : start + rows]
        if part.dtype.kind == "O":
            yield (start, *_from_list(part.tolist()))
            continue
        if part.dtype.kind == "U":
            part = np.char.encode(part, "utf-8")
        width = part.dtype.itemsize
        if width == 0:
            yield start, KeyBatch(np.zeros((len(part), 1), np.uint8), np.zeros(len(part), np.int64)), []
        elif width > MAX_ROW_BYTES:
            yield (start, *_from_list(part.tolist()))
        else:
            matrix = np.ascontiguousarray(part).view(np.uint8).reshape(len(part), width)
            yield start, KeyBatch(matrix, _lengths(part, matrix)), []


def _lengths(part: npt.NDArray[np.bytes_], matrix: Bytes) -> Lengths:
    """Lengths of numpy byte strings: up to the last byte that is not NUL, numpy cannot tell trailing NULs from padding."""
    width = matrix.shape[1]
    if bool(matrix[:, -1].all()):
        return np.full(len(part), width, np.int64)
    if width > 1 and not bool(matrix[:, -1].any()) and bool(matrix[:, -2].all()):
        return np.full(len(part), width - 1, np.int64)
    return np.char.str_len(part).astype(np.int64, copy=False)


def _from_list(keys: Sequence[bytes | str]) -> tuple[KeyBatch, list[tuple[int, bytes]]]:
    try:
        encoded = [key.encode() if isinstance(key, str) else bytes(key) for key in keys]
    except TypeError:
        raise KeyEncodingError("keys must all be bytes or text") from None
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    return ragged_batch(np.frombuffer(b"".join(encoded), np.uint8), offsets)


def _arrow_batches(keys: Any, rows: int) -> Iterator[tuple[int, KeyBatch, list[tuple[int, bytes]]]]:
    first = 0
    for chunk in keys.chunks if hasattr(keys, "chunks") else [keys]:
        data, offsets = arrow_bytes(chunk)
        for start in range(0, len(chunk), rows):
            stop = min(start + rows, len(chunk))
            yield (first + start, *ragged_batch(data, offsets[start : stop + 1]))
        first += len(chunk)


def arrow_bytes(array: Any, *, nulls: bool = False) -> tuple[Bytes, Lengths]:
    """Data and offsets (rows + 1) of an Arrow string or binary array. KeyEncodingError for other types and, unless `nulls`, for nulls."""
    kind = str(array.type)
    if kind.startswith("dictionary"):
        array = array.dictionary_decode()
        kind = str(array.type)
    if kind in ("string_view", "binary_view"):
        array = array.cast("string" if kind == "string_view" else "binary")
        kind = str(array.type)
    if kind not in ("string", "binary", "large_string", "large_binary"):
        raise KeyEncodingError(f"keys are an Arrow array of {kind}: give string or binary")
    if array.null_count and not nulls:
        raise KeyEncodingError("keys contain nulls: a ring has no place for them, fill or drop them first")
    width = np.int64 if kind.startswith("large") else np.int32
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return data, offsets.astype(np.int64, copy=False)


def ragged_batch(data: Bytes, offsets: Lengths) -> tuple[KeyBatch, list[tuple[int, bytes]]]:
    """A batch of the rows `data[offsets[i]:offsets[i + 1]]`, and those of them that are too long."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    long_rows: list[tuple[int, bytes]] = []
    if len(lengths) and int(lengths.max()) > MAX_ROW_BYTES:
        picked = np.flatnonzero(lengths > MAX_ROW_BYTES).tolist()
        long_rows = [(row, data[offsets[row] : offsets[row + 1]].tobytes()) for row in picked]
        lengths = np.where(lengths > MAX_ROW_BYTES, 0, lengths)
    width = max(int(lengths.max(initial=0)), 1)
    if len(data) == 0:
        return KeyBatch(np.zeros((len(lengths), width), np.uint8), lengths), long_rows
    columns = np.arange(width)
    inside = columns < lengths[:, None]
    matrix = data[np.where(inside, starts[:, None] + columns, 0)]
    matrix[~inside] = 0
    return KeyBatch(matrix, lengths), long_rows
