"""The last row of each key: the same as looking at every row, whatever hashes do."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.pipeline.state import lookup
from magnetar.pipeline.state.lookup import beside, last_rows

TEXTS = st.lists(st.sampled_from([None, "", "a", "b", "ab", "\x00", "é"]), max_size=30)
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
"""A busy machine is not a slow strategy."""

NUMBERS = st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=30)
FLOATS = st.lists(st.sampled_from([None, 0.0, -0.0, 1.5, float("nan"), float("inf")]), max_size=30)


def by_looking(rows: pl.DataFrame, keys: pl.DataFrame) -> list[int]:
    def known(row: tuple[object, ...]) -> tuple[object, ...]:
        return tuple("nan" if value != value else value for value in row)

    last = {known(row): place for place, row in enumerate(rows.select(keys.columns).rows())}
    return [last.get(known(row), -1) for row in keys.rows()]


@PATIENT
@given(TEXTS, TEXTS)
def test_texts(rows: list[str | None], keys: list[str | None]) -> None:
    stored, wanted = pl.DataFrame({"k": rows}, {"k": pl.String}), pl.DataFrame({"k": keys}, {"k": pl.String})
    assert last_rows(stored, wanted).tolist() == by_looking(stored, wanted)


@PATIENT
@given(FLOATS, FLOATS)
def test_floats_nan_is_itself(rows: list[float | None], keys: list[float | None]) -> None:
    stored, wanted = pl.DataFrame({"k": rows}, {"k": pl.Float64}), pl.DataFrame({"k": keys}, {"k": pl.Float64})
    assert last_rows(stored, wanted).tolist() == by_looking(stored, wanted)


@PATIENT
@given(TEXTS, NUMBERS, TEXTS, NUMBERS)
def test_two_columns(a: list[str | None], b: list[int | None], c: list[str | None], d: list[int | None]) -> None:
    kinds = {"a": pl.String, "b": pl.Int64}
    stored = pl.DataFrame(list(zip(a, b, strict=False)), kinds, orient="row").with_row_index("v")
    wanted = pl.DataFrame(list(zip(c, d, strict=False)), kinds, orient="row")
    found = last_rows(stored, wanted)
    assert found.tolist() == by_looking(stored, wanted)
    together = beside(wanted, stored, ["a", "b"], "old_")
    assert together.columns == ["a", "b", "old_v"]
    assert together["old_v"].to_list() == [place if place >= 0 else None for place in found.tolist()]


@pytest.mark.parametrize("bits", [0, 20, 63])
def test_many_rows_whose_hashes_are_close(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Rows that share slots are told apart by their hashes, rows that share hashes by their keys."""
    real = lookup._hashes
    monkeypatch.setattr(lookup, "_hashes", lambda keys: real(keys) >> np.uint64(bits))
    rng = np.random.default_rng(1)
    stored = pl.DataFrame({"k": rng.integers(0, 5_000, 20_000)}).with_columns(pl.col("k").cast(pl.String))
    wanted = pl.DataFrame({"k": rng.integers(0, 10_000, 3_000)}).with_columns(pl.col("k").cast(pl.String))
    assert last_rows(stored, wanted).tolist() == by_looking(stored, wanted)
