"""Which plan a SELECT gets, and what is said where there is none."""

from __future__ import annotations

import pytest
import sqlglot

from magnetar.pipeline.errors import PlanRefusedError, SqlError
from magnetar.pipeline.sql.computed import written
from magnetar.pipeline.sql.lexer import MAX_NESTING
from magnetar.pipeline.sql.plan import (
    Aggregate,
    Call,
    Dedup,
    Join,
    Named,
    Order,
    Plan,
    Project,
    Recompute,
    Scan,
    TopN,
    UnionAll,
    Windowed,
    explain,
    output_names,
)
from magnetar.pipeline.sql.planner import plan_query
from magnetar.pipeline.sql.scope import Columns
from magnetar.pipeline.sql.statements import Query
from magnetar.pipeline.sql.typed import kind_of_type

RELATIONS = {"t": ("a", "b", "ts", "x"), "u": None, "c": ("id", "name"), "o": ("id", "cid", "amount")}
A, X = Named("a", "a"), Named("x", "x")
COUNT = Call("count", None, "__call0")
RANKED = "FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY x DESC) AS rn FROM t WHERE b > 0) AS q"
BY_X = (Order("x", descending=True, nulls_first=True),)
JOINED = Join(Scan("o"), Scan("c"), "inner", (("cid", "id"),), (Named("id", "o__id"),), (Named("name", "c__name"),))


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("SELECT a, now() AS n FROM t WHERE b > 1", Project(Scan("t"), (A, Named("__epoch_timestamp", "n")), "b > 1")),
        ("SELECT * FROM u", Project(Scan("u"), (Named("*", "*"),))),
        ("SELECT q.a FROM t AS q", Project(Scan("t"), (A,))),
        (
            "SELECT a, sum(x) FILTER (WHERE b > 1) - count(*) AS r FROM t GROUP BY 1 HAVING count(*) > 1",
            Aggregate(
                Scan("t"),
                (A,),
                (Call("sum", "x", "__call0", "b > 1"), Call("count", None, "__call1")),
                (A, Named("__call0 - __call1", "r")),
                having="__call1 > 1",
            ),
        ),
        ("SELECT count(*) FROM t", Aggregate(Scan("t"), (), (COUNT,), (Named("__call0", "count_1"),))),
        (
            "SELECT x + 1 AS x, count(DISTINCT b) AS n FROM t GROUP BY x",
            Aggregate(
                Scan("t"),
                (Named("x", "__key0"),),
                (Call("count_distinct", "b", "__call0"),),
                (Named("__key0 + 1", "x"), Named("__call0", "n")),
            ),
        ),
        (
            "SELECT window_start, count(*) AS n FROM HOP(t, ts, INTERVAL '1 minute', INTERVAL '1 hour') GROUP BY window_start",
            Aggregate(
                Windowed(Scan("t"), "ts", 3_600_000_000, 60_000_000),
                (Named("window_start", "window_start"),),
                (COUNT,),
                (Named("window_start", "window_start"), Named("__call0", "n")),
            ),
        ),
        (
            "SELECT o.id, name FROM o JOIN c ON c.id = o.cid",
            Project(JOINED, (Named("o__id", "id"), Named("c__name", "name"))),
        ),
        (
            "SELECT o.id FROM o LEFT JOIN c FOR SYSTEM_TIME AS OF PROCTIME() ON o.cid = c.id",
            Project(
                Join(Scan("o"), Scan("c"), "left", (("cid", "id"),), (Named("id", "o__id"),), (), temporal=True),
                (Named("o__id", "id"),),
            ),
        ),
        (f"SELECT a, x, rn {RANKED} WHERE rn <= 3", TopN(Scan("t"), ("a",), BY_X, 3, (A, X), "rn", "b > 0")),
        (f"SELECT a, x {RANKED} WHERE rn < 3", TopN(Scan("t"), ("a",), BY_X, 2, (A, X), None, "b > 0")),
        (f"SELECT a, x {RANKED} WHERE rn = 1", Dedup(Scan("t"), ("a",), BY_X, (A, X), "b > 0")),
        (
            f"SELECT a, x + 1 AS y {RANKED} WHERE rn <= 3 AND x > 1",
            Project(
                TopN(Scan("t"), ("a",), BY_X, 3, tuple(Named(n, n) for n in ("a", "b", "ts", "x")), "rn", "b > 0"),
                (A, Named("x + 1", "y")),
                "x > 1",
            ),
        ),
        ("SELECT DISTINCT ON (a) a, x FROM t ORDER BY a, x DESC", Dedup(Scan("t"), ("a",), BY_X, (A, X))),
        ("SELECT DISTINCT a FROM t", Aggregate(Scan("t"), (A,), (Call("count", None, "__rows"),), (A,))),
        (
            "SELECT a, lag(x) OVER (PARTITION BY a ORDER BY ts) AS l FROM t",
            Recompute(
                Scan("t"),
                ("a",),
                (A, Named("LAG(x) OVER (PARTITION BY a ORDER BY ts NULLS LAST)", "l")),
            ),
        ),
        (
            "SELECT a, stddev(x) AS s FROM t WHERE b > 0 GROUP BY a",
            Recompute(Scan("t"), ("a",), (A, Named("STDDEV(x)", "s")), "b > 0", grouped=True),
        ),
        (
            "SELECT a FROM t UNION ALL SELECT b FROM t",
            UnionAll((Project(Scan("t"), (A,)), Project(Project(Scan("t"), (Named("b", "b"),)), (Named("b", "a"),)))),
        ),
        (
            "SELECT a FROM t UNION SELECT a FROM t",
            Aggregate(
                UnionAll((Project(Scan("t"), (A,)), Project(Scan("t"), (A,)))),
                (A,),
                (Call("count", None, "__rows"),),
                (A,),
            ),
        ),
        (
            "SELECT max(o.amount) AS m FROM o JOIN c ON o.cid = c.id GROUP BY c.name",
            Aggregate(
                Join(
                    Scan("o"),
                    Scan("c"),
                    "inner",
                    (("cid", "id"),),
                    (Named("amount", "o__amount"),),
                    (Named("name", "c__name"),),
                ),
                (Named("c__name", "__key0"),),
                (Call("max", "o__amount", "__call0"),),
                (Named("__call0", "m"),),
            ),
        ),
        (
            "SELECT o.id FROM o, c, t WHERE c.id = o.cid AND t.a = c.name AND o.amount > t.x",
            Project(
                Join(
                    Join(
                        Scan("o"),
                        Scan("c"),
                        "inner",
                        (("cid", "id"),),
                        (Named("id", "o__id"), Named("cid", "o__cid"), Named("amount", "o__amount")),
                        (Named("name", "c__name"), Named("id", "c__id")),
                    ),
                    Scan("t"),
                    "inner",
                    (("c__name", "a"),),
                    tuple(Named(n, n) for n in ("o__id", "o__cid", "o__amount", "c__name", "c__id")),
                    (Named("a", "t__a"), Named("x", "t__x")),
                ),
                (Named("o__id", "id"),),
                "c__id = o__cid AND t__a = c__name AND o__amount > t__x",
            ),
        ),
        (
            "SELECT a FROM t ORDER BY x DESC LIMIT 3 OFFSET 1",
            TopN(
                Project(Scan("t"), (A, Named("x", "__order0"))),
                (),
                (Order("__order0", descending=True, nulls_first=True),),
                3,
                (A,),
                offset=1,
            ),
        ),
        (
            "SELECT o.id FROM o FULL JOIN c ON o.cid = c.id",
            Project(
                Join(Scan("o"), Scan("c"), "full", (("cid", "id"),), (Named("id", "o__id"),), ()),
                (Named("o__id", "id"),),
            ),
        ),
        (
            "SELECT a, count(*) AS n, SESSION_END(ts, INTERVAL '10' SECOND) AS e FROM t GROUP BY a, SESSION(ts, INTERVAL '10' SECOND)",
            Recompute(
                Scan("t"),
                ("a",),
                (A, Named("COUNT(*)", "n"), Named("session_window.end", "e")),
                grouped=True,
                session=("ts", 10_000_000),
            ),
        ),
        ("WITH w AS (SELECT a FROM t) SELECT a FROM w", Project(Project(Scan("t"), (A,)), (A,))),
    ],
)
def test_the_plan_of_a_query(text: str, plan: Plan) -> None:
    found = plan_query(Query(text), RELATIONS)
    assert found == plan
    assert type(plan).__name__ in explain(found)


@pytest.mark.parametrize(
    ("text", "column", "fix"),
    [
        ("SELECT a FROM t OFFSET 1", 8, "LIMIT n OFFSET m"),
        ("SELECT a FROM t LIMIT 0", 8, "LIMIT 0 selects no rows"),
        ("SELECT a FROM t LIMIT 1 + 1", 8, "whole number"),
        ("SELECT DISTINCT a FROM t ORDER BY b LIMIT 1", 35, "select list"),
        ("SELECT * FROM u ORDER BY i + 1 LIMIT 1", 8, "name the columns"),
        ("SELECT a FROM t UNION ALL SELECT a, b FROM t", 8, "1, 2 columns"),
        ("SELECT * FROM u UNION ALL SELECT a FROM t", 8, "name them"),
        ("SELECT a FROM t EXCEPT ALL SELECT b FROM t", 8, "write EXCEPT"),
        ("SELECT a FROM t INTERSECT SELECT a, b FROM t", 8, "1, 2 columns"),
        ("SELECT o.id FROM o FULL JOIN c ON o.cid > c.id", 35, "equality"),
        ("SELECT o.id FROM o, t FULL JOIN c ON o.cid = c.id", 33, "subquery"),
        ("SELECT o.id FROM o JOIN t ON t.a = o.id AND t.b > o.cid FULL JOIN c ON o.cid = c.id", 67, "subquery"),
        ("SELECT o.id FROM o SEMI JOIN c ON o.cid = c.id", 30, "IN (SELECT"),
        ("SELECT o.id FROM o JOIN c ON o.cid = c.id RIGHT JOIN t ON t.a = o.id", 54, "LEFT JOIN"),
        ("SELECT o.id FROM o LEFT JOIN c ON o.cid = c.id AND c.name = o.amount + c.id", 52, "equality"),
        ("SELECT o.id FROM o JOIN c ON o.cid > c.id", 25, "equality"),
        ("SELECT id FROM o JOIN c ON o.cid = c.id", 8, "write o.id"),
        ("SELECT id FROM o FULL JOIN c USING (id)", 8, "write o.id"),
        ("SELECT id FROM o JOIN c USING (zz)", 32, "has no column zz"),
        ("SELECT o.id FROM o NATURAL JOIN u", 33, "JOIN u USING (x)"),
        ("SELECT o.id FROM o ASOF JOIN c ON o.cid = c.id", 30, "ON a.k = b.k AND a.ts >= b.ts"),
        ("SELECT o.id FROM o ASOF RIGHT JOIN c ON o.cid = c.id AND o.id > c.id", 36, "is inner or LEFT"),
        ("SELECT a FROM t, generate_series(1, 2.5) AS g", 18, "whole numbers"),
        ("SELECT a, generate_series(1, 2) FROM t GROUP BY a", 11, "stand in FROM"),
        ("SELECT unnest(a) + 1 AS x FROM t", 8, "write FROM t, unnest(t.a) AS u(x)"),
        ("SELECT a FROM SESSION(t, ts, INTERVAL '1 minute')", 15, "GROUP BY k, SESSION("),
        ("SELECT o.id FROM o, LATERAL (SELECT id FROM c LIMIT 1) AS l", 37, "as a JOIN"),
        ("SELECT * FROM u JOIN c ON u.i = c.id", 8, "name them"),
        ("SELECT a FROM nope", 15, "CREATE SOURCE"),
        ("SELECT a, zz FROM t", 11, "it has a, b"),
        ("SELECT a, b FROM t GROUP BY a", 11, "GROUP BY"),
        ("SELECT random() AS r FROM t", 8, "producer"),
        ("SELECT *", 8, "without FROM"),
        ("SELECT x", 8, "no column x; add FROM"),
        ("VALUES (1, 2), (3)", 9, "have 1, 2 columns"),
        ("SELECT a FROM t LEFT JOIN unnest(ARRAY[b]) AS g(i) ON g.i = b", 55, "ON true"),
        ("SELECT a FROM t WHERE a IN (VALUES (1, 2))", 23, "JOIN (VALUES"),
        ("SELECT a FROM t, (VALUES " + ", ".join(["(1)"] * 1001) + ") AS v(x)", 27, "INSERT them there"),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM c WHERE c.id > t.a)", 60, "by equality"),
        ("SELECT a FROM t WHERE a NOT IN (SELECT id, name FROM c)", 23, "as many columns"),
        ("SELECT a FROM t WHERE NOT ((a, b) IN (SELECT id, name FROM c))", 29, "NOT EXISTS"),
        ("SELECT a, (SELECT name FROM c WHERE c.id = t.a) AS n FROM t", 19, "max(x)"),
        ("SELECT a FROM t WHERE EXISTS (SELECT max(id) FROM c WHERE c.id = t.a GROUP BY name)", 66, "view of its own"),
        ("SELECT a FROM t WHERE a IN (SELECT c.id + t.b FROM c)", 43, "outer query's columns"),
        ("SELECT a, count(*) AS n FROM t GROUP BY a, HOP(ts, INTERVAL '1 minute', INTERVAL '1 hour')", 44, "FROM HOP"),
        ("SELECT a, count(*) AS n FROM t GROUP BY a, SESSION(ts)", 44, "SESSION(ts, INTERVAL"),
        ("SELECT count(*) AS n FROM t GROUP BY SESSION(ts, INTERVAL '1 minute')", 8, "add GROUP BY"),
        ("SELECT string_agg(a, ',') FROM t", 19, "add GROUP BY"),
        ("SELECT rank() OVER (ORDER BY a) AS r FROM t", 8, "PARTITION BY"),
        ("SELECT a, b AS a FROM t", 11, "another name"),
        ("SELECT a FROM TUMBLE(t, ts)", 15, "TUMBLE(t, ts, INTERVAL"),
        ("SELECT sum(count(*)) FROM t GROUP BY a", 8, "aggregate of an aggregate"),
    ],
)
def test_a_refusal_says_where_why_and_what_instead(text: str, column: int, fix: str) -> None:
    with pytest.raises(PlanRefusedError) as caught:
        plan_query(Query(text, line=7), RELATIONS)
    assert fix in str(caught.value)
    assert caught.value.line == 7
    assert caught.value.column == column


def test_text_that_is_no_query_is_an_error_in_its_place() -> None:
    with pytest.raises(SqlError, match="line 4"):
        plan_query(Query("SELECT a\nFROM t WHERE", line=3, column=5), RELATIONS)


def test_the_deepest_query_the_lexer_lets_through_is_planned() -> None:
    text = "SELECT " + "(" * MAX_NESTING + "a" + ")" * MAX_NESTING + " AS d FROM t"
    plan = plan_query(Query(text), RELATIONS)
    assert isinstance(plan, Project)
    assert sqlglot.parse_one(plan.outputs[0].sql, read="spark").find(sqlglot.exp.Column) is not None


def test_a_long_chain_of_operators_is_planned() -> None:
    plan = plan_query(Query("SELECT a" + " + 1" * 4_000 + " AS s FROM t"), RELATIONS)
    assert isinstance(plan, Project)
    assert plan.outputs[0].sql.count("+") == 4_000


@pytest.mark.parametrize(
    ("conditions", "interval"),
    [
        (
            "a.ts BETWEEN b.ts - INTERVAL '2 seconds' AND b.ts + INTERVAL '3 seconds'",
            ("a__ts", "b__ts", -2_000_000, 3_000_000),
        ),
        (
            "b.ts BETWEEN a.ts - INTERVAL '2 seconds' AND a.ts + INTERVAL '3 seconds'",
            ("a__ts", "b__ts", -3_000_000, 2_000_000),
        ),
        ("a.ts > b.ts AND b.ts + INTERVAL '1' MINUTE >= a.ts", ("a__ts", "b__ts", 0, 60_000_000)),
        ("a.ts - INTERVAL '1 second' <= b.ts", ("a__ts", "b__ts", None, 1_000_000)),
        ("(a.ts < b.ts OR a.ts > b.ts)", None),
        ("a.ts <= b.ts + INTERVAL '1 month'", None),
        ("a.x = b.x", None),
    ],
)
def test_how_far_apart_the_times_of_joined_rows_may_be(conditions: str, interval: object) -> None:
    names = ("k", "x", "ts")
    relations = {name: Columns.of(names, {"ts": "timestamp"}) for name in ("a", "b")}
    for query in (f"FROM a JOIN b ON a.k = b.k AND {conditions}", f"FROM a, b WHERE a.k = b.k AND ({conditions})"):
        plan = plan_query(Query(f"SELECT a.x, b.x AS y {query}"), relations)
        assert isinstance(plan, Project)
        assert isinstance(plan.input, Join)
        assert plan.input.interval == interval
    outer = plan_query(Query("SELECT a.x FROM a LEFT JOIN b ON a.k = b.k WHERE a.ts > b.ts"), relations)
    assert isinstance(outer, Project)
    assert isinstance(outer.input, Join)
    assert outer.input.interval is None


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("SELECT a FROM t ORDER BY x DESC", "SELECT a FROM t"),
        ("SELECT a AS n FROM t ORDER BY 1, n NULLS FIRST", "SELECT a AS n FROM t"),
        ("SELECT a FROM t UNION ALL SELECT x FROM t ORDER BY a", "SELECT a FROM t UNION ALL SELECT x FROM t"),
        ("SELECT n FROM (SELECT a AS n FROM t ORDER BY b) q", "SELECT n FROM (SELECT a AS n FROM t) q"),
        ("SELECT a, count(*) AS n FROM t GROUP BY a ORDER BY count(*)", "SELECT a, count(*) AS n FROM t GROUP BY a"),
        ("SELECT m FROM (SELECT a, b FROM t) q (m)", "SELECT a AS m FROM (SELECT a, b FROM t) q"),
        ("WITH q (m) AS (SELECT x FROM t) SELECT m FROM q", "WITH q AS (SELECT x AS m FROM t) SELECT m FROM q"),
        ("SELECT k.m FROM t AS k (m)", "SELECT k.a AS m FROM t AS k"),
    ],
)
def test_an_order_says_nothing_of_a_view_and_columns_have_the_names_that_are_given(text: str, same: str) -> None:
    found, wanted = plan_query(Query(text), RELATIONS), plan_query(Query(same), RELATIONS)
    assert output_names(found) == output_names(wanted)
    assert found == wanted or "(m)" in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT a FROM t ORDER BY nothing", "t has no column nothing"),
        ("SELECT a FROM t ORDER BY 2", "no column of that number"),
        ("SELECT * FROM (SELECT a FROM t) q (m, n)", "2 names for 1 columns"),
        ("SELECT * FROM u AS k (m)", "name them instead of"),
        ("SELECT k.a FROM t AS k (m)", "k has no column a"),
    ],
)
def test_an_order_or_a_name_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(PlanRefusedError, match=why):
        plan_query(Query(text), RELATIONS)


def test_an_expression_is_shown_as_it_was_written() -> None:
    plan = plan_query(
        Query(
            "SELECT b + 1 AS k, sum(x) FILTER (WHERE a > 0) / count(ts) AS q FROM t GROUP BY b + 1 HAVING 10 / max(a) > 1"
        ),
        RELATIONS,
    )
    assert isinstance(plan, Aggregate)
    assert [written(output.sql) for output in plan.outputs] == ["k", "SUM(x) FILTER(WHERE a > 0) / COUNT(ts)"]
    assert written(plan.having or "") == "10 / MAX(a) > 1"
    plan = plan_query(Query("SELECT o.amount / c.id AS q FROM o JOIN c ON o.cid = c.id"), RELATIONS)
    assert isinstance(plan, Project)
    assert written(plan.outputs[0].sql) == "o.amount / c.id"


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("SELECT a / (SELECT max(id) FROM c) AS d FROM t", "a / (SELECT MAX(id) FROM c)"),
        (
            "SELECT 1 / (SELECT count(*) FROM c WHERE c.id = t.a) AS d FROM t",
            "1 / (SELECT COUNT(*) FROM c WHERE c.id = t.a)",
        ),
        ("SELECT a, sum(b) / (SELECT max(id) FROM c) AS d FROM t GROUP BY a", "SUM(b) / (SELECT MAX(id) FROM c)"),
        ("SELECT 1 / CASE WHEN a IN (SELECT id FROM c) THEN a ELSE 0 END AS d FROM t", "a IN (SELECT id FROM c)"),
    ],
)
def test_an_expression_with_a_subquery_is_shown_as_it_was_written(query: str, part: str) -> None:
    plan = plan_query(Query(query), RELATIONS)
    assert isinstance(plan, Project | Aggregate)
    shown = written(plan.outputs[-1].sql)
    assert part in shown
    assert "__sub" not in shown


def test_the_names_of_columns_are_not_those_within_functions_of_maps() -> None:
    relations = {"m": Columns.of(("m", "k", "v"), {"m": kind_of_type("MAP(VARCHAR, INT)"), "k": "text", "v": "int"})}
    plan = plan_query(Query("SELECT map_insert(m, k, v) AS a, map_delete(m, k) AS b FROM m"), relations)
    assert isinstance(plan, Project)
    assert [output.sql for output in plan.outputs] == [
        "MAP_CONCAT(MAP_FILTER(m, (__key, __value) -> NOT MAP_CONTAINS_KEY(MAP(k, v), __key)), MAP(k, v))",
        "MAP_FILTER(m, (__key, __value) -> NOT __key IS NOT DISTINCT FROM k)",
    ]


@pytest.mark.parametrize(
    ("expression", "sql", "kind"),
    [
        ("(s).b.c", "(s).b.c", "text"),
        ("(s).A + 1", "TRY_ADD(((s).a), 1)", "int"),
        ("(ROW(1, 'x')).f2", "(STRUCT(1 AS f1, 'x' AS f2)).f2", "text"),
        ("m['a']", "TRY_ELEMENT_AT(m, 'a')", "int"),
        ("n[1]", "TRY_ELEMENT_AT(n, 1)", "text"),
        ("MAP {1: 'x', 2: NULL}", "MAP(1, 'x', 2, NULL)", "map"),
        ("map_keys(m)", "MAP_KEYS(m)", "array"),
    ],
)
def test_structs_and_maps(expression: str, sql: str, kind: str) -> None:
    types = {"s": "STRUCT<a INT, b STRUCT<c VARCHAR>>", "m": "MAP(VARCHAR, INT)", "n": "MAP(INT, VARCHAR)"}
    relations = {"t": Columns.of(types, {name: kind_of_type(text) for name, text in types.items()})}
    plan = plan_query(Query(f"SELECT {expression} AS x, (s).* FROM t"), relations)
    assert isinstance(plan, Project)
    assert (plan.outputs[0].sql, plan.outputs[0].kind) == (sql, kind)
    assert [output.name for output in plan.outputs] == ["x", "a", "b"]
    for wrong, why in (("(s).z", "has no field z; it has a, b"), ("s::text", "to_jsonb"), ("(m).a", "has no fields")):
        with pytest.raises(PlanRefusedError, match=why):
            plan_query(Query(f"SELECT {wrong} AS x FROM t"), relations)
