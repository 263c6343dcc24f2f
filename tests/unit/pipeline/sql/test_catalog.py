"""What exists, who reads from whom, and the way through a manifest."""

from __future__ import annotations

import json

import pytest

from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import applied, changes
from magnetar.pipeline.sql.options import REDACTED
from magnetar.pipeline.sql.parser import parse, parse_one
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
