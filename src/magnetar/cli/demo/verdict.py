"""Judges what the consumers wrote down against the source file. Pure.

Right means: nothing lost; every message intact; repeats only of messages that the killed consumer had seen, because it died
before their acknowledgement was sent; and every key in the order of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from magnetar.cli.demo.records import FIELDS
from magnetar.cli.demo.source import Flights

CARRIER_SUM = "flights of "
"""How the names of the sums over one carrier begin."""


class Log(NamedTuple):
    """What one consumer wrote."""

    consumer: str
    killed: bool
    records: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of messages; `problems` is empty when all is as it must be."""

    messages: int
    lost: int
    duplicated: int
    unexplained: int
    """Duplicates that the killed consumer does not explain."""
    out_of_order: int
    corrupted: int
    redelivered: int
    """Deliveries that the server marked as repeated."""
    sums: dict[str, tuple[int, int]]
    """Name -> (from the source file, from the consumers)."""

    @property
    def problems(self) -> list[str]:
        found = {
            "lost": self.lost,
            "duplicated without a reason": self.unexplained,
            "out of order": self.out_of_order,
            "damaged": self.corrupted,
        }
        lines = [f"{number} messages {what}" for what, number in found.items() if number]
        return lines + [
            f"{name}: {wanted} in the file, {got} consumed"
            for name, (wanted, got) in self.sums.items()
            if wanted != got
        ]


def judge(flights: Flights, logs: Sequence[Log]) -> Verdict:
    """Compare all logs with the source."""
    records = np.concatenate([log.records for log in logs]) if logs else np.empty(0, FIELDS)
    owner = np.repeat(np.arange(len(logs)), [len(log.records) for log in logs])
    order = np.argsort(records["time_ns"], kind="stable")
    records, owner = records[order], owner[order]
    index = records["index"].astype(np.int64)
    seen, first_at = np.unique(index, return_index=True)
    first = np.zeros(len(records), bool)
    first[first_at] = True
    by_killed = np.isin(owner, [number for number, log in enumerate(logs) if log.killed])
    once = records[first]
    return Verdict(
        messages=len(seen),
        lost=len(flights) - len(seen),
        duplicated=int(len(records) - len(seen)),
        unexplained=int(np.sum(~first & ~np.isin(index, index[by_killed]))),
        out_of_order=count_out_of_order(flights.key_ids[index], index, owner, first),
        corrupted=int(np.sum(records["checksum"] != flights.checksums[index])),
        redelivered=int(np.sum(records["redelivered"])),
        sums=sums(flights, once),
    )


def count_out_of_order(
    keys: NDArray[np.int64], index: NDArray[np.int64], owner: NDArray[np.int64], first: NDArray[np.bool_]
) -> int:
    """Deliveries behind a later message of their key: among all first deliveries, or among all deliveries of one consumer."""
    wrong = np.zeros(len(index), bool)
    positions = np.flatnonzero(first)
    wrong[positions] |= steps_back(keys[positions], index[positions])
    for number in range(int(owner.max()) + 1 if len(owner) else 0):
        positions = np.flatnonzero(owner == number)
        wrong[positions] |= steps_back(keys[positions], index[positions])
    return int(np.sum(wrong))


def steps_back(keys: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which elements are not greater than the element before them with the same key."""
    order = np.argsort(keys, kind="stable")
    back = np.zeros(len(keys), bool)
    if len(keys) > 1:
        same_key = keys[order][1:] == keys[order][:-1]
        back[order[1:]] = same_key & (index[order][1:] <= index[order][:-1])
    return back


def sums(flights: Flights, once: NDArray[np.void]) -> dict[str, tuple[int, int]]:
    """Totals from the file and from the consumers."""
    table = {
        "miles": (int(flights.distance.sum()), int(once["distance"].astype(np.int64).sum())),
        "minutes in the air": (int(flights.air_time.sum()), int(once["air_time"].astype(np.int64).sum())),
    }
    for carrier in np.unique(np.concatenate([flights.carrier, once["carrier"]])):
        table[f"{CARRIER_SUM}{carrier.decode()}"] = (
            int(np.sum(flights.carrier == carrier)),
            int(np.sum(once["carrier"] == carrier)),
        )
    return table
