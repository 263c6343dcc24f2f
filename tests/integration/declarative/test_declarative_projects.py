"""Projects of Spark Declarative Pipelines in a real session: what is kept is at each refresh what the query itself gives."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.pipelines", reason="pyspark 4.1 or later is not installed: pip install 'magnetar[spark]'")

from pyspark.pipelines.init_cli import init

from magnetar.pipeline import register
from magnetar.pipeline.declarative.project import ProjectError, find_spec, load_project
from magnetar.pipeline.declarative.run import Planned, Run

pytestmark = pytest.mark.timeout(300)

SQL = """
-- what comes in, as it is
CREATE STREAMING TABLE orders AS SELECT k, v, price, country FROM STREAM(incoming);

CREATE MATERIALIZED VIEW totals COMMENT 'per key' AS
SELECT k, count(*) AS n, sum(v) AS total, min(v) AS least, max(v) AS most FROM orders GROUP BY k;

CREATE MATERIALIZED VIEW busy AS
SELECT upper(k) AS key, sum(v) / count(v) AS mean, count(*) FILTER (WHERE v > 5) + 1 AS large, avg(price) AS price
FROM orders WHERE v IS NOT NULL GROUP BY k HAVING count(*) > 1;

CREATE MATERIALIZED VIEW everything AS SELECT count(*) AS n, sum(price) AS price FROM orders;

CREATE MATERIALIZED VIEW countries AS SELECT DISTINCT country FROM orders;

CREATE MATERIALIZED VIEW named AS
SELECT o.k, c.name, sum(o.v) AS total FROM orders o JOIN lookup c ON o.country = c.country GROUP BY o.k, c.name;

CREATE MATERIALIZED VIEW ranked AS SELECT k, n, rank() OVER (ORDER BY n DESC, k) AS place FROM totals;
"""

PYTHON = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.temporary_view
def incoming() -> DataFrame:
    return spark.readStream.schema("k string, v bigint, price decimal(10,2), country string").json("ROOT/input")


@dp.materialized_view(name="cheap", comment="rows that only grow")
def few() -> DataFrame:
    rows = spark.read.table("orders")
    return rows.where(F.col("price") < 5).select("k", (F.col("v") + 1).alias("next"))


@dp.materialized_view
def lookup() -> DataFrame:
    return spark.read.schema("country string, name string").csv("ROOT/countries")


@dp.materialized_view
def sampled() -> DataFrame:
    return spark.read.table("orders").where(F.rand(7) < 2).groupBy("k").count()


dp.create_streaming_table("gathered", comment="of two flows")


@dp.append_flow(target="gathered")
def from_orders() -> DataFrame:
    return spark.readStream.table("orders").select("k", "v")


@dp.append_flow(target="gathered", name="again")
def from_orders_again() -> DataFrame:
    return spark.readStream.table("orders").select(F.concat(F.lit("again "), "k").alias("k"), "v")


dp.create_sink("out", "parquet", {"path": "ROOT/sent"})


@dp.append_flow(target="out")
def to_out() -> DataFrame:
    return spark.readStream.table("orders").select("k")
"""

QUERIES = {
    "totals": "SELECT k, count(*), sum(v), min(v), max(v) FROM sdp.orders GROUP BY k",
    "busy": "SELECT upper(k), sum(v) / count(v), count(*) FILTER (WHERE v > 5) + 1, avg(price) FROM sdp.orders "
    "WHERE v IS NOT NULL GROUP BY k HAVING count(*) > 1",
    "everything": "SELECT count(*), sum(price) FROM sdp.orders",
    "countries": "SELECT DISTINCT country FROM sdp.orders",
    "named": "SELECT o.k, c.name, sum(o.v) FROM sdp.orders o JOIN sdp.lookup c ON o.country = c.country GROUP BY o.k, c.name",
    "ranked": "SELECT k, n, rank() OVER (ORDER BY n DESC, k) FROM (SELECT k, count(*) n FROM sdp.orders GROUP BY k)",
    "cheap": "SELECT k, v + 1 FROM sdp.orders WHERE price < 5",
    "sampled": "SELECT k, count(*) FROM sdp.orders GROUP BY k",
    "gathered": "SELECT k, v FROM sdp.orders UNION ALL SELECT concat('again ', k), v FROM sdp.orders",
}
KEPT = {"totals", "busy", "everything", "countries", "named", "cheap", "lookup"}


def project(root: Path, sql: str = SQL, python: str = PYTHON, database: str = "sdp") -> Path:
    root.mkdir(exist_ok=True)
    spec = root / "spark-pipeline.yml"
    spec.write_text(
        f"name: shop\nstorage: file://{root}/storage\ndatabase: {database}\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    (root / "transformations").mkdir(exist_ok=True)
    (root / "transformations" / "a.sql").write_text(sql)
    (root / "transformations" / "b.py").write_text(python.replace("ROOT", str(root)))
    (root / "input").mkdir(exist_ok=True)
    (root / "countries").mkdir(exist_ok=True)
    return spec


def orders(root: Path, name: str, first: int, last: int) -> None:
    lines = [
        {"k": f"k{n % 5}" if n % 11 else None, "v": n if n % 7 else None, "price": n / 4, "country": "abc"[n % 3]}
        for n in range(first, last)
    ]
    write(root / "input" / f"{name}.json", "".join(json.dumps(line) + "\n" for line in lines))


def write(path: Path, text: str) -> None:
    """In one step, as files come into a directory that streams read."""
    hidden = path.with_name(f"_{path.name}")
    hidden.write_text(text)
    hidden.rename(path)


def rows(spark: Any, query: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in spark.sql(query).collect()), key=repr)


def check(spark: Any) -> None:
    for name, query in QUERIES.items():
        assert rows(spark, f"SELECT * FROM sdp.{name}") == rows(spark, query), name
        expected = spark.sql(query).schema
        found = spark.table(f"sdp.{name}").schema
        assert [f.dataType for f in found.fields] == [f.dataType for f in expected.fields], name


@pytest.fixture
def clean(spark: Any) -> Iterator[Any]:
    """The session without what a project leaves in its catalog."""
    before = spark.conf.get("spark.sql.adaptive.enabled")
    yield spark
    for database in ("sdp", "other"):
        spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")
    for name in ("incoming", "example_python_materialized_view"):
        spark.catalog.dropTempView(name)
    for name in ("example_python_materialized_view", "example_sql_materialized_view"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    assert spark.conf.get("spark.sql.adaptive.enabled") == before


@pytest.mark.long
def test_what_is_kept_is_what_the_queries_give(clean: Any, tmp_path: Path) -> None:
    spark, root = clean, tmp_path / "shop"
    spec = project(root)
    write(root / "countries" / "1.csv", "a,Austria\nb,Belgium\n")
    orders(root, "1", 0, 60)
    said: list[str] = []

    def run(**what: Any) -> dict[str, str]:
        done = Run(spark, load_project(spec), say=said.append).run(**what)
        return {each.name: each.what for each in done}

    planned = {each.name: each for each in Run(spark, load_project(spec)).dry_run()}
    views = {name for name, each in planned.items() if each.kind == "materialized view"}
    assert {name for name in views if planned[name].kept} == KEPT
    assert spark.catalog.listTables("sdp") == [] or all(each.isTemporary for each in spark.catalog.listTables("sdp"))
    assert planned["ranked"].how.startswith("full refresh: ")
    assert "another each time" in planned["sampled"].how
    assert planned["sampled"].place == "transformations/b.py:25"
    assert planned["totals"].place == "transformations/a.sql:5"

    run()
    check(spark)
    orders(root, "2", 60, 90)
    second = run()
    check(spark)
    assert second["orders"] == "30 new rows appended"
    assert second["out"] == "30 new rows sent"
    assert second["totals"] == "kept: 1 new file, 12 changes of groups"
    assert second["named"].startswith("kept: 1 new file")
    assert second["cheap"] == "kept: rows of 1 new file added"
    assert second["sampled"].startswith("full refresh, since it has an expression")
    assert spark.table("sdp.totals").count() == 6
    assert spark.read.parquet(str(root / "sent")).count() == 90

    third = run()
    assert third["totals"] == "kept: 0 new files, 0 changes of groups"
    check(spark)

    write(root / "countries" / "2.csv", "c,Chile\n")
    orders(root, "3", 90, 95)
    assert run()["named"].startswith("kept: 2 new files")
    check(spark)

    write(root / "countries" / "1.csv", "a,Andorra\nb,Belgium\n")  # what was read is another file now
    again = run(refresh=["lookup", "named"])
    assert set(again) == {"lookup", "named"}
    assert all("built again" in what for what in again.values())
    check(spark)

    # Another definition is another view; a new session finds what there is.
    for name in ("totals", "orders"):
        spark.sql(f"DROP TABLE sdp.{name}")
    project(root, SQL.replace("max(v) AS most", "max(v + 0) AS most"))
    changed = run(full_refresh=["everything"])
    assert set(changed) == {"everything"}
    changed = run()
    assert "built again" in changed["totals"]
    check(spark)


FEW = """
CREATE STREAMING TABLE orders AS SELECT k, v, price FROM STREAM(incoming);
CREATE MATERIALIZED VIEW totals AS SELECT k, count(*) AS n, sum(v) AS total FROM orders GROUP BY k;
CREATE MATERIALIZED VIEW means AS SELECT upper(k) AS k, sum(v) / count(v) AS mean FROM orders GROUP BY k HAVING count(v) > 1;
"""


def test_a_view_takes_in_new_files_and_is_a_table_of_later_sessions(clean: Any, tmp_path: Path) -> None:
    spark, root = clean, tmp_path / "shop"
    python = PYTHON.partition("@dp.materialized_view")[0]
    spec = project(root, FEW, python)
    queries = {
        name: FEW.partition(f"{name} AS ")[2].partition(";")[0].replace("orders", "sdp.orders")
        for name in ("totals", "means")
    }
    orders(root, "1", 0, 40)
    Run(spark, load_project(spec)).run()
    orders(root, "2", 40, 50)
    done = {each.name: each.what for each in Run(spark, load_project(spec)).run()}
    assert done["orders"] == "10 new rows appended"
    assert done["totals"] == "kept: 1 new file, 12 changes of groups"
    for name, query in queries.items():
        assert rows(spark, f"SELECT * FROM sdp.{name}") == rows(spark, query)
    spark.sql("DROP DATABASE sdp CASCADE")
    assert register(spark, str(root / "storage")) == ["sdp.orders", "sdp.totals", "sdp.means"]
    assert rows(spark, "SELECT * FROM sdp.totals WHERE k = 'k1'") == rows(
        spark, queries["totals"].replace("GROUP", "WHERE k = 'k1' GROUP")
    )


def test_the_template_of_init_runs_as_it_is(
    clean: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    init("demo")
    loaded = load_project(find_spec(tmp_path / "demo" / "transformations"))
    planned = Run(clean, loaded).dry_run()
    assert [(each.name, each.kept) for each in planned] == [
        ("example_python_materialized_view", False),
        ("example_sql_materialized_view", False),
    ]
    assert "reads spark.range" in planned[0].how
    assert planned[1].how == "full refresh: reads example_python_materialized_view, which is computed anew"
    for _ in range(2):
        Run(clean, loaded).run()
        assert rows(clean, "SELECT * FROM example_sql_materialized_view") == [(0,), (2,), (4,), (6,), (8,)]
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("CREATE MATERIALIZED VIEW a AS SELECT nothing FROM range(3);", "a.sql:1: a: .*nothing"),
        (
            "CREATE MATERIALIZED VIEW a AS TABLE b;\nCREATE MATERIALIZED VIEW b AS TABLE a;",
            "a.sql:1: .* in a circle: a, b",
        ),
        (
            "CREATE MATERIALIZED VIEW a AS SELECT 1 x;\n\nCREATE MATERIALIZED VIEW a AS SELECT 2 x;",
            "a.sql:3: a is defined at .*:1",
        ),
        ("SET x = y;", "a.sql:1: SetCommand is not a statement of a pipeline"),
        ("CREATE STREAMING TABLE t AS SELECT * FROM range(3);", "a.sql:1: flow t is not a stream"),
        ("CREATE STREAMING TABLE t;", "no flow fills t"),
        ("CREATE MATERIALIZED VIEW a AS SELEC 1;", "a.sql: "),
    ],
)
def test_what_is_wrong_is_said_with_its_place(clean: Any, tmp_path: Path, sql: str, words: str) -> None:
    spec = project(tmp_path / "wrong", sql, "", "other")
    with pytest.raises(ProjectError, match=words):
        Run(clean, load_project(spec)).dry_run()


def test_a_table_of_somebody_else_is_left_alone(clean: Any, tmp_path: Path) -> None:
    clean.sql("CREATE DATABASE IF NOT EXISTS other")
    clean.sql(f"CREATE TABLE other.a (x int) USING parquet LOCATION '{tmp_path}/theirs'")
    clean.sql("INSERT INTO other.a VALUES (7)")
    spec = project(tmp_path / "wrong", "CREATE MATERIALIZED VIEW a AS SELECT 1 AS x;", "", "other")
    with pytest.raises(Exception, match=r"table other\.a is there already"):
        Run(clean, load_project(spec)).run()
    assert rows(clean, "SELECT * FROM other.a") == [(7,)]


def test_plans_are_plain_values() -> None:
    planned = Planned("a", "sink", True, "how", "f.py:1")
    assert json.loads(json.dumps(planned.describe()))["place"] == "f.py:1"
    assert sys.version_info >= (3, 11)
