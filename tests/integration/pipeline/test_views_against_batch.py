"""Every operator: stages of the SQL, epoch by epoch and rescaled in between, against plain Spark SQL over the final input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from magnetar.pipeline.errors import AggregateOverflowError
from magnetar.pipeline.operators.changelog import INSERT
from magnetar.pipeline.views.lowering.stages import ROW_ID
from tests.support.view_histories import SOURCES, STREAM, TABLE, catalog, expected, histories, plain_row
from tests.support.view_runner import History, ViewRunner, changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANKED = (
    "FROM (SELECT *, row_number() OVER (PARTITION BY g ORDER BY n DESC NULLS LAST, v NULLS FIRST, {1}) AS rn FROM {0})"
)
QUERIES = {
    "stateless": "SELECT g, n + 1 AS n1 FROM s WHERE n > 0",
    "stateless_of_table": "SELECT n FROM t WHERE v > 0",
    "grouped": "SELECT g, count(*) AS c, count(n) AS cn, sum(n) AS sn, avg(n) AS an, min(v) AS lv, max(v) AS hv FROM s GROUP BY g",
    "grouped_table": "SELECT g, count(*) AS c, sum(n) AS sn, avg(n) AS an FROM t GROUP BY g",
    "extremes_of_table": "SELECT g, min(n) AS ln, max(v) AS hv, sum(v) AS sv FROM t GROUP BY g",
    "decimals": "SELECT g, sum(m) AS sm, avg(m) AS am, min(m) AS lm FROM s GROUP BY g",
    "decimals_of_table": "SELECT g, sum(m) AS sm, avg(m) AS am, count(*) AS c FROM t GROUP BY g",
    "small_numbers": "SELECT g, sum(CAST(k AS SMALLINT)) AS sk, avg(CAST(v AS REAL)) AS av FROM t WHERE k > 0 GROUP BY g",
    "kept_groups": "SELECT upper(g) AS e, sum(n) + 1 AS s1 FROM t GROUP BY g HAVING count(*) > 1",
    "filtered": "SELECT n, count(*) FILTER (WHERE v > 0) AS c, sum(n) FILTER (WHERE v > 0) AS f FROM s GROUP BY n",
    "distinct_rows": "SELECT DISTINCT g, n FROM t",
    "counted_distinct": "SELECT g, count(DISTINCT n) AS d FROM s GROUP BY g",
    "group_not_shown": "SELECT count(*) AS c FROM s GROUP BY g",
    "all_rows": "SELECT count(*) AS c, sum(n) AS sn, max(v) AS hv FROM s WHERE n > 0",
    "all_rows_of_table": "SELECT count(*) + 1 AS c1, avg(n) AS an, sum(m) AS sm FROM t",
    "all_rows_kept": "SELECT count(DISTINCT n) AS d, min(v) AS lv FROM t",
    "united": "SELECT g, n, ts FROM s UNION ALL SELECT g, k, NULL FROM t WHERE v > 0",
    "united_distinct": "SELECT n FROM t UNION SELECT i FROM s WHERE g = 'a'",
    "recomputed": "SELECT g, bool_or(v > 0) AS b, count(*) AS c FROM t WHERE n >= 0 GROUP BY g HAVING count(*) > 1",
    "recomputed_expression": "SELECT bit_xor(k) + 1 AS x FROM t GROUP BY upper(g), n > 0",
    "over": "SELECT k, sum(n) OVER (PARTITION BY g ORDER BY k) AS running FROM t",
    "over_stream": "SELECT g, lag(i) OVER (PARTITION BY g ORDER BY i) AS before, row_number() OVER (PARTITION BY g ORDER BY i) AS r FROM s",
    "joined": "SELECT s.i, s.n, t.k, t.v FROM s JOIN t ON s.g = t.g",
    "joined_left": "SELECT s.i, s.v, t.k, t.n AS tn FROM s LEFT JOIN t ON s.v = t.v AND t.g = s.g",
    "joined_by_itself": "SELECT a.k, b.k AS other FROM t AS a LEFT JOIN t AS b ON a.n = b.k",
    "joined_then_grouped": "SELECT t.k, count(*) AS c, sum(s.n) AS sn FROM s JOIN t ON s.g = t.g GROUP BY t.k",
    "joined_three": "SELECT q.i, u.k FROM (SELECT s.i, t.n FROM s JOIN t ON s.g = t.g) AS q JOIN t AS u ON q.n = u.n",
    "joined_chain": "SELECT s.i, t.k, u.k AS k2 FROM s JOIN t ON s.g = t.g LEFT JOIN t AS u ON t.n = u.n",
    "joined_by_commas": "SELECT s.i, t.k FROM s, t WHERE s.g = t.g AND s.n > t.n",
    "joined_on_more": "SELECT s.i, t.k FROM s JOIN t ON s.g = t.g AND s.n < t.n",
    "joined_right": "SELECT s.i, t.k FROM s RIGHT JOIN t ON s.g = t.g",
    "crossed": "SELECT a.k, b.k AS other FROM t AS a CROSS JOIN t AS b WHERE a.n > b.n",
    "in_subquery": "SELECT i, g FROM s WHERE n IN (SELECT n FROM t WHERE v > 0) AND i > 0",
    "scalar_subquery": "SELECT k FROM t WHERE n > (SELECT avg(n) FROM s)",
    "joined_full": "SELECT s.i, s.n, t.k, t.v FROM s FULL JOIN t ON s.g = t.g",
    "joined_full_itself": "SELECT a.k, b.k AS other, a.n, b.n AS bn FROM t AS a FULL JOIN t AS b ON a.n = b.k",
    "not_in_subquery": "SELECT k FROM t WHERE n NOT IN (SELECT v FROM t WHERE k > 2)",
    "first_of_table": "SELECT k, g FROM t ORDER BY n DESC NULLS LAST, k LIMIT 3",
    "one_of_stream": "SELECT i, n FROM s ORDER BY i LIMIT 1",
    "next_of_stream": "SELECT i, n FROM s ORDER BY i LIMIT 2 OFFSET 1",
    "subtracted": "SELECT g FROM s EXCEPT SELECT g FROM t",
    "grouped_by_joined": "SELECT count(*) AS c, max(s.n) AS m FROM s JOIN t ON s.g = t.g GROUP BY t.k HAVING min(t.n) >= 0",
    "top_of_stream": f"SELECT g, i, n, rn {RANKED.format('s', 'i')} WHERE rn <= 2",
    "top_of_table": f"SELECT g, k, v {RANKED.format('t', 'k')} WHERE rn <= 2",
    "best_of_stream": f"SELECT g, n, i {RANKED.format('s', 'i')} WHERE rn = 1",
    "best_of_table": f"SELECT k, g {RANKED.format('t', 'k')} WHERE rn = 1",
}
WINDOWS = {
    "tumbling": (
        "SELECT window_start, g, count(*) AS c FROM TUMBLE(s, ts, INTERVAL '20 minutes') GROUP BY window_start, g",
        "SELECT window.start AS window_start, g, count(*) AS c FROM s GROUP BY window(ts, '20 minutes'), g",
    ),
    "hopping": (
        "SELECT max(n) AS hn, window_end FROM HOP(s, ts, INTERVAL '10 minutes', INTERVAL '25 minutes') GROUP BY window_end",
        "SELECT max(n) AS hn, window.end AS window_end FROM s GROUP BY window(ts, '25 minutes', '10 minutes')",
    ),
    "rolled_up": (  # of no rows Spark makes no total, PostgreSQL does
        "SELECT g, n, count(*) AS c, sum(k) AS sk FROM t GROUP BY ROLLUP (g, n)",
        "SELECT g, n, count(*) AS c, sum(k) AS sk FROM t GROUP BY g, n UNION ALL SELECT g, NULL, count(*), sum(k) FROM t GROUP BY g "
        "UNION ALL SELECT NULL, NULL, count(*), sum(k) FROM t",
    ),
    "nearest": (
        "SELECT s.i, t.n AS tn FROM s ASOF JOIN t ON s.g = t.g AND s.n >= t.n",
        "SELECT s.i, max(t.n) AS tn FROM s JOIN t ON s.g = t.g AND s.n >= t.n GROUP BY s.i",
    ),
    "nearest_or_none": (
        "SELECT s.i, t.n AS tn, t.g AS tg FROM s ASOF LEFT JOIN t ON s.g = t.g AND s.n >= t.n",
        "SELECT s.i, max(CASE WHEN s.n >= t.n THEN t.n END) AS tn, max(CASE WHEN s.n >= t.n THEN t.g END) AS tg "
        "FROM s LEFT JOIN t ON s.g = t.g GROUP BY s.i",
    ),
    "nearest_of_keys": (
        "SELECT a.k, b.n AS bn FROM t AS a ASOF JOIN t AS b ON a.k = b.k AND a.v <= b.v",
        "SELECT a.k, a.n AS bn FROM t AS a WHERE a.v <= a.v",
    ),
    "nearest_behind": (
        "SELECT a.i, b.n AS bn FROM s AS a ASOF JOIN s AS b ON a.g = b.g AND b.n > a.n",
        "SELECT a.i, min(b.n) AS bn FROM s AS a JOIN s AS b ON a.g = b.g AND b.n > a.n GROUP BY a.i",
    ),
    "spread": (
        "SELECT t.k, x, y FROM t, generate_series(0, t.n % 3) AS g(x), unnest(ARRAY[t.n, x]) WITH ORDINALITY AS u(y, z) WHERE z <> 3",
        "SELECT k, x, explode(array(n, x)) AS y FROM (SELECT k, n, explode(sequence(0, n % 3)) AS x FROM t WHERE n % 3 >= 0)",
    ),
    "constants": ("SELECT 1 AS a, 'x' AS b", "SELECT 1 AS a, 'x' AS b"),
    "constants_joined": (
        "SELECT t.k, c.w, c.x FROM t JOIN (VALUES ('a', 1, NULL), ('b', 2, 2.5), (NULL, 3, 1)) AS c(g, w, x) ON t.g = c.g",
        "SELECT t.k, c.w, c.x FROM t JOIN (VALUES ('a', 1, CAST(NULL AS DECIMAL(11, 1))), ('b', 2, 2.5), (NULL, 3, 1)) AS c(g, w, x) "
        "ON t.g = c.g",
    ),
    "series_joined": (
        "SELECT c.x, t.k, s.i FROM generate_series(0, 3) AS c(x) LEFT JOIN t ON c.x = t.n LEFT JOIN s ON s.n = c.x + 1",
        "SELECT c.x, t.k, s.i FROM (SELECT explode(sequence(0L, 3L)) AS x) AS c LEFT JOIN t ON c.x = t.n LEFT JOIN s ON s.n = c.x + 1",
    ),
    "series_grouped": (
        "SELECT x % 3 AS m, count(*) AS c FROM generate_series(1, 10) AS g(x) GROUP BY x % 3",
        "SELECT x % 3 AS m, count(*) AS c FROM (SELECT explode(sequence(1L, 10L)) AS x) GROUP BY x % 3",
    ),
    "constants_united": (
        "SELECT n FROM t UNION ALL SELECT 5 UNION ALL SELECT x FROM generate_series(1, 2) AS g(x)",
        "SELECT n FROM t UNION ALL VALUES (5L), (1L), (2L)",
    ),
    "sessions": (
        "SELECT g, count(*) AS c, SESSION_START(ts, INTERVAL '5 minutes') AS b FROM s GROUP BY g, SESSION(ts, INTERVAL '5 minutes')",
        "SELECT g, count(*) AS c, session_window.start AS b FROM s GROUP BY g, session_window(ts, '5 minutes')",
    ),
    "rows_in_windows": (
        "SELECT i, window_start FROM HOP(s, ts, INTERVAL '10 minutes', INTERVAL '20 minutes')",
        "SELECT i, w.start AS window_start FROM (SELECT i, window(ts, '20 minutes', '10 minutes') AS w FROM s)",
    ),
}
"""In the words of a pipeline, and in Spark's; no watermark closes windows here."""
OVER_VIEWS = {
    "view_of_view": ("SELECT c, count(*) AS groups FROM grouped_table GROUP BY c", "grouped_table"),
    "stateless_view_of_view": ("SELECT sn FROM grouped WHERE c > 1", "grouped"),
}


@cache
def runner_of_all(spark: SparkSession, preaggregated: bool) -> ViewRunner:
    """Made once: it keeps the plans, and nothing of the histories that it runs."""
    text = SOURCES
    own_words = {name: query for name, (query, _) in {**WINDOWS, **OVER_VIEWS}.items()}
    for name, query in {**QUERIES, **own_words}.items():
        text += f"CREATE MATERIALIZED VIEW {name} AS {query};\n"
    return ViewRunner(spark, catalog(text), preaggregated=preaggregated)


def check(spark: SparkSession, given_histories: list[History], rows_as_well: bool = False) -> None:
    """All views of all histories, with partial results by Spark; and `rows_as_well` without."""
    runners = [runner_of_all(spark, preaggregated) for preaggregated in [True, False][: 1 + rows_as_well]]
    queries = QUERIES | {name: query for name, (_, query) in WINDOWS.items()}
    for name, (query, below) in OVER_VIEWS.items():
        queries[name] = f"WITH {below} AS ({QUERIES[below]}) {query}"
    wanted = expected(spark, queries, given_histories)
    for runner in runners:
        runner.run(given_histories)
        for name, (columns, by_history) in wanted.items():
            given = runner.plans[name].schema
            spark_columns = to_arrow_schema(columns, timezone="UTC")
            assert [given.field(column).type for column in runner.plans[name].columns] == spark_columns.types, name
            for history, rows in zip(given_histories, by_history, strict=True):
                assert Counter(plain_row(row) for row in runner.rows(history, name)) == rows, name


@pytest.fixture
def spark_without_codegen(spark: SparkSession) -> Iterator[SparkSession]:
    """To compile classes for queries over a dozen rows takes longer than to run them."""
    chosen = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    before = {name: spark.conf.get(name) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, str(value))


def have_rows(histories: list[History]) -> bool:
    """Most of them; the first example of Hypothesis is the simplest there is, without any."""
    rows = [sum(frame.height for epochs in history.sources.values() for frame in epochs) for history in histories]
    return sum(count >= 4 for count in rows) > len(rows) // 2


FEW = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # an example takes seconds: no time to look for a smaller one
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(FEW, max_examples=1)
@given(st.lists(histories(), min_size=4, max_size=4).filter(have_rows), histories(rows_max=0))
def test_views_are_what_a_batch_query_gives(
    spark_without_codegen: SparkSession, histories: list[History], empty: History
) -> None:
    """All at once, one without any row among them: an example costs hundreds of Spark's jobs, a history next to nothing."""
    check(spark_without_codegen, [*histories, empty])


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(FEW, max_examples=10)
@given(st.lists(histories(30), min_size=3, max_size=8))
def test_views_are_what_a_batch_query_gives_at_length(
    spark_without_codegen: SparkSession, histories: list[History]
) -> None:
    check(spark_without_codegen, histories, rows_as_well=True)


@pytest.mark.parametrize("preaggregated", [True, False])
def test_only_what_is_left_of_a_sum_has_to_fit(spark: SparkSession, preaggregated: bool) -> None:
    text = SOURCES + "CREATE MATERIALIZED VIEW sums AS SELECT g, sum(n) AS sn FROM s GROUP BY g;"
    most = 2**63 - 1

    def runner_of(numbers: list[int]) -> tuple[ViewRunner, History]:
        rows = [{"g": "a", "n": number, ROW_ID: f"r{place}"} for place, number in enumerate(numbers)]
        return ViewRunner(spark, catalog(text), preaggregated=preaggregated), History(
            {"s": [changes(STREAM, [(INSERT, row) for row in rows])], "t": [changes(TABLE, [])]}, [2]
        )

    runner, history = runner_of([most, most, -most, -5])
    runner.run([history])
    assert runner.rows(history, "sums") == [{"g": "a", "sn": most - 5}]
    runner, history = runner_of([most, 1])
    with pytest.raises(AggregateOverflowError, match="64 bits"):
        runner.run([history])
