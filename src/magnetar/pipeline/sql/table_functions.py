"""`generate_series(...)` and `unnest(...)`: rows out of the values of a row, as arrays that Spark makes elements of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.computed import Computed, fails
from magnetar.pipeline.sql.intervals import interval_us
from magnetar.pipeline.sql.postgres import translated
from magnetar.pipeline.sql.scope import ADDED, Scope, plain_name, refuse
from magnetar.pipeline.sql.statements import Query
from magnetar.pipeline.sql.typed import TIMES, element_kind

_NAMES: Final = ("UNNEST", "GENERATE_SERIES")
_SELECTED: Final = f"{ADDED}_elements"


@dataclass(frozen=True, slots=True)
class TableFunction:
    """`function(arguments) WITH ORDINALITY AS alias (column, ordinality)`."""

    function: str
    arguments: tuple[exp.Expr, ...]
    alias: str
    column: str
    ordinality: str | None


def table_function(query: Query, node: exp.Expr) -> TableFunction | None:
    """What an input of FROM is, if it is a call of one. PlanRefusedError for a form that has no equal."""
    call = node.this if isinstance(node, exp.Table | exp.Lateral) else node
    if isinstance(call, exp.Unnest):
        function, arguments = "UNNEST", call.expressions
    elif isinstance(call, exp.Anonymous) and call.name.upper() in _NAMES:
        function, arguments = call.name.upper(), call.expressions
    else:
        return None
    names = next((each.args["alias"] for each in (node, call) if each.args.get("alias")), None)
    alias = names.name if names is not None and names.name else function.lower()
    columns = [column.name for column in names.args.get("columns") or ()] if names is not None else []
    offset = call.args.get("offset") if isinstance(call, exp.Unnest) else None
    numbered = bool(offset) or bool(node.args.get("ordinality"))
    if isinstance(offset, exp.Identifier):  # the parser takes the last column for it
        columns.append(offset.name)
    if len(columns) > 1 + numbered:
        raise refuse(query, node, f"{function.lower()} gives {1 + numbered} columns; name no more of them")
    column = columns[0] if columns else alias
    return TableFunction(
        function,
        tuple(arguments),
        alias,
        column,
        None if not numbered else columns[1] if len(columns) > 1 else "ordinality",
    )


def elements(query: Query, scope: Scope, called: TableFunction, node: exp.Expr) -> tuple[str, str | None]:
    """Spark SQL of the array whose elements are the rows (NULL: there are none), and the kind of the elements."""
    given = [scope.resolved(argument) for argument in called.arguments]
    if called.function == "UNNEST":
        if len(given) != 1:
            raise refuse(
                query, node, "unnest() takes one array; write a second unnest() WITH ORDINALITY and join them by it"
            )
        try:
            kind = element_kind(translated(given[0]))
        except SqlError:
            kind = None
        if kind == "array":
            raise refuse(
                query,
                node,
                "unnest() of arrays of arrays; unnest them one after the other with explode in the producer",
            )
        return scope.sql(given[0]), kind
    if len(given) not in (2, 3):
        raise refuse(query, node, "write generate_series(start, stop [, step])")
    kinds = [scope.kind(each) for each in given]
    if kinds[0] in TIMES and kinds[1] in TIMES:
        return _times(query, scope, given, kinds, node)
    if any(kind != "int" for kind in kinds):
        raise refuse(
            query,
            node,
            "generate_series() takes whole numbers, or two times and an INTERVAL; CAST its arguments to BIGINT",
        )
    sqls = [scope.sql(each) for each in given]
    return _series([f"CAST({sql} AS BIGINT)" for sql in sqls], sqls), "int"


def _times(
    query: Query, scope: Scope, given: list[exp.Expr], kinds: list[str | None], node: exp.Expr
) -> tuple[str, str | None]:
    step = given[2] if len(given) == 3 else None
    sign, interval = 1, step
    if isinstance(step, exp.Neg):
        sign, interval = -1, step.this
    if not isinstance(interval, exp.Interval) or not isinstance(interval.this, exp.Literal):
        raise refuse(query, node, "write generate_series(start, stop, INTERVAL '1 day')")
    text = interval.this.name
    if text.startswith("-"):
        sign, text = -sign, text[1:]
    try:
        length = interval_us(text, interval.unit.name if interval.unit is not None else None)
    except ValueError as error:
        raise refuse(query, node, str(error)) from None
    sqls = [scope.sql(each) for each in given[:2]]
    micros = [f"UNIX_MICROS(CAST({sql} AS TIMESTAMP))" for sql in sqls]
    found = "timestamp" if kinds[0] == kinds[1] == "timestamp" else "timestamptz"
    series = _series([*micros, f"CAST({sign * length} AS BIGINT)"], sqls, empty=length == 0)
    text = f"TRANSFORM({series}, each -> TIMESTAMP_MICROS(each))"
    return Computed.of(text, fails(series), "generate_series(...)") if fails(series) else text, found


def _series(numbers: list[str], written: list[str], *, empty: bool = False) -> str:
    """`numbers`: start, stop and perhaps step, of which `written` are computed from rows. Spark's sequence() is an error where it would be
    empty, PostgreSQL's where the step is 0 (`empty`)."""
    start, stop, step = numbers if len(numbers) == 3 else (*numbers, "CAST(1 AS BIGINT)")
    there = f"({step} > 0 AND {start} <= {stop}) OR ({step} < 0 AND {start} >= {stop})"
    text = f"CASE WHEN {there} THEN SEQUENCE({start}, {stop}, {step}) END"
    bad = [f"({fails(each)})" for each in written if fails(each)]
    if empty or len(written) == 3:
        bad.append(f"{step} = 0")
    return Computed.of(text, " OR ".join(bad), "generate_series(...)") if bad else text


def without_selected(query: Query, tree: exp.Select) -> exp.Select:
    """The SELECT with what its list calls of these in FROM, where PostgreSQL has them at last as well."""
    called = [place for place, each in enumerate(tree.expressions) if _is_called(each.unalias())]
    if not called:
        return tree
    node = tree.expressions[called[0]]
    if len(called) > 1 or tree.args.get("group") or tree.args.get("distinct") or tree.find(exp.AggFunc, exp.Window):
        raise refuse(query, node, "here unnest() and generate_series() stand in FROM: FROM t, unnest(t.a) AS u(x)")
    tree = tree.copy()
    item = tree.expressions[called[0]]
    inner = item.unalias()
    name = (
        item.alias
        if isinstance(item, exp.Alias)
        else inner.name.lower()
        if isinstance(inner, exp.Anonymous)
        else plain_name(inner)
    )
    columns = exp.TableAlias(this=exp.to_identifier(_SELECTED), columns=[exp.to_identifier("value")])
    tree.append("joins", exp.Join(this=exp.Lateral(this=inner.copy(), alias=columns)))
    item.replace(exp.alias_(exp.column("value", table=_SELECTED), name, quoted=True))
    return tree


def _is_called(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() in _NAMES
