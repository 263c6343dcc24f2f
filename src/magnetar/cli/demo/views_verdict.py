"""Judges views against pandas over the source file: row by row, value by value."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.demo.source import data_file

if TYPE_CHECKING:
    import pandas as pd

SHOWN: Final = 3
"""Rows of each view that are shown side by side."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A view against its recomputation. `shown`: a few rows with both values; `differing`: rows that are not equal."""

    view: str
    rows: int
    expected_rows: int
    differing: int
    totals: dict[str, tuple[float, float]]
    """Column -> (of the file, of the view)."""
    shown: list[dict[str, Any]]

    @property
    def problem(self) -> str | None:
        if self.rows != self.expected_rows:
            return f"{self.rows:,} rows, and {self.expected_rows:,} by the file"
        return f"{self.differing:,} rows differ from the file" if self.differing else None


def compare(
    found: Mapping[str, pd.DataFrame], keys: Mapping[str, list[str]], limit: int | None = None
) -> list[Comparison]:
    """Each view against the first `limit` flights of the file."""
    flights = load(limit)
    expected = {"delays": delays(flights), "routes": routes(flights)}
    return [compared(view, rows, expected[view], keys[view]) for view, rows in found.items()]


def load(limit: int | None) -> pd.DataFrame:
    import pandas as pd

    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as file:
        flights = pd.read_csv(file, nrows=limit, keep_default_na=False, na_values=["NA"])
    flights["window_start"] = pd.to_datetime(flights["time_hour"], utc=True).dt.tz_localize(None)
    return flights


def delays(flights: pd.DataFrame) -> pd.DataFrame:
    grouped = flights.groupby(["carrier", "window_start"])
    found = grouped.agg(
        flights=("flight", "size"),
        departed=("dep_delay", "count"),
        mean_delay=("dep_delay", "mean"),
        worst_delay=("dep_delay", "max"),
    )
    # The sum of nothing is NULL in SQL.
    return found.assign(delay_minutes=grouped["dep_delay"].sum(min_count=1)).reset_index()


def routes(flights: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    grouped = flights.groupby(["origin", "dest"])
    totals = grouped.agg(flights=("flight", "size"), flown=("air_time", "count"), miles=("distance", "sum"))
    totals = totals.assign(minutes=grouped["air_time"].sum(min_count=1)).reset_index()
    airports = pd.read_csv(data_file("airports.csv"), keep_default_na=False)
    named = totals.merge(airports[["faa", "name"]], how="left", left_on="dest", right_on="faa")
    return named.drop(columns="faa").rename(columns={"name": "airport"})


def compared(view: str, rows: pd.DataFrame, expected: pd.DataFrame, key: list[str]) -> Comparison:
    import pandas as pd

    columns = [name for name in expected.columns if name not in key]
    numbers = [name for name in columns if pd.api.types.is_numeric_dtype(expected[name])]
    rows = rows[[*key, *columns]]
    both = expected.merge(rows, how="outer", on=key, suffixes=("", "_view"), indicator=True)
    differs = both["_merge"] != "both"
    for name in columns:
        mine, theirs = both[name], both[f"{name}_view"]
        if name in numbers:
            mine, theirs = mine.astype("float64"), theirs.astype("float64")
        differs |= ~((mine == theirs) | (mine.isna() & theirs.isna()))
    largest = both.sort_values(["flights", *key], ascending=[False, *[True] * len(key)]).head(SHOWN)
    shown = [
        {name: str(row[name]) for name in key} | {name: f"{row[name]:g} | {row[f'{name}_view']:g}" for name in numbers}
        for _, row in largest.iterrows()
    ]
    totals = {name: (float(expected[name].sum()), float(rows[name].astype("float64").sum())) for name in numbers}
    return Comparison(view, len(rows), len(expected), int(differs.sum()), totals, shown)
