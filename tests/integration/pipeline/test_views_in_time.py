"""Views in which it matters when a row comes: windows that close, look-ups; and what people are told of stages."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from magnetar.pipeline.errors import PlanRefusedError
from magnetar.pipeline.operators.changelog import DELETE, INSERT
from magnetar.pipeline.operators.window import LATE_ROWS
from magnetar.pipeline.views.epoch.spark_steps import SparkTypes
from magnetar.pipeline.views.lowering.explain import explain_view
from magnetar.pipeline.views.lowering.lowering import Lowerer
from magnetar.pipeline.views.lowering.stages import ROW_ID
from magnetar.pipeline.views.lowering.table_ids import TableIds
from tests.support.operators import Row
from tests.support.view_histories import DAY, SOURCES, STREAM, TABLE, catalog
from tests.support.view_runner import History, ViewRunner, changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_US = 60_000_000
MIDNIGHT_US = int(DAY.timestamp()) * 1_000_000


def stream(*rows: tuple[int, int]) -> list[tuple[int, Row]]:
    """Rows of `s`: (i, minute of the day)."""
    return [(INSERT, {"i": i, "g": "a", "n": i, "ts": DAY + timedelta(minutes=at), ROW_ID: f"r{i}"}) for i, at in rows]


@pytest.mark.parametrize("preaggregated", [True, False])
def test_a_window_gives_one_row_when_the_watermark_has_reached_its_end(
    spark: SparkSession, preaggregated: bool
) -> None:
    query = "SELECT window_start, sum(n) AS sn FROM TUMBLE(s, ts, INTERVAL '10 minutes') GROUP BY window_start"
    text = (
        f"{SOURCES} CREATE MATERIALIZED VIEW w AS {query}; CREATE MATERIALIZED VIEW c AS {query} EMIT ON WINDOW CLOSE;"
    )
    runner = ViewRunner(spark, catalog(text), preaggregated=preaggregated)
    epochs = [stream((1, 1), (2, 11)), stream((4, 9), (8, 25)), stream((16, 2), (32, 12)), stream((64, 21))]
    marks = [None, None, MIDNIGHT_US + 15 * MINUTE_US, MIDNIGHT_US + 15 * MINUTE_US]
    history = History(
        {"s": [changes(STREAM, rows) for rows in epochs], "t": [changes(TABLE, []) for _ in epochs]},
        [1, 3, 2, 2],
        marks,
    )
    runner.run([history])
    starts = [DAY + timedelta(minutes=at) for at in (0, 10, 20)]
    # row 16 is late: its window, closed at 00:10, has 1 and 4 for ever
    wanted = list(zip(starts, [1 + 4, 2 + 32, 8 + 64], strict=True))
    assert sorted((row["window_start"], row["sn"]) for row in runner.rows(history, "w")) == wanted
    assert [(row["window_start"], row["sn"]) for row in runner.rows(history, "c")] == wanted[:1]
    assert history.counters[LATE_ROWS] == 2, "once in each view"
    assert runner.plans["c"].append_only
    assert not runner.plans["w"].append_only


def test_a_look_up_sees_the_table_of_its_epoch_and_is_not_corrected(spark: SparkSession) -> None:
    query = "SELECT s.i, t.v FROM s LEFT JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON s.n = t.k"
    runner = ViewRunner(spark, catalog(f"{SOURCES} CREATE MATERIALIZED VIEW l AS {query};"))
    tables = [[(INSERT, 1, 0.5)], [(INSERT, 1, 1.5), (INSERT, 2, 2.5)], [(DELETE, 1, None)]]
    epochs = [stream((1, 0)), stream((2, 0)), []]
    rows = [
        [(change, {"k": k, "v": v, ROW_ID: f"t{at}{k}"}) for change, k, v in table] for at, table in enumerate(tables)
    ]
    history = History(
        {"s": [changes(STREAM, each) for each in epochs], "t": [changes(TABLE, each) for each in rows]}, [1, 2, 3]
    )
    runner.run([history])
    assert sorted((row["i"], row["v"]) for row in runner.rows(history, "l")) == [(1, 0.5), (2, 2.5)]


@pytest.mark.parametrize(
    ("query", "fix"),
    [
        ("SELECT g, count(*) AS c FROM s GROUP BY g EMIT ON WINDOW CLOSE", "WATERMARK FOR"),
        ("SELECT k, now() AS at FROM t", "view of a source"),
        ("SELECT s.i FROM s JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON s.g = t.g", "by their key, which is \\(k\\)"),
        ("SELECT g, sum(ts) AS x FROM s GROUP BY g", "CAST it"),
        ("SELECT s.i FROM s JOIN t ON s.g = t.k", "CAST one side"),
        ("SELECT nofunction(g) AS x FROM s", "NOFUNCTION"),
        ("SELECT m + ts AS x FROM s", "data type mismatch"),
    ],
)
def test_what_has_no_stages_is_refused_where_it_stands(spark: SparkSession, query: str, fix: str) -> None:
    text = f"{SOURCES}CREATE MATERIALIZED VIEW v AS\n{query};"
    with pytest.raises(PlanRefusedError, match=fix) as caught:
        Lowerer(catalog(text), SparkTypes(spark), TableIds()).view("v")
    assert caught.value.line == SOURCES.count("\n") + 2


def test_what_people_are_told_of_stages(spark: SparkSession) -> None:
    views = """
    CREATE MATERIALIZED VIEW fused AS SELECT g, sum(n) AS sn FROM s GROUP BY g;
    CREATE MATERIALIZED VIEW computed AS SELECT sn + 1 AS s1 FROM fused WHERE sn > 0;
    """
    lowerer = Lowerer(catalog(SOURCES + views), SparkTypes(spark), TableIds())
    assert explain_view(lowerer.view("fused")) == [
        "fused (g, sn) key (g) changing",
        "  stage fused/1-aggregate: MergedAggregate, stores the view, partial results by Spark",
        "    input <- s, to vnode(g)",
        "      select g, n as __arg0",
        "    state: (g, _rows, _p0_n, _p0_sum) by (g)",
        "    rows of the view: (g, sn) by (g)",
    ]
    assert explain_view(lowerer.view("computed")) == [
        "computed (s1) key (_key_g) changing",
        "  hidden: _key_g",
        "  stage computed/1-materialize: Materialize",
        "    input <- fused, to vnode(_key_g)",
        "      where sn > 0",
        "      select TRY_ADD(sn, 1) as s1, `g` as _key_g",
        "    rows of the view: (s1, _key_g) by (_key_g)",
    ]


def test_the_same_statements_get_the_same_numbers(spark: SparkSession) -> None:
    text = SOURCES + "CREATE MATERIALIZED VIEW v AS SELECT g, max(n) + 1 AS h FROM t GROUP BY g;"
    ids = TableIds()
    first = Lowerer(catalog(text), SparkTypes(spark), ids).all()
    again = Lowerer(catalog(text), SparkTypes(spark), TableIds(ids.to_plain())).all()
    for name, plan in first.items():
        assert again[name].table == plan.table
        assert [stage.stage_id for stage in again[name].stages] == [stage.stage_id for stage in plan.stages]
    gone = ids.forget("v")
    assert len(gone) == 2
    fresh = Lowerer(catalog(text), SparkTypes(spark), ids).view("v")
    assert fresh.table.table_id not in gone
