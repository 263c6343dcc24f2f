"""sqlglot, guarded: queries and expressions in RisingWave's dialect in, Spark SQL out, every failure one SqlError with its place."""

from __future__ import annotations

from typing import Any

import sqlglot
import sqlglot.errors
from sqlglot import exp

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.postgres import PipelineSql

_FAILURES = (sqlglot.errors.SqlglotError, RecursionError, ValueError, AttributeError, IndexError, KeyError, TypeError)


def read_query(text: str, line: int = 1, column: int = 1) -> exp.Query | exp.Values:
    """The syntax tree of one SELECT or VALUES that begins at `line` and `column` of its file."""
    tree = _read(text, line, column)
    if not isinstance(tree, exp.Query | exp.Values):
        raise SqlError("expected a SELECT", line, column)
    return tree


def relation_names(text: str) -> set[str]:
    """The names in lower case that may be relations which a query reads: tables, and arguments of TUMBLE and the like."""
    tree = read_query(text)
    found = {table.name.lower() for table in tree.find_all(exp.Table)}
    calls = [table.this for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Anonymous)]
    return found | {each.name.lower() for call in calls for each in call.expressions if isinstance(each, exp.Column)}


def with_relation_renamed(text: str, old: str, new: str) -> str:
    """A query that reads `new` where it read `old`. What it calls its columns by stays: `FROM old` becomes `FROM new AS old`."""
    tree = read_query(text)
    shadowed = {each.alias.lower() for each in tree.find_all(exp.CTE)}
    if old.lower() in shadowed:
        return text
    places: dict[int, tuple[int, str]] = {}
    for table in tree.find_all(exp.Table):
        name, put = table.this, new
        if isinstance(name, exp.Anonymous):  # TUMBLE(old, ts, ...)
            name = next(iter(name.expressions), None)
            name = name.this if isinstance(name, exp.Column) and not name.table else name
        elif not table.alias:
            put = f"{new} AS {text[name.meta['start'] : name.meta['end'] + 1]}" if "start" in name.meta else new
        if isinstance(name, exp.Identifier) and name.name.lower() == old.lower() and "start" in name.meta:
            places[name.meta["start"]] = (name.meta["end"] + 1, put)
    for start, (end, put) in sorted(places.items(), reverse=True):
        text = text[:start] + put + text[end:]
    return text


def check_expression(text: str, line: int = 1, column: int = 1) -> None:
    """Refuse what is not exactly one expression."""
    tree = _read(f"SELECT ({text}\n)", line, column - len("SELECT ("))
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1 or set(_clauses(tree)) != {"expressions"}:
        raise SqlError("expected one expression", line, column)
    only = tree.expressions[0]
    if not isinstance(only, exp.Paren) or isinstance(only.this, exp.Alias | exp.Query):
        raise SqlError("expected one expression without a name", line, column)


def _clauses(tree: exp.Expr) -> list[str]:
    return [name for name, value in tree.args.items() if value]


def _read(text: str, line: int, column: int) -> exp.Expr:
    try:
        trees = sqlglot.parse(text, read=PipelineSql, error_level=sqlglot.errors.ErrorLevel.IMMEDIATE)
    except sqlglot.errors.ParseError as error:
        first: dict[str, Any] = error.errors[0] if error.errors else {}
        at_line, at_column = int(first.get("line") or 1), int(first.get("col") or 1)
        word = str(first.get("highlight") or "")[:40]
        near = f" at {word!r}" if word and "'" not in word else ""
        where = place(line, column, at_line, max(1, at_column - len(word) + 1))
        raise SqlError(f"this SQL cannot be read{near}: {first.get('description') or 'invalid'}", *where) from None
    except RecursionError:
        raise SqlError("the query is nested too deeply; give an inner part a name with WITH", line, column) from None
    except _FAILURES:
        raise SqlError("the query cannot be read; check quotes and parentheses", line, column) from None
    if len(trees) != 1 or trees[0] is None:
        raise SqlError("expected one query", line, column)
    return trees[0]


def place(line: int, column: int, inner_line: int, inner_column: int) -> tuple[int, int]:
    """A place within a query (from 1) as a place in the file the query stands in."""
    return (line, column + inner_column - 1) if inner_line == 1 else (line + inner_line - 1, inner_column)


def place_of(node: exp.Expr, line: int, column: int) -> tuple[int, int]:
    """Where the first name or value below `node` stands; the query's own place when nothing below it knows."""
    found = [
        (n.meta["start"], n.meta["line"], n.meta["col"] - n.meta["end"] + n.meta["start"])
        for n in node.walk()
        if "start" in n.meta
    ]
    if not found:
        return line, column
    _, inner_line, inner_column = min(found)
    return place(line, column, inner_line, inner_column)


def spark_sql(node: exp.Expr) -> str:
    """Spark SQL for an expression or a query; SqlError when Spark's dialect cannot read it back unchanged."""
    try:
        text = str(node.sql("spark", unsupported_level=sqlglot.errors.ErrorLevel.RAISE))
        again = sqlglot.parse_one(text, read="spark").sql("spark")
    except _FAILURES as error:
        raise SqlError(
            f"Spark has no equivalent of {str(node)[:80]!r} ({type(error).__name__}); rewrite the expression"
        ) from None
    if again != text:
        raise SqlError(f"Spark would read {text[:80]!r} as {again[:80]!r}; rewrite the expression")
    return text
