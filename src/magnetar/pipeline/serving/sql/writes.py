"""INSERT, UPDATE and DELETE as the query that gives the rows to be written, with what is checked of them. A decision core.

UPDATE and DELETE read the table at one epoch, as any query does; what they write are whole rows, or keys whose rows go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sqlglot import exp, parse, parse_one
from sqlglot.errors import SqlglotError

from magnetar.pipeline.serving.sql.result_names import Node
from magnetar.pipeline.serving.sql.translate import QueryError
from magnetar.pipeline.sql.statements import ROW_KEY, ColumnDefinition, CreateSource
from magnetar.pipeline.sql.types import NUMERIC_DIGITS

Verb: TypeAlias = Literal["INSERT", "UPDATE", "DELETE"]


@dataclass(frozen=True, slots=True)
class Write:
    """`query`: in PostgreSQL's words, whose result begins with the columns `names`: those of `table` that are stored, for DELETE its
    key. `returns`: behind them stands what RETURNING asks for."""

    verb: Verb
    table: CreateSource
    query: str
    names: tuple[str, ...]
    returns: bool = False

    def tag(self, rows: int) -> str:
        """As PostgreSQL tells that it is done."""
        return f"INSERT 0 {rows}" if self.verb == "INSERT" else f"{self.verb} {rows}"


Tables = Callable[[str], CreateSource | str | None]
"""The table or source of a name, in any case; for something else what it is, None when there is none of that name."""

WidthOf = Callable[[str], int]
"""How many columns a query gives."""


def read_write(text: str, tables: Tables, width_of: WidthOf) -> Write:
    """Raises QueryError."""
    try:
        trees = [tree for tree in parse(text, read="postgres") if tree is not None]
    except SqlglotError as error:
        first = re.sub(r"\x1b\[\d+m", "", str(error)).strip().splitlines()[:1]
        raise QueryError("42601", f"syntax error: {first[0] if first else 'it cannot be read'}") from None
    except RecursionError:
        raise QueryError("54001", "the statement is nested too deeply") from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Insert | exp.Update | exp.Delete):
        raise QueryError("42601", "expected one INSERT, UPDATE or DELETE")
    tree = trees[0]
    _refuse(tree)
    try:
        if isinstance(tree, exp.Insert):
            return _insert(tree, tables, width_of)
        return _update(tree, tables) if isinstance(tree, exp.Update) else _delete(tree, tables)
    except RecursionError:
        raise QueryError("54001", "the statement is nested too deeply") from None


def _refuse(tree: Node) -> None:
    for part, words, hint in (
        ("conflict", "ON CONFLICT", "INSERT replaces the row that has the key"),
        ("using", "DELETE ... USING", "name the rows by WHERE key IN (SELECT ...)"),
        ("from_", "UPDATE ... FROM", "compute the value by a subquery: SET a = (SELECT ...)"),
        ("with_", "WITH before it", "write WITH within the query of INSERT INTO t WITH ... SELECT"),
        ("order", "ORDER BY", ""),
        ("limit", "LIMIT", ""),
    ):
        if tree.args.get(part):
            raise QueryError("0A000", f"{words} is not supported", hint)


def _table(node: Node | None, tables: Tables) -> CreateSource:
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise QueryError("42601", "expected the name of a table")
    if node.catalog or node.db.lower() not in ("", "public"):
        raise QueryError("42P01", f'relation "{node.db}.{node.name}" does not exist')
    found = tables(node.name)
    if found is None:
        raise QueryError("42P01", f'relation "{node.name}" does not exist', "SHOW TABLES lists the tables")
    if isinstance(found, str):
        raise QueryError("42809", f'cannot change {found} "{node.name}"', "it changes through what it reads")
    if not found.is_written:
        kind = "table" if found.table else "source"
        raise QueryError(
            "42809",
            f'"{found.name}" is a {kind} of a topic that others write',
            f"publish the rows to its topic; a table for INSERT is CREATE TABLE {found.name} (...) without a connector",
        )
    return found


def _changing(node: Node | None, tables: Tables, verb: Verb) -> CreateSource:
    """One whose rows may change."""
    table = _table(node, tables)
    if table.only_grows:
        raise QueryError(
            "0A000",
            f'"{table.name}" is APPEND ONLY, so {verb} is refused',
            "make a table without APPEND ONLY for rows that change",
        )
    return table


def _stored(table: CreateSource) -> list[ColumnDefinition]:
    return [column for column in table.columns if column.generated is None]


def _column(table: CreateSource, name: str) -> ColumnDefinition:
    """One that may be written. Raises QueryError."""
    found = next((column for column in table.columns if column.name.lower() == name.lower()), None)
    if found is None:
        raise QueryError("42703", f'column "{name}" of relation "{table.name}" does not exist')
    if found.generated is not None:
        raise QueryError("428C9", f'column "{found.name}" is a generated column; leave it out')
    return found


def _type(column: ColumnDefinition) -> exp.DataType:
    """What a value is cast to. Raises QueryError for types whose values cannot be written down."""
    kind = column.type or "VARCHAR"
    built = exp.DataType.build(kind, dialect="risingwave")
    if built.find(exp.ColumnDef) is not None or built.this in (exp.DType.STRUCT, exp.DType.MAP):
        raise QueryError(
            "0A000",
            f'column "{column.name}" has the type {kind}, which INSERT and UPDATE do not write',
            "leave it out, or make it a JSONB",
        )
    for node in built.find_all(exp.DataType):
        if node.this in (exp.DType.JSON, exp.DType.JSONB):
            node.set("this", exp.DType.TEXT)
        elif node.this == exp.DType.DECIMAL and not node.expressions:
            node.set("expressions", [exp.DataTypeParam(this=exp.Literal.number(digits)) for digits in NUMERIC_DIGITS])
    return built


def empty_table(table: CreateSource) -> str:
    """The query that a table is before its first epoch, with the key that nobody sees."""
    outputs = [_named(_null(column), column.name) for column in table.columns if _is_scalar(column)]
    if table.primary_key == (ROW_KEY,):
        outputs.append(_named(exp.Cast(this=exp.Null(), to=exp.DataType.build("VARCHAR")), ROW_KEY))
    return str(exp.Select(expressions=outputs).where(exp.false()).sql("postgres"))


def _cast(value: Node, column: ColumnDefinition) -> Node:
    if _is_default(value):
        value = exp.Null()
    return (
        exp.Cast(this=exp.Paren(this=value.copy()), to=_type(column))
        if _is_compound(value)
        else exp.Cast(this=value.copy(), to=_type(column))
    )


def _is_compound(value: Node) -> bool:
    return isinstance(value, exp.Binary | exp.Unary | exp.Between | exp.In) and not isinstance(value, exp.Paren)


def _is_default(value: Node) -> bool:
    """DEFAULT, which is NULL: columns have no other."""
    if isinstance(value, exp.Var):
        return value.name.upper() == "DEFAULT"
    return (
        isinstance(value, exp.Column) and not value.table and value.name.upper() == "DEFAULT" and not value.this.quoted
    )


def _named(expression: Node, name: str) -> Node:
    return exp.alias_(expression, name, quoted=True)


def _null(column: ColumnDefinition) -> Node:
    return exp.Cast(this=exp.Null(), to=_type(column))


def _insert(tree: exp.Insert, tables: Tables, width_of: WidthOf) -> Write:
    target, given = tree.this, None
    if isinstance(target, exp.Schema):
        given = [part.name for part in target.expressions]
        target = target.this
    table = _table(target, tables)
    stored = _stored(table)
    columns = stored if given is None else [_column(table, name) for name in given]
    if len({column.name for column in columns}) != len(columns):
        twice = next(column.name for column in columns if columns.count(column) > 1)
        raise QueryError("42701", f'column "{twice}" specified more than once')
    source = tree.expression
    if tree.args.get("default") or source is None:
        raise QueryError(
            "0A000", "INSERT ... DEFAULT VALUES is not supported", "columns have no defaults; write VALUES (...)"
        )
    if isinstance(source, exp.Values):
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in source.expressions]
        if len({len(row) for row in rows}) > 1:
            raise QueryError("42601", "VALUES lists must all be the same length")
        columns = _fitting(columns, len(rows[0]), given is not None)
        cells = [
            exp.Tuple(expressions=[_cast(value, column) for value, column in zip(row, columns, strict=True)])
            for row in rows
        ]
        source = exp.Values(expressions=cells)
    else:
        source = source.copy()
        columns = _fitting(columns, width_of(source.sql("postgres")), given is not None)
        if isinstance(source, exp.Select) and len(source.expressions) == len(columns):
            for item, column in zip(list(source.expressions), columns, strict=True):
                if isinstance(item, exp.Parameter | exp.Placeholder) or _is_text(item):
                    item.replace(_cast(item, column))
    label = exp.TableAlias(
        this=exp.to_identifier("_given"), columns=[exp.to_identifier(f"_{at}") for at in range(len(columns))]
    )
    place = {column.name: at for at, column in enumerate(columns)}
    outputs = [
        _named(
            exp.Cast(this=exp.column(f"_{place[column.name]}", table="_given"), to=_type(column))
            if column.name in place
            else _null(column),
            column.name,
        )
        for column in stored
        if column.name in place or _is_scalar(column)
    ]
    query = exp.Select(expressions=outputs).from_(exp.Subquery(this=source, alias=label))
    return _write("INSERT", tree, table, target.alias or target.name, query, tuple(output.alias for output in outputs))


def _write(verb: Verb, tree: Node, table: CreateSource, label: str, query: Node, names: tuple[str, ...]) -> Write:
    """Of the rows as they are to be written, with what RETURNING says of them. Raises QueryError."""
    if not tree.args.get("returning"):
        return Write(verb, table, query.sql("postgres"), names)
    row = exp.to_identifier(label, quoted=True)
    computed = [column for column in table.columns if column.generated is not None]
    if computed and verb != "DELETE":
        expressions = [exp.Paren(this=parse_one(column.generated or "", read="postgres")) for column in computed]
        added = [_named(each, column.name) for each, column in zip(expressions, computed, strict=True)]
        query = exp.Select(expressions=[exp.Star(), *added]).from_(query.subquery(row.copy()))
    known = {*names, *(column.name for column in computed)}
    shown = [column.name for column in table.columns if verb == "DELETE" or column.name in known]
    outputs: list[Node] = []
    for item in tree.args["returning"].expressions:
        star = isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))
        outputs += (
            [exp.column(exp.to_identifier(name, quoted=True), table=row.copy()) for name in shown] if star else [item]
        )
    calls = [call for each in outputs for call in each.find_all(exp.AggFunc, exp.Window)]
    if any(call.find_ancestor(exp.Select) is None for call in calls):
        raise QueryError("42803", "aggregate functions and OVER are not allowed in RETURNING")
    if verb == "DELETE":  # of the rows as they are
        query.set("expressions", [*query.expressions, *(each.copy() for each in outputs)])
    else:
        kept = [exp.column(exp.to_identifier(name, quoted=True), table=row.copy()) for name in names]
        query = exp.Select(expressions=[*kept, *(each.copy() for each in outputs)]).from_(query.subquery(row.copy()))
    return Write(verb, table, query.sql("postgres"), names, returns=True)


def _is_scalar(column: ColumnDefinition) -> bool:
    try:
        _type(column)
    except QueryError:
        return False
    return True


def _is_text(item: Node) -> bool:
    return isinstance(item, exp.Literal) and item.is_string


def _fitting(columns: list[ColumnDefinition], width: int, named: bool) -> list[ColumnDefinition]:
    """The columns that so many values are for. Raises QueryError."""
    if width > len(columns):
        raise QueryError("42601", "INSERT has more expressions than target columns")
    if named and width < len(columns):
        raise QueryError("42601", "INSERT has more target columns than expressions")
    return columns[:width]


def _keys(table: CreateSource) -> list[str]:
    """As the columns are spelled."""
    names = {column.name.lower(): column.name for column in table.columns} | {ROW_KEY: ROW_KEY}
    return [names[key.lower()] for key in table.primary_key]


def _from(tree: Node, outputs: Sequence[Node]) -> Node:
    query = exp.Select(expressions=list(outputs)).from_(tree.this.copy())
    if tree.args.get("where"):
        query.set("where", tree.args["where"].copy())
    return query


def _update(tree: exp.Update, tables: Tables) -> Write:
    table = _changing(tree.this, tables, "UPDATE")
    label = tree.this.alias or tree.this.name
    keys = _keys(table)
    assigned: dict[str, Node] = {}
    for pair in tree.expressions:
        for left, right in _pairs(pair):
            column = _column(table, left)
            if column.name in assigned:
                raise QueryError("42601", f'multiple assignments to same column "{column.name}"')
            if column.name in keys:
                raise QueryError(
                    "0A000",
                    f'"{column.name}" is of the primary key, which UPDATE does not change',
                    "DELETE the row and INSERT it",
                )
            assigned[column.name] = _cast(right, column)
    kept = [name for name in (ROW_KEY,) if name in keys] + [column.name for column in _stored(table)]
    outputs = [
        _named(
            assigned.get(name)
            or exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(label, quoted=True)),
            name,
        )
        for name in kept
    ]
    return _write("UPDATE", tree, table, label, _from(tree, outputs), tuple(kept))


def _pairs(pair: Node) -> list[tuple[str, Node]]:
    """Of SET: (column, value). Raises QueryError."""
    if isinstance(pair, exp.EQ):
        left, right = pair.this.unnest(), pair.expression
        if isinstance(left, exp.Column):
            return [(left.name, right)]
        if (
            isinstance(left, exp.Tuple)
            and isinstance(right, exp.Tuple)
            and len(left.expressions) == len(right.expressions)
        ):
            return [(name.name, value) for name, value in zip(left.expressions, right.expressions, strict=True)]
    raise QueryError("0A000", f"SET {pair.sql('postgres')} is not supported", "write SET column = value, ...")


def _delete(tree: exp.Delete, tables: Tables) -> Write:
    table = _changing(tree.this, tables, "DELETE")
    label = exp.to_identifier(tree.this.alias or tree.this.name, quoted=True)
    keys = _keys(table)
    outputs = [_named(exp.column(exp.to_identifier(name, quoted=True), table=label), name) for name in keys]
    return _write("DELETE", tree, table, tree.this.alias or tree.this.name, _from(tree, outputs), tuple(keys))
