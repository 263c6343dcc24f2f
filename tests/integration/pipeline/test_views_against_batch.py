"""Every operator: stages of the SQL, epoch by epoch and rescaled in between, against plain Spark SQL over the final input."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.view_site import ViewSite, World
from tests.support.view_worlds import SOURCES, catalog, expected, plain_row, worlds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = {
    "stateless": "SELECT g, n + 1 AS n1 FROM s WHERE n > 0",
    "stateless_of_table": "SELECT n FROM t WHERE v > 0",
    "grouped": "SELECT g, count(*) AS c, count(n) AS cn, sum(n) AS sn, avg(n) AS an, min(v) AS lv, max(v) AS hv FROM s GROUP BY g",
    "grouped_table": "SELECT g, count(*) AS c, sum(n) AS sn, avg(n) AS an FROM t GROUP BY g",
    "extremes_of_table": "SELECT g, min(n) AS ln, max(v) AS hv, sum(v) AS sv FROM t GROUP BY g",
    "kept_groups": "SELECT upper(g) AS e, sum(n) + 1 AS s1 FROM t GROUP BY g HAVING count(*) > 1",
    "filtered": "SELECT n, count(*) FILTER (WHERE v > 0) AS c, sum(n) FILTER (WHERE v > 0) AS f FROM s GROUP BY n",
    "distinct_rows": "SELECT DISTINCT g, n FROM t",
    "counted_distinct": "SELECT g, count(DISTINCT n) AS d FROM s GROUP BY g",
    "group_not_shown": "SELECT count(*) AS c FROM s GROUP BY g",
}
OVER_VIEWS = {
    "view_of_view": ("SELECT c, count(*) AS groups FROM grouped_table GROUP BY c", "grouped_table"),
    "stateless_view_of_view": ("SELECT sn FROM grouped WHERE c > 1", "grouped"),
}


def check(spark: SparkSession, given_worlds: list[World]) -> None:
    """All views of all worlds."""
    text = SOURCES
    for name, query in [*QUERIES.items(), *((name, query) for name, (query, _) in OVER_VIEWS.items())]:
        text += f"CREATE MATERIALIZED VIEW {name} AS {query};\n"
    site = ViewSite(spark, catalog(text))
    site.run(given_worlds)
    queries = dict(QUERIES)
    for name, (query, below) in OVER_VIEWS.items():
        queries[name] = f"WITH {below} AS ({QUERIES[below]}) {query}"
    for name, by_world in expected(spark, queries, given_worlds).items():
        for world, rows in zip(given_worlds, by_world, strict=True):
            assert Counter(plain_row(row) for row in site.rows(world, name)) == rows, name


ONCE = settings(
    deadline=None,
    max_examples=2,
    phases=[Phase.explicit, Phase.generate],  # an example takes seconds: no time to look for a smaller one
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@ONCE
@given(st.lists(worlds(), min_size=4, max_size=6))
def test_views_are_what_a_batch_query_gives(spark: SparkSession, histories: list[World]) -> None:
    check(spark, histories)


@pytest.mark.long
@settings(ONCE, max_examples=15)
@given(st.lists(worlds(30), min_size=4, max_size=12))
def test_views_are_what_a_batch_query_gives_at_length(spark: SparkSession, histories: list[World]) -> None:
    check(spark, histories)
