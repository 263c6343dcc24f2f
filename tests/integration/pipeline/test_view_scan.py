"""`format("magnetar.view")`: Spark finds it by itself, reads a view in parallel, and prunes by key."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.base.clock import SystemClock
from magnetar.pipeline.state import gc
from tests.support.state_tables import TABLE, VNODES, StateTableHarness

ROWS = {(f"k{number}", number): number / 4 for number in range(500)} | {(None, 1): 1.0, ("", None): 2.0}


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> StateTableHarness:
    harness = StateTableHarness(str(tmp_path_factory.mktemp("views")), units=3)
    harness.commit(views={"catalog": [], "tables": {"delays": TABLE.table_id}, "stages": {}})
    harness.epoch(ROWS)
    return harness


def view(spark: Any, harness: StateTableHarness, **options: object) -> Any:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("magnetar.view").options(pipeline=harness.files.root_url, view="delays", **texts).load()


def rows_of(frame: Any) -> dict[Any, float]:
    rows = frame.collect()
    found = {(row.k, row.n): row.v for row in rows}
    assert len(found) == len(rows)
    return found


def pins(harness: StateTableHarness) -> set[str]:
    return set(harness.files.names(gc.PINS))


def test_a_view_is_a_data_frame_read_by_groups_of_vnodes(spark: Any, harness: StateTableHarness) -> None:
    frame = view(spark, harness)
    assert frame.schema.simpleString() == "struct<k:string,n:bigint,v:double>"
    assert rows_of(frame) == ROWS
    assert frame.rdd.getNumPartitions() == 3, "a task for each unit"
    wide = view(spark, harness, groups=8)
    before = pins(harness)
    assert rows_of(wide) == ROWS
    assert pins(harness) == before, "what was planned was read, and let go"
    assert wide.rdd.getNumPartitions() == 8


def test_groups_have_vnodes_of_their_own(spark: Any, harness: StateTableHarness) -> None:
    options = {"pipeline": harness.files.root_url, "view": "delays", "groups": "4"}
    frame = spark.read.format("magnetar.view").schema("_vnode int, v double").options(**options).load()
    held = frame.selectExpr("_vnode", "spark_partition_id() task").distinct().collect()
    assert len({row["_vnode"] for row in held}) == len(held) == VNODES
    assert {row["task"] for row in held} == {0, 1, 2, 3}


def test_equality_on_the_key_reads_one_vnode(spark: Any, harness: StateTableHarness) -> None:
    frame = view(spark, harness, pushdown="true", groups=VNODES)
    one = frame.where("k = 'k7' and n = 7")
    assert one.rdd.getNumPartitions() == 1
    assert rows_of(one) == {("k7", 7): 7 / 4}
    several = frame.where("k in ('k7', 'k8') and n in (7, 8) and v > 1.8")
    assert several.rdd.getNumPartitions() <= 4
    assert rows_of(several) == {("k8", 8): 2.0}
    missing = frame.where("k is null and n = 1")
    assert missing.rdd.getNumPartitions() == 1
    assert rows_of(missing) == {(None, 1): 1.0}
    assert frame.where("k = 'k7'").rdd.getNumPartitions() == VNODES, "half a key is in any vnode"
    assert rows_of(view(spark, harness, key='{"k": "k7", "n": 7}')) == {("k7", 7): 7 / 4}


def test_a_key_that_the_view_does_not_show_is_read_when_asked_for_by_name(
    spark: Any, harness: StateTableHarness
) -> None:
    views = dict(harness.manifest.views)
    harness.commit(views={**views, "columns": {"delays": ["v", "n"]}})
    try:
        assert view(spark, harness).schema.simpleString() == "struct<v:double,n:bigint>"
        assert sorted(view(spark, harness).where("n < 3").collect(), key=str) == sorted(
            [(value, n) for (_, n), value in ROWS.items() if n is not None and n < 3], key=str
        )
        whole = {"pipeline": harness.files.root_url, "view": "delays"}
        asked = spark.read.format("magnetar.view").schema("k string, v double").options(**whole).load()
        assert asked.where("k = 'k7'").collect() == [("k7", 7 / 4)]
    finally:
        harness.commit(views=views)


def test_in_sql_at_an_older_epoch(spark: Any, harness: StateTableHarness) -> None:
    before = harness.manifest.epoch
    harness.epoch({("k1", 1): None})
    try:
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW old_delays USING magnetar.view "
            f"OPTIONS (pipeline '{harness.files.root_url}', view 'delays', epoch '{before}')"
        )
        assert spark.sql("SELECT count(*) FROM old_delays").first()[0] == len(ROWS)
        assert view(spark, harness).count() == len(ROWS) - 1
    finally:
        harness.epoch({("k1", 1): 0.25})


def test_a_scan_that_stops_early_keeps_its_pins_for_their_time_only(spark: Any, harness: StateTableHarness) -> None:
    frame = view(spark, harness, groups=8, pinTimeoutS=1)
    before = pins(harness)
    assert len(frame.limit(1).collect()) == 1
    left = pins(harness) - before
    assert len(left) == 7, "the one task that ran has let go"
    gc.pinned(harness.files, Later(SystemClock().now_ms() + 60_000))
    assert not left & pins(harness)


def test_what_is_asked_for_wrongly_is_refused_with_the_fix(spark: Any, harness: StateTableHarness) -> None:
    for options, words in [
        ({"view": "delay"}, "there are: delays"),
        ({"group": "3"}, "did you mean groups"),
        ({"epoch": "77"}, "epoch 77 is not kept"),
        ({"pipeline": "/no/where"}, "there is no pipeline in /no/where"),
    ]:
        given = {"pipeline": harness.files.root_url, "view": "delays", **options}
        with pytest.raises(Exception, match=words):
            spark.read.format("magnetar.view").options(**given).load()
    frame = (
        spark.read.format("magnetar.view")
        .schema("k int")
        .options(pipeline=harness.files.root_url, view="delays")
        .load()
    )
    with pytest.raises(Exception, match="t has: k string"):
        frame.collect()


class Later:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms
