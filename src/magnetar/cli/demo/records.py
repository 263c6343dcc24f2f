"""What a consumer writes down about each message before it acknowledges it: one fixed-size record, appended to its file.

The file outlives a kill -9, so the parent can tell exactly which messages a killed consumer had seen.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECORD = struct.Struct("<qIIHH2sB")
"""Time (monotonic ns, one clock for all processes), index, CRC-32 of the payload, distance, air time, carrier, redelivered."""

FIELDS = np.dtype(
    [
        ("time_ns", "<i8"),
        ("index", "<u4"),
        ("checksum", "<u4"),
        ("distance", "<u2"),
        ("air_time", "<u2"),
        ("carrier", "S2"),
        ("redelivered", "u1"),
    ]
)
assert FIELDS.itemsize == RECORD.size


def count(path: Path) -> int:
    """Whole records in a file; 0 when it does not exist yet."""
    return path.stat().st_size // RECORD.size if path.exists() else 0


def read(path: Path) -> NDArray[np.void]:
    """The whole records of a file; a torn last one is left out."""
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data, FIELDS, count=len(data) // RECORD.size)
