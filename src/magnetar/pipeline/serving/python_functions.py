"""Functions in Python for queries that DuckDB runs: they run in the server's process, as they do in Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from magnetar.pipeline.operators.python_calls import PythonCalls
from magnetar.pipeline.sql.python_functions import called_name, code_of, of_python
from magnetar.pipeline.sql.statements import CreateFunction
from magnetar.pipeline.sql.types import NUMERIC_DIGITS

_TEXTS: Final = ("VARCHAR", "CHAR", "TEXT", "NVARCHAR", "NCHAR", "JSON", "JSONB")


def define(connection: Any, text: str, functions: Iterable[CreateFunction], known: set[str]) -> set[str]:
    """Those that a text calls and that are not known to the engine, which are so from now on, on all its connections."""
    made = set()
    for function in of_python(functions):
        name = called_name(function)
        if name in known or name not in text:
            continue
        given = [_duckdb_type(kind) for _, kind in function.parameters]
        returns = _duckdb_type(function.returns)
        arrow = connection.cursor().sql(f"SELECT CAST(NULL AS {returns}) AS r").to_arrow_reader(1).schema.field(0).type
        calls = _of_columns(PythonCalls(code_of(function), arrow), len(given))
        connection.create_function(name, calls, given, returns, type="arrow", null_handling="special")
        made.add(name)
    return made


def _of_columns(calls: PythonCalls, count: int) -> Callable[..., pa.Array]:
    """With the signature of `count` columns, which DuckDB looks at."""

    def run(*columns: pa.ChunkedArray) -> pa.Array:
        return calls.values([each.combine_chunks() for each in columns], len(columns[0]))

    kind = Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = Signature([Parameter(f"column{at}", kind) for at in range(count)])  # type: ignore[attr-defined]
    return run


def _duckdb_type(kind: str) -> str:
    """JSON is its text."""
    built = exp.DataType.build(kind, dialect="risingwave").copy()
    for node in built.find_all(exp.DataType):
        if str(getattr(node.this, "value", node.this)).upper() in _TEXTS:
            node.set("this", exp.DType.TEXT)
            node.set("expressions", [])
        elif node.this == exp.DType.DECIMAL and not node.expressions:
            node.set("expressions", [exp.DataTypeParam(this=exp.Literal.number(digits)) for digits in NUMERIC_DIGITS])
    return str(built.sql("duckdb"))
