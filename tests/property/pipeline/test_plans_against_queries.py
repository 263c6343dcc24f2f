"""Every query means what its plan does: DuckDB answers both, the query as it is written and the plan that was made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.sql.plan import output_names
from magnetar.pipeline.sql.planner import plan_query
from magnetar.pipeline.sql.scope import Columns
from magnetar.pipeline.sql.statements import Query
from tests.support.plans_in_duckdb import as_sql

COLUMNS = {"t": ("k", "a", "b"), "u": ("i", "a", "c"), "w": ("j", "c")}
RELATIONS = {name: Columns.of(columns, dict.fromkeys(columns, "int")) for name, columns in COLUMNS.items()}
QUERIES = {
    "in": "SELECT k FROM t WHERE a IN (SELECT a FROM u WHERE c > 0)",
    "in_of_groups": "SELECT k FROM t WHERE a IN (SELECT a FROM u GROUP BY a HAVING count(*) > 1)",
    "in_correlated": "SELECT k FROM t WHERE a IN (SELECT u.a FROM u WHERE u.c = t.b)",
    "in_row": "SELECT k FROM t WHERE (a, b) IN (SELECT a, c FROM u)",
    "in_or": "SELECT k FROM t WHERE b > 1 OR a IN (SELECT a FROM u)",
    "in_shown": "SELECT k, a IN (SELECT c FROM u) AS found FROM t",
    "in_case": "SELECT k, CASE WHEN a IN (SELECT c FROM u) THEN 1 ELSE 0 END AS found FROM t",
    "in_union": "SELECT k FROM t WHERE a IN (SELECT a FROM u UNION SELECT c FROM w)",
    "in_limit": "SELECT k FROM t WHERE a IN (SELECT a FROM u ORDER BY i LIMIT 2)",
    "not_in": "SELECT k FROM t WHERE a NOT IN (SELECT c FROM u)",
    "not_in_filtered": "SELECT k FROM t WHERE a NOT IN (SELECT c FROM u WHERE a > 0) AND b >= 0",
    "not_in_of_groups": "SELECT k FROM t WHERE a NOT IN (SELECT a FROM u GROUP BY a HAVING count(*) < 2)",
    "not_in_correlated": "SELECT k FROM t WHERE a NOT IN (SELECT u.a FROM u WHERE u.c = t.b)",
    "not_in_shown": "SELECT k, a NOT IN (SELECT c FROM u WHERE i > 2) AS out FROM t",
    "any": "SELECT k FROM t WHERE a = ANY (SELECT c FROM u)",
    "all": "SELECT k FROM t WHERE a <> ALL (SELECT c FROM u)",
    "exists": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND c > 0)",
    "exists_unqualified": "SELECT k FROM t WHERE EXISTS (SELECT * FROM w WHERE c = b)",
    "exists_alone": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE c > 1)",
    "exists_of_groups": "SELECT k FROM t WHERE NOT EXISTS (SELECT a FROM u GROUP BY a HAVING count(*) > 1)",
    "exists_of_aggregate": "SELECT k FROM t WHERE EXISTS (SELECT count(*) FROM u WHERE c > 99)",
    "exists_of_join": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u JOIN w ON u.c = w.c WHERE u.a = t.a)",
    "exists_two": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a) AND NOT EXISTS (SELECT 1 FROM w WHERE w.c = t.b)",
    "exists_computed": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a + 1 = t.a - t.b)",
    "not_exists": "SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "not_exists_or": "SELECT k FROM t WHERE a > 1 OR NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.c = t.b)",
    "exists_nested": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND EXISTS (SELECT 1 FROM w WHERE w.c = u.c))",
    "exists_over_join": "SELECT t.k, u.i FROM t JOIN u ON t.a = u.a WHERE EXISTS (SELECT 1 FROM w WHERE w.c = u.c)",
    "scalar": "SELECT k FROM t WHERE a > (SELECT avg(c) FROM u)",
    "scalar_correlated": "SELECT k FROM t WHERE b < (SELECT max(c) FROM u WHERE u.a = t.a)",
    "scalar_count": "SELECT k, (SELECT count(*) FROM u WHERE u.a = t.a) AS n FROM t",
    "scalar_count_more": "SELECT k, (SELECT count(c) + coalesce(sum(c), 7) FROM u WHERE u.a = t.a) AS n FROM t",
    "scalar_shown": "SELECT k, (SELECT max(c) FROM u) - a AS d FROM t",
    "scalar_of_groups": "SELECT a, count(*) AS n, (SELECT max(c) FROM u) AS m FROM t GROUP BY a",
    "having_subquery": "SELECT a, sum(b) AS s FROM t GROUP BY a HAVING count(*) >= (SELECT count(*) FROM w WHERE c > 1)",
    "having_in": "SELECT a FROM t GROUP BY a HAVING max(b) IN (SELECT c FROM u)",
    "full": "SELECT t.k, u.i, t.a, u.a AS ua FROM t FULL JOIN u ON t.a = u.a",
    "full_filtered": "SELECT t.k, u.i FROM t FULL JOIN u ON t.a = u.a AND t.b = u.c WHERE t.k IS NULL OR u.i IS NULL",
    "full_chain": "SELECT t.k, u.i, w.j FROM t FULL JOIN u ON t.a = u.a JOIN w ON w.c = u.c",
    "full_second": "SELECT t.k, u.i, w.j FROM t JOIN u ON t.a = u.a FULL JOIN w ON w.c = u.c",
    "full_of_groups": "SELECT x.a, y.c, x.n, y.m FROM (SELECT a, count(*) AS n FROM t GROUP BY a) AS x "
    "FULL JOIN (SELECT c, count(*) AS m FROM u GROUP BY c) AS y ON x.a = y.c",
    "using": "SELECT a, k, b, i, c FROM t JOIN u USING (a)",
    "using_left": "SELECT a, k, i FROM t LEFT JOIN u USING (a)",
    "using_right": "SELECT a, k, i FROM t RIGHT JOIN u USING (a)",
    "using_chain": "SELECT k, i, j, a, c FROM t JOIN u USING (a) JOIN w USING (c)",
    "using_grouped": "SELECT a, count(*) AS n FROM t JOIN u USING (a) GROUP BY a",
    "using_full": "SELECT k, i, t.a, u.a AS ua FROM t FULL JOIN u USING (a)",
    "natural": "SELECT a, k, i FROM t NATURAL JOIN u",
    "natural_left": "SELECT a, k, i FROM t NATURAL LEFT JOIN u",
    "asof": "SELECT t.k, u.c FROM t ASOF JOIN u ON t.a = u.a AND t.b >= u.c",
    "asof_left": "SELECT t.k, t.a, u.c, u.a AS ua FROM t ASOF LEFT JOIN u ON t.a = u.a AND t.b >= u.c",
    "asof_left_before": "SELECT t.k, u.c FROM t ASOF LEFT JOIN u ON t.a = u.a AND t.b < u.c",
    "asof_turned": "SELECT t.k, u.c FROM t ASOF JOIN u ON t.a = u.a AND u.c > t.b",
    "asof_then": "SELECT t.k, u.c, w.j FROM t ASOF JOIN u ON t.a = u.a AND t.b > u.c JOIN w ON w.c = u.c",
    "left_on_more": "SELECT t.k, u.i FROM t LEFT JOIN u ON t.a = u.a AND u.c > 0",
    "rollup": "SELECT a, b, count(*) AS n, sum(k) AS s FROM t GROUP BY ROLLUP (a, b)",
    "rollup_beside": "SELECT a, b, count(*) AS n FROM t GROUP BY a, ROLLUP (b)",
    "cube": "SELECT a, b, grouping(a, b) AS g, count(*) AS n FROM t GROUP BY CUBE (a, b)",
    "grouping_sets": "SELECT a, b, max(k) AS m FROM t GROUP BY GROUPING SETS ((a), (a, b), (), (b)) HAVING count(*) > 1",
    "grouping_sets_two": "SELECT a, b, count(*) AS n FROM t GROUP BY GROUPING SETS (a, ()), GROUPING SETS (b, ())",
    "grouping_computed": "SELECT a + 1 AS a1, coalesce(b, -1) AS b1, count(*) AS n FROM t GROUP BY ROLLUP (a + 1, b)",
    "intersect": "SELECT a, b FROM t INTERSECT SELECT a, c FROM u",
    "except": "SELECT a FROM t EXCEPT SELECT c FROM u",
    "except_nested": "SELECT a FROM t EXCEPT (SELECT a FROM u INTERSECT SELECT c FROM w)",
    "limit": "SELECT k, a FROM t ORDER BY a DESC, k LIMIT 3",
    "limit_offset": "SELECT k FROM t ORDER BY a NULLS FIRST, k DESC LIMIT 2 OFFSET 1",
    "limit_fetch": "SELECT k FROM t ORDER BY k FETCH FIRST 2 ROWS ONLY",
    "limit_hidden": "SELECT a AS x FROM t ORDER BY t.b + 1, k LIMIT 4",
    "limit_by_number": "SELECT b, k FROM t ORDER BY 2 DESC LIMIT 2",
    "limit_of_groups": "SELECT a, count(*) AS n FROM t GROUP BY a ORDER BY count(*) DESC, a LIMIT 2",
    "limit_of_join": "SELECT t.k, u.i FROM t JOIN u ON t.a = u.a ORDER BY u.i DESC, t.k LIMIT 3",
    "limit_of_union": "SELECT k FROM t UNION ALL SELECT i FROM u ORDER BY k DESC LIMIT 2",
    "limit_of_distinct": "SELECT DISTINCT a FROM t ORDER BY a LIMIT 2",
    "limit_inside": "SELECT count(*) AS n, max(a) AS m FROM (SELECT a FROM t ORDER BY k LIMIT 3) AS q",
    "limit_in_with": "WITH q AS (SELECT k, a FROM t ORDER BY k LIMIT 3) SELECT q.k, u.i FROM q JOIN u ON q.a = u.a",
    "top_n_of_join": "SELECT k, i FROM (SELECT t.k, u.i, row_number() OVER (PARTITION BY t.k ORDER BY u.i DESC) AS rn "
    "FROM t JOIN u ON t.a = u.a AND t.b < u.c) AS q WHERE rn <= 2",
    "top_n_computed": "SELECT k + 1 AS k1, rn * 10 AS r FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY k) AS rn FROM t) AS q "
    "WHERE rn <= 2 AND b > 0",
    "top_n_grouped": "SELECT b, count(*) AS n FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY k) AS rn FROM t) AS q "
    "WHERE rn <= 2 GROUP BY b",
    "constants": "SELECT 1 AS a, 'x' AS b, 1 + 1 AS c",
    "constants_filtered": "SELECT 1 AS a WHERE 1 > 2",
    "constants_united": "SELECT 1 AS a UNION ALL SELECT 2 UNION ALL SELECT k FROM t",
    "values": "SELECT * FROM (VALUES (1, 'a'), (2, NULL), (NULL, 'c')) AS v(x, y)",
    "values_alone": "VALUES (1, 2), (3, NULL)",
    "values_joined": "SELECT t.k, v.y FROM t JOIN (VALUES (0, 10), (1, 11), (1, 12), (NULL, 13)) AS v(x, y) ON t.a = v.x",
    "values_joined_left": "SELECT v.x, t.k FROM (VALUES (0), (2), (NULL)) AS v(x) LEFT JOIN t ON t.a = v.x AND t.b > 0",
    "values_joined_full": "SELECT v.x, t.k FROM t FULL JOIN (VALUES (0), (2)) AS v(x) ON t.a = v.x",
    "values_in": "SELECT k FROM t WHERE a IN (SELECT x FROM (VALUES (0), (3)) AS v(x)) AND b IN (VALUES (1), (2))",
    "values_grouped": "SELECT x, count(*) AS n FROM (VALUES (1), (1), (2), (NULL)) AS v(x) GROUP BY x",
    "values_first": "SELECT x FROM (VALUES (3), (1), (2)) AS v(x) ORDER BY x LIMIT 2",
    "values_subquery": "SELECT x, (SELECT count(*) FROM t WHERE t.a = v.x) AS n FROM (VALUES (0), (1)) AS v(x)",
    "values_with": "WITH v(x) AS (VALUES (0), (1)) SELECT v.x, t.k FROM v JOIN t ON t.b = v.x",
    "no_from_subquery": "SELECT (SELECT max(a) FROM t) AS m, (SELECT count(*) FROM u) AS n",
    "numbered": "SELECT k FROM (SELECT k, b, row_number() OVER (PARTITION BY a ORDER BY k) AS rn FROM t) AS q WHERE rn > b",
    "top_n_in": "SELECT k FROM (SELECT k, row_number() OVER (PARTITION BY a ORDER BY k) AS rn "
    "FROM t WHERE b IN (SELECT c FROM u)) AS q WHERE rn <= 1",
}
VALUES = st.integers(0, 3) | st.none()
TABLES = st.fixed_dictionaries(
    {name: st.lists(st.tuples(*[VALUES] * (len(columns) - 1)), max_size=7) for name, columns in COLUMNS.items()}
)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as found:
        for name, columns in COLUMNS.items():
            found.execute(f"CREATE TABLE {name} ({', '.join(f'{column} INT' for column in columns)})")
        found.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")  # as in PostgreSQL
        found.execute("CREATE MACRO safe_add(x, y) AS x + y")
        found.execute("CREATE MACRO safe_subtract(x, y) AS x - y")
        found.execute("CREATE MACRO safe_multiply(x, y) AS x * y")
        yield found


@pytest.fixture(scope="module")
def plans() -> dict[str, str]:
    return {name: as_sql(plan_query(Query(query), RELATIONS)) for name, query in QUERIES.items()}


def _shown(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> Counter[tuple[Any, ...]]:
    return Counter(connection.execute(sql).fetchall())


@settings(max_examples=15, deadline=None)
@given(TABLES)
def test_a_plan_means_what_its_query_does(
    connection: duckdb.DuckDBPyConnection, plans: dict[str, str], tables: dict[str, list[tuple[int | None, ...]]]
) -> None:
    for table, found in tables.items():
        connection.execute(f"DELETE FROM {table}")
        if found:
            values = ", ".join(f"({', '.join(map(_shown, [number, *row]))})" for number, row in enumerate(found))
            connection.execute(f"INSERT INTO {table} VALUES {values}")
    different = {
        name: (ours, theirs)
        for name, sql in plans.items()
        if (ours := rows(connection, sql)) != (theirs := rows(connection, QUERIES[name]))
    }
    assert different == {}


def test_columns_of_using_come_first_and_once() -> None:
    def columns(query: str) -> tuple[str, ...] | None:
        return output_names(plan_query(Query(query), RELATIONS))

    assert columns("SELECT * FROM t JOIN u USING (a)") == ("a", "k", "b", "i", "c")
    assert columns("SELECT * FROM t RIGHT JOIN u USING (a)") == ("a", "k", "b", "i", "c")
    assert columns("SELECT * FROM t NATURAL JOIN u NATURAL JOIN w") == ("c", "a", "k", "b", "i", "j")
    assert columns("SELECT u.*, t.a AS ta FROM t JOIN u USING (a)") == ("i", "a", "c", "ta")
