"""Numbered keys by the million: `prefix{}suffix` filled with 0, 1, 2, ..., made by numpy digit by digit."""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from magnetar.hashing.errors import HashingError
from magnetar.hashing.vectorized.batch import ROWS_PER_BATCH

DEFAULT_KEY_FORMAT: Final = "key-{}"
MAX_KEYS: Final = 1_000_000_000
"""More keys in one measurement are refused: the figures settle at a fraction of it."""


def key_chunks(key_format: str, total: int, rows: int = 4 * ROWS_PER_BATCH) -> Iterator[Any]:
    """Arrays of at most `rows` keys, numbers 0 to total - 1 in order. HashingError for a format without exactly one place."""
    prefix, spec, suffix = split_format(key_format)
    if not 1 <= total <= MAX_KEYS:
        raise HashingError(f"{total} keys: give 1 to {MAX_KEYS}")
    start = 0
    while start < total:
        # All numbers of a chunk have the same digits, so that its keys form a matrix.
        stop = min(start + rows, total, 10 ** len(str(start)))
        if spec:
            yield [key_format.format(number) for number in range(start, stop)]
        else:
            yield _plain_chunk(prefix.encode(), suffix.encode(), start, stop)
        start = stop


def split_format(key_format: str) -> tuple[str, str, str]:
    """Text before the place, its format specification, text behind it. HashingError."""
    try:
        parts = list(Formatter().parse(key_format))
        places = [part for part in parts if part[1] is not None]
        key_format.format(0)
    except (ValueError, IndexError, KeyError) as bad:
        raise HashingError(f"key format {key_format!r}: {bad}; write it like 'user-{{}}'") from bad
    if len(places) != 1 or places[0][1] not in ("", "0"):
        raise HashingError(f"key format {key_format!r} needs exactly one {{}} for the number")
    position = parts.index(places[0])
    before = "".join(text for text, *_ in parts[: position + 1])
    after = "".join(text for text, *_ in parts[position + 1 :])
    return before, (places[0][2] or "") + (places[0][3] or ""), after


def _plain_chunk(prefix: bytes, suffix: bytes, start: int, stop: int) -> npt.NDArray[np.bytes_]:
    digits = len(str(start))
    matrix = np.empty((stop - start, len(prefix) + digits + len(suffix)), np.uint8)
    matrix[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    rest: npt.NDArray[np.uint32] = np.arange(start, stop, dtype=np.uint32)
    for place in range(digits - 1, -1, -1):
        quotient = rest // 10
        matrix[:, len(prefix) + place] = rest - quotient * 10 + ord("0")
        rest = quotient
    if suffix:
        matrix[:, -len(suffix) :] = np.frombuffer(suffix, np.uint8)
    return matrix.view(f"S{matrix.shape[1]}").reshape(-1)
