"""CREATE INDEX: rows are looked up by it, and the catalogs and EXPLAIN tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.base.clock import SystemClock
from magnetar.pipeline.serving.engine import Engine
from magnetar.pipeline.serving.held_table import SortedColumn
from magnetar.pipeline.serving.reader import Views
from magnetar.pipeline.serving.session_settings import SessionSettings
from magnetar.pipeline.serving.shows import shown
from magnetar.pipeline.serving.sql.translate import Context
from tests.support.served_views import CATALOG, DELAYS, make_pipeline
from tests.support.state_tables import TABLE, StateTableHarness

BY_N = {"name": "by_n", "statement": "CREATE INDEX by_n ON delays (n DESC, v) INCLUDE (k)", "parallelism": None}


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> StateTableHarness:
    directory: Path = tmp_path_factory.mktemp("indexes")
    found = make_pipeline(directory)
    views = {**found.manifest.views, "catalog": [*CATALOG, BY_N]}
    found.commit(views=views)
    return found


@pytest.fixture
def engine(harness: StateTableHarness) -> Iterator[Engine]:
    found = Engine(Views(harness.files, SystemClock()), "flights")
    yield found
    found.close()


def rows(engine: Engine, text: str, values: dict[int, Any] | None = None) -> list[tuple[Any, ...]]:
    snapshot = engine.snapshot()
    result = engine.run(engine.translate(text, Context(), snapshot=snapshot), values or {}, snapshot)
    try:
        return sorted(tuple(row.values()) for batch in result.batches() for row in batch.to_pylist())
    finally:
        result.close()


def expected(*wanted: int) -> list[tuple[Any, ...]]:
    return sorted((k, n, v) for (k, n), v in DELAYS.items() if n in wanted)


def test_rows_are_looked_up_by_an_index(harness: StateTableHarness, engine: Engine) -> None:
    for _ in range(4):  # the first ones are scans
        assert rows(engine, "SELECT k, n, v FROM delays WHERE n = 7") == expected(7)
    assert rows(engine, "SELECT k, n, v FROM delays WHERE n IN (7, 99, 7, 123456)") == expected(7, 99)
    assert rows(engine, "SELECT k, n, v FROM delays WHERE n = $1", {1: 12}) == expected(12)
    assert rows(engine, "SELECT k FROM delays WHERE n = 7 AND v > 1000000") == []
    assert rows(engine, "SELECT count(*) FROM delays WHERE n = 99999999999999999999999") == [(0,)]
    held = engine.snapshot().held[TABLE.table_id]
    assert isinstance(held.lookups["n"], SortedColumn)
    assert held.rows_with("n", [7]).num_rows == len(expected(7))
    # rows of a later epoch are found, those that went are not
    harness.epoch({("a new one", 7): 1.5, ("k8", 8): None})
    engine.views.refresh()
    assert rows(engine, "SELECT k, n, v FROM delays WHERE n = 7") == sorted([*expected(7), ("a new one", 7, 1.5)])
    assert rows(engine, "SELECT k, n, v FROM delays WHERE n = 8") == [row for row in expected(8) if row[0] != "k8"]
    harness.epoch({("a new one", 7): None, ("k8", 8): DELAYS["k8", 8]})
    engine.views.refresh()
    assert rows(engine, "SELECT k, n, v FROM delays WHERE n = 7") == expected(7)


def test_an_index_is_shown(engine: Engine) -> None:
    snapshot = engine.snapshot()
    query = engine.translate("SELECT * FROM delays WHERE n = 7", Context(), snapshot=snapshot)
    assert "Read delays by index by_n" in "\n".join(engine.explain(query, snapshot))
    found = rows(engine, "SELECT tablename, indexdef FROM pg_indexes WHERE indexname = 'by_n'")
    assert found == [("delays", "CREATE INDEX by_n ON public.delays USING btree (n DESC, v)")]
    columns = (
        "SELECT a.attname FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_class t ON t.oid = i.indrelid "
        "JOIN pg_attribute a ON a.attrelid = c.oid WHERE t.relname = 'delays' AND c.relname = 'by_n'"
    )
    assert rows(engine, columns) == [("n",), ("v",)]
    for words in ("indexes", "INDEXES FROM delays"):
        assert shown(words, SessionSettings("me"), engine).take_plain(9)[0] == [[b"by_n", b"delays", b"n DESC, v ASC"]]
    assert shown("indexes from kinds", SessionSettings("me"), engine).take_plain(9)[0] == []
    created = shown("create index by_n", SessionSettings("me"), engine).take_plain(9)[0]
    assert created == [[b"by_n", b"CREATE INDEX by_n ON delays (n DESC, v) INCLUDE (k)"]]
