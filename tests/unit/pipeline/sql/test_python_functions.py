"""CREATE FUNCTION ... LANGUAGE python: what is read, kept, called and refused, and what rows get when the function fails."""

from __future__ import annotations

import decimal
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from magnetar.pipeline.errors import CatalogError, SqlError
from magnetar.pipeline.operators.python_calls import PythonCalls, PythonFunctionError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import applied, changes
from magnetar.pipeline.sql.parser import parse, parse_one
from magnetar.pipeline.sql.plan import explain
from magnetar.pipeline.sql.printer import print_statement
from magnetar.pipeline.sql.python_functions import code_of, shown
from magnetar.pipeline.sql.statements import CreateFunction, Show
from magnetar.pipeline.views.decorated import function_statement

FILE = """
CREATE SOURCE s (a INT, b VARCHAR) WITH (connector = 'pulsar', topic = 't', service.url = 'pulsar://h:1') FORMAT PLAIN ENCODE JSON;
CREATE FUNCTION gcd(a int, b int) RETURNS int LANGUAGE python AS $$
    import math
    def gcd(x, y):
        # it isn't nothing
        return math.gcd(x, y)
$$;
CREATE FUNCTION "Half"(x numeric) RETURNS numeric AS $$
def run(x): return x / 2
$$ LANGUAGE python STRICT WITH (handler = 'run');
CREATE FUNCTION gcd_of_six(a INT) RETURNS INT LANGUAGE sql AS 'gcd(a, 6)';
CREATE MATERIALIZED VIEW v AS SELECT gcd(a, 12) AS g, count(*) AS n FROM s WHERE gcd_of_six(a) > 1 GROUP BY a;
CREATE SINK k AS SELECT "Half"(a) AS h FROM s WITH (connector = 'pulsar', topic = 'u');
"""


def function(text: str) -> CreateFunction:
    made = parse_one(f"CREATE FUNCTION {text}")
    assert isinstance(made, CreateFunction)
    return made


@pytest.fixture
def catalog() -> Catalog:
    return applied(Catalog(), parse(FILE))


def test_a_manifest_gives_the_same_catalog(catalog: Catalog) -> None:
    again = Catalog.from_plain(catalog.to_plain())
    assert again.functions == catalog.functions
    assert [entry.plan for entry in again.entries.values()] == [entry.plan for entry in catalog.entries.values()]
    assert changes(again, applied(again, parse(FILE))) == ()
    for each in catalog.functions.values():
        assert parse_one(print_statement(each)) == each
    plan = catalog.entries["v"].plan
    assert plan is not None
    assert "gcd(TRY_CAST((a) AS INT), TRY_CAST((12) AS INT)).v" in shown(explain(plan)).replace("__key0", "a")


def test_another_text_is_another_query_for_whatever_calls_it(catalog: Catalog) -> None:
    edited = applied(catalog, parse(FILE.replace("math.gcd(x, y)", "abs(math.gcd(x, y))")))
    assert [change.name for change in changes(catalog, edited)] == ["v"]
    alone = applied(
        catalog, parse("CREATE FUNCTION gcd(a int, b int) RETURNS int LANGUAGE python AS 'def gcd(a, b): return 1'")
    )
    assert [change.name for change in changes(catalog, alone)] == ["v"]
    assert Catalog.from_plain(alone.to_plain()).functions == alone.functions
    with pytest.raises(CatalogError, match="gcd_of_six calls gcd with its former types"):
        applied(catalog, parse("CREATE FUNCTION gcd(a int) RETURNS int LANGUAGE python AS 'def gcd(a): return 1'"))


def test_functions_are_shown_and_dropped(catalog: Catalog) -> None:
    assert catalog.show(Show("FUNCTION")) == ("gcd", "Half", "gcd_of_six")
    assert catalog.show(Show("FUNCTION", "g%")) == ("gcd", "gcd_of_six")
    assert catalog.show_create("GCD").startswith("CREATE FUNCTION gcd(a INT, b INT) RETURNS INT LANGUAGE python AS '")
    for name, users in (("gcd", "v use gcd"), ('"Half"', "k use Half"), ("gcd_of_six(INT)", "v use gcd_of_six")):
        with pytest.raises(CatalogError, match=users):
            applied(catalog, parse(f"DROP FUNCTION {name}"))
    with pytest.raises(CatalogError, match="gcd is a FUNCTION; write DROP FUNCTION gcd"):
        applied(catalog, parse("DROP VIEW gcd"))
    with pytest.raises(CatalogError, match="IF EXISTS"):
        applied(catalog, parse("DROP FUNCTION thing"))
    assert applied(catalog, parse("DROP FUNCTION IF EXISTS thing")) == catalog
    left = applied(catalog, parse('DROP SINK k; DROP FUNCTION "Half"; DROP FUNCTION gcd_of_six CASCADE'))
    assert (list(left.functions), list(left.entries)) == (["gcd"], ["s"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f(x INT) RETURNS INT LANGUAGE python AS 'def f(x) return x'", "cannot be read in line 1 of its text"),
        ("f(x INT) RETURNS INT LANGUAGE python AS 'def g(x): return x'", r"defines no function f \(there is g\)"),
        ("f(x INT) RETURNS INT LANGUAGE python AS 'def f(): return 1'", "takes 0 arguments, and the function has 1"),
        ("f(x INT) RETURNS INT LANGUAGE python AS 'def f(x, *, y): return 1'", "arguments, and the function has 1"),
        ("f(x INT) RETURNS INT LANGUAGE python AS 'async def f(x): return x'", "coroutine"),
        ("f(x INT) RETURNS INT LANGUAGE python AS 'def f(x): yield x'", "yields"),
        ("f() RETURNS INT LANGUAGE python AS 'def f(): return 1'", "no parameters"),
        ("f(x INT) RETURNS INT LANGUAGE python AS ''", "LANGUAGE python AS"),
        ("f(x INT) RETURNS INT LANGUAGE java AS 'x'", "LANGUAGE java does not exist"),
        ("f(x INT) RETURNS INT LANGUAGE python USING LINK 'http://x'", "outside of the process"),
        ("f(x INT) RETURNS INT LANGUAGE python VOLATILE AS 'x'", "VOLATILE"),
        ("f(x INT) RETURNS INT LANGUAGE python WITH (link = 'x') AS 'x'", "no option link"),
        ("f(x INT) RETURNS INT LANGUAGE python STRICT WITH (batch = true) AS 'x'", "leave out STRICT"),
        ("f(x INT) RETURNS INT LANGUAGE sql WITH (batch = true) AS 'x'", "LANGUAGE sql has no options"),
        ("abs(x INT) RETURNS INT LANGUAGE python AS 'def abs(x): return x'", "a function of that name"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(SqlError, match=why):
        function(text)


def run(made: CreateFunction, returns: pa.DataType, *columns: pa.Array) -> list[tuple[Any, str | None]]:
    found = PythonCalls(code_of(made), returns).with_errors(columns, len(columns[0]))
    return [(row["v"], row["e"]) for row in found.to_pylist()]


def test_each_row_has_its_result_or_its_error() -> None:
    made = function(
        "f(x INT) RETURNS NUMERIC(8, 2) LANGUAGE python AS 'def f(x): return None if x is None else 10 / x'"
    )
    found = run(made, pa.decimal128(8, 2), pa.array([4, 0, None, 3], pa.int32()))
    assert [value for value, _ in found] == [Decimal("2.50"), None, None, Decimal("3.33")]
    assert [error for _, error in found] == [None, "ZeroDivisionError: division by zero", None, None]
    strict = function("f(x INT) RETURNS INT LANGUAGE python STRICT AS 'def f(x): return x + 1'")
    assert run(strict, pa.int32(), pa.array([1, None])) == [(2, None), (None, None)]
    wrong = function("f(x INT) RETURNS INT LANGUAGE python AS $$def f(x): return 'a' if x else 2 ** 40 * x + 1$$")
    assert [bool(error) for _, error in run(wrong, pa.int32(), pa.array([0, 1]))] == [False, True]
    broken = function("f(x INT) RETURNS INT LANGUAGE python AS 'import none_such\ndef f(x): return x'")
    assert [error for _, error in run(broken, pa.int32(), pa.array([1, 2]))] == [
        "ModuleNotFoundError: No module named 'none_such'"
    ] * 2
    with pytest.raises(PythonFunctionError, match="function f: ModuleNotFoundError"):
        PythonCalls(code_of(broken), pa.int32()).values([pa.array([1])], 1)


def test_json_and_times_are_values_of_python() -> None:
    made = function("f(j JSONB) RETURNS JSONB LANGUAGE python AS $$def f(j): return {'n': len(j['a']), 'x': None}$$")
    ((value, _),) = run(made, pa.string(), pa.array(['{"a": [1, 2]}']))
    assert json.loads(value) == {"n": 2, "x": None}
    hour = function(
        "f(t TIMESTAMP) RETURNS TIMESTAMP LANGUAGE python AS 'def f(t): return t.replace(hour=t.tzinfo or 3)'"
    )
    at = datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert run(hour, pa.timestamp("us", "UTC"), pa.array([at])) == [(at.replace(hour=3), None)]


def test_a_function_of_batches_takes_arrow_arrays() -> None:
    made = function(
        "f(x INT, y INT) RETURNS BIGINT LANGUAGE python WITH (batch = true, handler = 'add') AS $$\n"
        "import pyarrow.compute as pc\n"
        "def add(x, y): return pc.divide(pc.add(x, y), y)$$"
    )
    x = pa.array([1, 2, None], pa.int32())
    assert run(made, pa.int64(), x, pa.array([1, 1, 1], pa.int32())) == [(2, None), (3, None), (None, None)]
    found = run(made, pa.int64(), x, pa.array([1, 0, 1], pa.int32()))  # the others have their results
    assert [value for value, _ in found] == [2, None, None]
    assert [bool(error) for _, error in found] == [False, True, False]


FACTOR = 3


def test_a_decorated_function_is_its_own_text() -> None:
    def rounded(x: float, digits: int | None) -> Decimal:
        return Decimal(math.floor(x)) + decimal.Decimal(digits or 0)

    made = parse_one(function_statement(rounded, "", "r", strict=True))
    assert isinstance(made, CreateFunction)
    assert (made.name, made.strict, made.returns) == ("r", True, "DECIMAL")
    assert made.parameters == (("x", "DOUBLE PRECISION"), ("digits", "BIGINT"))
    assert run(made, pa.decimal128(28, 10), pa.array([2.5]), pa.array([1])) == [(Decimal(3), None)]

    def scaled(x: int) -> int:
        return x * FACTOR

    with pytest.raises(CatalogError, match="uses FACTOR of its module"):
        function_statement(scaled, "")
    with pytest.raises(CatalogError, match="the type of its result is not known"):
        function_statement(lambda: 1, "")
