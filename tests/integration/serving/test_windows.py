"""TUMBLE and HOP in FROM of a query: the windows of views, computed for the rows as they are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from magnetar.base.clock import SystemClock
from magnetar.pipeline.serving.engine import Engine
from magnetar.pipeline.serving.reader import Views
from magnetar.pipeline.serving.sql.translate import Context, QueryError
from tests.support.served_views import make_pipeline

TIMES = (
    "(SELECT i, TIMESTAMP '1969-12-31 23:50:00' + i * INTERVAL '1 minute' AS ts FROM generate_series(0, 40) AS g(i))"
)
FIRST = datetime(1969, 12, 31, 23, 50)
EPOCH = datetime(1970, 1, 1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory: Path = tmp_path_factory.mktemp("windows")
    found = Engine(Views(make_pipeline(directory).files, SystemClock()), "flights")
    yield found
    found.close()


def rows(engine: Engine, text: str) -> list[tuple[Any, ...]]:
    snapshot = engine.snapshot()
    result = engine.run(engine.translate(text, Context(), snapshot=snapshot), {}, snapshot)
    try:
        return [tuple(row.values()) for batch in result.batches() for row in batch.to_pylist()]
    finally:
        result.close()


def windows(slide: timedelta, size: timedelta) -> list[tuple[int, datetime, datetime]]:
    found = []
    for number in range(41):
        at = FIRST + timedelta(minutes=number)
        start = EPOCH + (at - EPOCH) // slide * slide
        while start + size > at:
            found.append((number, start, start + size))
            start -= slide
    return sorted(found)


def test_rows_have_their_windows(engine: Engine) -> None:
    seven, sixteen = timedelta(minutes=7), timedelta(minutes=16)
    text = f"SELECT i, window_start, window_end FROM TUMBLE({TIMES}, ts, INTERVAL '7 minutes') ORDER BY 1"
    assert rows(engine, text) == windows(seven, seven)
    text = f"SELECT w.i, w.window_start, w.window_end FROM hop({TIMES}, ts, interval '7' minute, '16 minutes'::interval) AS w ORDER BY 1, 2"
    assert rows(engine, text) == windows(seven, sixteen)
    counted = "SELECT window_start, count(*) FROM tumble(kinds, at, INTERVAL '1 day') GROUP BY 1 ORDER BY 1"
    assert [row[1] for row in rows(engine, counted)] == [1, 1]  # the row without a time is in none
    joined = "SELECT count(*) FROM tumble(kinds, local_at, INTERVAL '1 hour') AS a JOIN kinds b ON a.id = b.id"
    assert rows(engine, f"{joined} WHERE a.window_end > a.local_at") == [(2,)]
    assert len(rows(engine, "SELECT * FROM tumble(kinds, at, INTERVAL '1 hour') WHERE id = 1")[0]) == 17


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT * FROM tumble(kinds, at)", "write TUMBLE"),
        (
            "SELECT * FROM hop(kinds, at, INTERVAL '1 hour', INTERVAL '1 minute')",
            "the slide is not longer than the size",
        ),
        ("SELECT * FROM hop(kinds, at, INTERVAL '1 second', INTERVAL '1 day')", "in 10000 windows at most"),
        ("SELECT * FROM tumble(kinds, at, INTERVAL '1 month')", "fixed length"),
        ("SELECT * FROM tumble(nothing, at, INTERVAL '1 hour')", "does not exist"),
    ],
)
def test_a_window_that_cannot_be(engine: Engine, text: str, told: str) -> None:
    with pytest.raises(QueryError, match=told):
        rows(engine, text)
