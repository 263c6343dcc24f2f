"""Parts of entries behind each other: an Arrow column without an object for each of its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.kernel import kernel

PIECE_ROWS: Final = 32
"""Fewer values of an entry are not worth a piece."""

SMALL_BYTES: Final = 256
"""Such a value is copied sooner than looked at."""

Places = NDArray[np.int64]


class Piece(NamedTuple):
    """Value number i is `data[starts[i]:ends[i]]`."""

    data: bytes
    starts: Sequence[int]
    ends: Sequence[int]


def column(pieces: list[Piece], kind: pa.DataType) -> pa.Array:
    """The values of all pieces, at most 2 GiB. Text that is empty is NULL. Raises PayloadError for text that is not UTF-8."""
    numbered = [(each.data, np.asarray(each.starts, np.int64), np.asarray(each.ends, np.int64)) for each in pieces]
    offsets, data = kernel.gathered(numbered) if kernel else gathered_in_python(numbered)
    rows, present = len(offsets) // 4 - 1, None
    if pa.types.is_string(kind):
        places = np.frombuffer(offsets, np.int32)
        present = pa.py_buffer(np.packbits(places[1:] != places[:-1], bitorder="little"))
    found = pa.Array.from_buffers(kind, rows, [present, pa.py_buffer(offsets), pa.py_buffer(data)])
    if present is not None:
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise PayloadError(f"a key is not UTF-8 text: {error}") from None
    return found


def gathered_in_python(pieces: Sequence[tuple[bytes, Places, Places]]) -> tuple[bytes, bytes]:
    """(where each value begins and the last one ends, 32 bits each; the values). `pieces`: as Piece.

    Raises ValueError for places beyond the data.
    """
    sizes: list[Places] = []
    values: list[bytes | memoryview] = []
    for data, starts, ends in pieces:
        sizes.append(ends - starts)
        if len(starts) and (starts.min() < 0 or sizes[-1].min() < 0 or ends.max() > len(data)):
            raise ValueError("a piece reaches beyond its data")
        source = memoryview(data) if len(starts) and sizes[-1][0] > SMALL_BYTES else data
        values += [source[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    offsets = np.zeros(1 + len(values), np.int64)
    if sizes:
        np.cumsum(np.concatenate(sizes), out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError("the bytes do not fit a column")
    return offsets.astype(np.int32).tobytes(), b"".join(values)
