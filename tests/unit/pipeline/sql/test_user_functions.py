"""CREATE FUNCTION ... LANGUAGE sql: what a call becomes, what is kept, and what is refused."""

from __future__ import annotations

import pytest

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import applied, changes
from magnetar.pipeline.sql.parser import parse, parse_one
from magnetar.pipeline.sql.printer import print_statement
from magnetar.pipeline.sql.user_functions import expanded

FILE = """
CREATE SOURCE s (a INT, b VARCHAR) WITH (connector = 'pulsar', topic = 't', service.url = 'pulsar://h:1') FORMAT PLAIN ENCODE JSON;
CREATE FUNCTION twice(x INT) RETURNS INT LANGUAGE sql AS $$ SELECT x + x -- twice
$$;
CREATE FUNCTION "Label"(a VARCHAR, n INT) RETURNS VARCHAR LANGUAGE sql IMMUTABLE RETURN a || ': (n), ' || twice(n);
CREATE MATERIALIZED VIEW v AS SELECT "Label"(b, a + 1) AS l, count(*) AS c FROM s WHERE twice(a) > 2 GROUP BY b, a;
CREATE VIEW w AS SELECT l FROM v;
CREATE SINK k AS SELECT label(b, 1) AS l FROM s WITH (connector = 'pulsar', topic = 'u');
"""


@pytest.fixture
def catalog() -> Catalog:
    return applied(Catalog(), parse(FILE))


@pytest.mark.parametrize(
    ("text", "written_out"),
    [
        ("SELECT twice(a) FROM s", "SELECT CAST((CAST((a) AS INT) + CAST((a) AS INT)) AS INT) FROM s"),
        ("SELECT TWICE ( -- what\n a /* it */, ) ", None),
        ("SELECT twice('x), (' )", "SELECT CAST((CAST(('x), (') AS INT) + CAST(('x), (') AS INT)) AS INT)"),
        ("SELECT twice, s.twice(1), 'twice(1)' FROM twice", "SELECT twice, s.twice(1), 'twice(1)' FROM twice"),
        ("SELECT thrice(1)", "SELECT thrice(1)"),
    ],
)  # fmt: skip
def test_a_call_is_written_out(catalog: Catalog, text: str, written_out: str | None) -> None:
    if written_out is None:
        with pytest.raises(SqlError, match="takes 1 arguments and is given 2"):
            expanded(text, catalog.functions)
    else:
        assert " ".join(expanded(text, catalog.functions).split()) == written_out


def test_functions_are_kept_and_read_back(catalog: Catalog) -> None:
    plain = catalog.to_plain()
    again = Catalog.from_plain(plain)
    assert again.functions == catalog.functions
    assert [entry.plan for entry in again.entries.values()] == [entry.plan for entry in catalog.entries.values()]
    assert changes(again, applied(again, parse(FILE))) == ()
    for function in catalog.functions.values():
        assert parse_one(print_statement(function)) == function
    assert catalog.show_create("v").startswith('CREATE MATERIALIZED VIEW v AS\nSELECT "Label"(b, a + 1) AS l')


def test_another_expression_is_another_query(catalog: Catalog) -> None:
    edited = applied(catalog, parse(FILE.replace("x + x", "x * 2")))
    assert [change.describe() for change in changes(catalog, edited)] == [
        "! rebuild MATERIALIZED VIEW v: its query is another one",
        "! rebuild SINK k: its query is another one",
    ]
    alone = applied(catalog, parse("CREATE FUNCTION twice(x INT) RETURNS INT LANGUAGE sql AS 'x * 2'"))
    assert [change.name for change in changes(catalog, alone)] == ["v"]
    kept = parse("CREATE FUNCTION IF NOT EXISTS twice(x INT) RETURNS INT LANGUAGE sql AS 'x * 3'")
    assert applied(catalog, kept) == catalog


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(x INT) RETURNS INT LANGUAGE sql AS 'x + y'", "y is none of its parameters"),
        ("(x INT) RETURNS INT LANGUAGE sql AS 'random() + x'", "depends on more"),
        ("() RETURNS TIMESTAMPTZ LANGUAGE sql AS 'now()'", "depends on more"),
        ("() RETURNS DATE LANGUAGE sql AS 'current_date'", "depends on more"),
        ("(x INT) RETURNS INT LANGUAGE sql VOLATILE AS 'x'", "VOLATILE"),
        ("(x INT) RETURNS INT LANGUAGE sql STRICT AS 'x'", "leave out STRICT"),
        ("(x INT) RETURNS INT LANGUAGE java AS 'x'", "LANGUAGE java"),
        ("(x INT) RETURNS INT LANGUAGE sql AS 'sum(x)'", "without subqueries, aggregates"),
        ("(x INT) RETURNS INT LANGUAGE sql AS 'x + (SELECT 1)'", "without subqueries, aggregates"),
        ("(x INT) RETURNS INT LANGUAGE sql AS 'x FROM t'", "cannot be read"),
        ("(x INT) RETURNS INT LANGUAGE sql AS 'x) + (1'", "closes nothing"),
        ("(x INT) RETURNS INT LANGUAGE sql AS 'x; DROP VIEW v'", "one statement"),
        ("(x INT) RETURNS INT LANGUAGE sql AS 'f(x)'", "calls itself"),
        ("(x INT, X INT) RETURNS INT LANGUAGE sql AS 'x'", "same name"),
        ("(x INT) RETURNS TABLE (a INT) LANGUAGE sql AS 'x'", "is a view"),
        ("(x INT) RETURNS INT AS 'x'", "write LANGUAGE sql"),
        ("(x nonsense) RETURNS INT LANGUAGE sql AS 'x'", "parameter x"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(SqlError, match=why):
        parse(f"CREATE FUNCTION f{text}")
    with pytest.raises(SqlError, match="there is a function of that name"):
        parse("CREATE FUNCTION upper(x INT) RETURNS INT LANGUAGE sql AS 'x'")


def test_calls_that_multiply_end_in_an_error() -> None:
    text = "".join(
        f"CREATE FUNCTION f{n}(x INT) RETURNS INT LANGUAGE sql AS '{f'f{n - 1}(x)' if n else 'x'} + {f'f{n - 1}(x)' if n else 'x'}';"
        for n in range(30)
    )
    with pytest.raises(SqlError, match=r"too long|words and symbols|levels of nesting"):
        applied(Catalog(), parse(text))
