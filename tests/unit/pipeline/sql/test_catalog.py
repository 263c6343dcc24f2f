"""What exists, who reads from whom, and the way through a manifest."""

from __future__ import annotations

import json

import pytest

from magnetar.pipeline.errors import CatalogError, SqlError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import applied, changes
from magnetar.pipeline.sql.options import REDACTED
from magnetar.pipeline.sql.parser import parse, parse_one
from magnetar.pipeline.sql.printer import print_statement
from magnetar.pipeline.sql.statements import CreateSink, CreateSource, CreateView, Drop, SetParallelism, Show

TEXT = """
CREATE SOURCE s (a INT, x BIGINT) WITH (connector='pulsar', topic='t', auth.token='s3cr3t') FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW v AS SELECT a, sum(x) AS total FROM s GROUP BY a;
CREATE MATERIALIZED VIEW w AS SELECT total, count(*) AS n FROM V GROUP BY total;
CREATE SINK k FROM w WITH (connector='pulsar', topic='out', password='s3cr3t');
"""


def run(text: str, catalog: Catalog | None = None) -> Catalog:
    catalog = catalog or Catalog()
    for statement in parse(text):
        assert isinstance(statement, CreateSource | CreateView | CreateSink)
        catalog = catalog.create(statement)
    return catalog


def test_dependencies_and_columns() -> None:
    catalog = run(TEXT)
    assert catalog.topological() == ("s", "v", "w", "k")
    assert catalog.readers("s") == ("v", "w", "k")
    assert catalog.find("W").reads == ("v",)
    assert catalog.find("w").columns == ("total", "n")
    assert catalog.show(Show("MATERIALIZED VIEW", "_")) == ("v", "w")
    assert catalog.show(Show("MATERIALIZED VIEW", "%x%")) == ()


def test_drop_is_refused_while_something_reads() -> None:
    catalog = run(TEXT)
    with pytest.raises(CatalogError, match="w, k read from v"):
        catalog.drop(Drop("MATERIALIZED VIEW", "v"))
    with pytest.raises(CatalogError, match="v is a MATERIALIZED VIEW"):
        catalog.drop(Drop("SOURCE", "v"))
    with pytest.raises(CatalogError, match="IF EXISTS"):
        catalog.drop(Drop("SINK", "nope"))
    assert catalog.drop(Drop("SINK", "nope", if_exists=True)) == catalog
    assert catalog.drop(Drop("MATERIALIZED VIEW", "v", cascade=True)).topological() == ("s",)


def test_a_view_that_is_not_materialized_is_a_name_for_its_query() -> None:
    text = """
    CREATE VIEW positive AS SELECT a, x FROM s WHERE x > 0;
    CREATE MATERIALIZED VIEW p AS SELECT a, count(*) AS n FROM Positive GROUP BY a;
    CREATE SINK q FROM positive WITH (connector='pulsar', topic='out2');
    """
    catalog = run(TEXT + text)
    assert catalog.find("positive").kind == "VIEW"
    assert catalog.find("p").reads == ("s",)
    assert (
        catalog.find("p").plan
        == run(
            TEXT
            + "CREATE MATERIALIZED VIEW p AS SELECT a, count(*) AS n FROM (SELECT a, x FROM s WHERE x > 0) GROUP BY a"
        )
        .find("p")
        .plan
    )
    assert catalog.find("q").plan == catalog.find("positive").plan
    assert catalog.readers("positive") == ("p", "q")
    assert catalog.show(Show("VIEW")) == ("positive",)
    assert Catalog.from_plain(catalog.to_plain()).find("p").plan == catalog.find("p").plan
    with pytest.raises(CatalogError, match="p, q read from positive"):
        catalog.drop(Drop("VIEW", "positive"))
    edited = applied(catalog, parse("CREATE VIEW positive AS SELECT a, x FROM s WHERE x > 1;"))
    assert [change.describe() for change in changes(catalog, edited)] == [
        "~ change VIEW positive: its query is another one",
        "! rebuild MATERIALIZED VIEW p: its query is another one",
        "! rebuild SINK q: its query is another one",
    ]


def test_a_name_is_taken_once() -> None:
    catalog = run(TEXT)
    assert run(TEXT, catalog) == catalog
    with pytest.raises(CatalogError, match="MATERIALIZED VIEW v is defined twice"):
        run("CREATE MATERIALIZED VIEW V AS SELECT a FROM s", catalog)
    assert run("CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT a FROM s", catalog) == catalog


def test_through_the_manifest_without_credentials_and_back_with_them() -> None:
    catalog = run(TEXT).set_parallelism(SetParallelism("v", 5))
    text = json.dumps(catalog.to_plain())
    assert "s3cr3t" not in text + repr(catalog) + catalog.show_create("s")
    restored = Catalog.from_plain(json.loads(text))
    assert restored.topological() == catalog.topological()
    assert (restored.find("v").parallelism, restored.find("v").adaptive) == (5, False)
    by_load = run(TEXT).set_parallelism(SetParallelism("v", None))
    assert Catalog.from_plain(json.loads(json.dumps(by_load.to_plain()))).find("v").adaptive
    source = restored.find("s").statement
    assert isinstance(source, CreateSource)
    assert source.options["auth.token"] == REDACTED
    assert run(TEXT, restored) == catalog


def test_parallelism_is_a_views() -> None:
    with pytest.raises(CatalogError, match="s is a SOURCE"):
        run(TEXT).set_parallelism(SetParallelism("s", 2))


def test_a_sink_does_not_read_from_a_sink() -> None:
    statement = parse_one("CREATE SINK j FROM k WITH (connector='pulsar', topic='o')")
    assert isinstance(statement, CreateSink)
    with pytest.raises(CatalogError, match="a source or a view"):
        run(TEXT).create(statement)


def test_a_broker_that_moved_makes_no_other_source() -> None:
    def source(**options: str) -> CreateSource:
        given = {
            "connector": "pulsar",
            "topic": "t",
            **{name.replace("_", "."): value for name, value in options.items()},
        }
        text = ", ".join(f"{name} = '{value}'" for name, value in given.items())
        statement = parse_one(f"CREATE SOURCE s (k VARCHAR) WITH ({text}) FORMAT PLAIN ENCODE JSON")
        assert isinstance(statement, CreateSource)
        return statement

    catalog = Catalog().create(source(service_url="pulsar://a:1", admin_url="http://a:2"))
    moved = catalog.create(source(service_url="pulsar://b:1"))
    found = moved.find("s").statement
    assert isinstance(found, CreateSource)
    assert dict(found.options)["service.url"] == "pulsar://b:1"
    with pytest.raises(CatalogError, match="defined twice"):
        moved.create(source(service_url="pulsar://b:1", startingOffsets="earliest"))


def test_an_index_belongs_to_what_it_is_of() -> None:
    text = """
        CREATE TABLE t (a INT PRIMARY KEY, b INT, c VARCHAR);
        CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b;
        CREATE INDEX i ON T (B DESC, c) INCLUDE (a);
        CREATE INDEX ON v (n);
    """
    catalog = applied(Catalog(), parse(text))
    assert catalog.show(Show("INDEX")) == ("i", "v_n_idx")
    assert catalog.show(Show("INDEX", relation="t")) == ("i",)
    assert catalog.show_create("I") == "CREATE INDEX i ON t (B DESC, c) INCLUDE (a)"
    assert applied(catalog, parse(text)) == catalog  # the file run again
    assert Catalog.from_plain(catalog.to_plain()).indexes == catalog.indexes
    moved = applied(catalog, parse("ALTER TABLE t RENAME TO u"))
    assert moved.indexes["i"].relation == "u"
    assert applied(catalog, parse("DROP MATERIALIZED VIEW v")).show(Show("INDEX")) == ("i",)
    assert applied(catalog, parse("DROP TABLE t CASCADE")).indexes == {}
    assert [each.describe() for each in changes(catalog, applied(catalog, parse("DROP INDEX i")))] == ["- drop INDEX i"]
    assert [each.describe() for each in changes(Catalog(), catalog)][2:] == [
        "+ create INDEX i",
        "+ create INDEX v_n_idx",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("CREATE INDEX i ON t (x)", "t has no column x"),
        ("CREATE INDEX i ON nothing (x)", "nothing does not exist"),
        ("CREATE INDEX t ON t (a)", "t exists already"),
        ("CREATE VIEW w AS SELECT a FROM t; CREATE INDEX i ON w (a)", "w is a VIEW, which keeps no rows"),
        ("CREATE INDEX i ON t (a); CREATE INDEX i ON t (b)", "INDEX i exists and is another one"),
        ("DROP INDEX i", "DROP INDEX IF EXISTS"),
        ("CREATE INDEX i ON t (b); CREATE TABLE t (a INT PRIMARY KEY)", "write DROP INDEX i"),
    ],
)
def test_an_index_that_cannot_be(text: str, why: str) -> None:
    catalog = applied(Catalog(), parse("CREATE TABLE t (a INT PRIMARY KEY, b INT)"))
    with pytest.raises(CatalogError, match=why):
        applied(catalog, parse(text))


def test_a_view_names_its_columns() -> None:
    text = """CREATE TABLE t (a INT PRIMARY KEY, b INT);
        CREATE MATERIALIZED VIEW v (x, "Y") WITH (late_rows = 'drop') AS SELECT a, b FROM t;
        CREATE VIEW w (m) AS SELECT x, count(*) AS n FROM v GROUP BY x;"""
    catalog = applied(Catalog(), parse(text))
    assert (catalog.find("v").columns, catalog.find("w").columns) == (("x", "Y"), ("m", "n"))
    again = Catalog.from_plain(catalog.to_plain())
    assert changes(again, applied(again, parse(text))) == ()
    with pytest.raises(SqlError) as caught:
        applied(Catalog(), parse("CREATE VIEW v (a) AS\n  SELECT nothing FROM t"))
    assert caught.value.line == 2


def test_comments_stay_with_what_they_are_of() -> None:
    text = (
        "CREATE TABLE t (a INT PRIMARY KEY, b INT); CREATE MATERIALIZED VIEW v AS SELECT a AS x FROM t; "
        "COMMENT ON TABLE t IS 'it''s a table'; COMMENT ON COLUMN t.B IS 'b'; COMMENT ON MATERIALIZED VIEW v IS 'a view'; "
        "COMMENT ON COLUMN \"v\".x IS 'x'; COMMENT ON TABLE v IS NULL;"
    )
    statements = parse(text)
    assert parse("; ".join(map(print_statement, statements))) == statements
    catalog = applied(Catalog(), statements)
    there = Catalog.from_plain(catalog.to_plain())
    assert {name: entry.comments for name, entry in there.entries.items()} == {
        "t": {"": "it's a table", "b": "b"},
        "v": {"x": "x"},
    }
    renamed = applied(there, parse("ALTER TABLE t RENAME TO u; CREATE TABLE u (a INT PRIMARY KEY);"))
    assert {name: entry.comments for name, entry in renamed.entries.items()} == {
        "u": {"": "it's a table"},
        "v": {"x": "x"},
    }
    again = parse("COMMENT ON COLUMN v.x IS 'y';")
    assert [each.describe() for each in changes(there, applied(there, again), again)] == [
        "~ change MATERIALIZED VIEW v: its comment"
    ]
    for refused, why in (
        ("COLUMN t.c", "has no column c"),
        ("SOURCE t", "write COMMENT ON TABLE t"),
        ("TABLE w", "exist"),
    ):
        with pytest.raises(CatalogError, match=why):
            applied(there, parse(f"COMMENT ON {refused} IS 'x';"))
    assert applied(there, parse("DROP TABLE t CASCADE; CREATE TABLE t (a INT);")).find("t").comments == {}


def test_a_table_that_only_grows() -> None:
    (statement,) = parse(
        "CREATE TABLE t (a INT NOT NULL, ts TIMESTAMP, WATERMARK FOR ts AS ts) APPEND ONLY WITH (topic = 'x');"
    )
    assert isinstance(statement, CreateSource)
    assert (statement.only_grows, statement.primary_key, statement.format.format) == (True, (), "PLAIN")
    assert parse(print_statement(statement)) == (statement,)
    (other,) = parse("CREATE TABLE t (a INT NOT NULL, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (topic = 'x');")
    assert isinstance(other, CreateSource)
    assert not other.only_grows
    found = changes(Catalog().create(other), Catalog().create(statement))
    assert [each.describe() for each in found] == ["! rebuild TABLE t: FORMAT ... ENCODE"]
