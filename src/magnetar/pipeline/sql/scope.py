"""Whose column is it? Names of FROM, and the rewriting of columns to those of the node's input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from magnetar.pipeline.errors import PlanRefusedError, SqlError
from magnetar.pipeline.sql import computed
from magnetar.pipeline.sql.computed import Computed
from magnetar.pipeline.sql.expressions import place_of, spark_sql
from magnetar.pipeline.sql.plan import EPOCH_TIMESTAMP, Named, Plan
from magnetar.pipeline.sql.postgres import translated
from magnetar.pipeline.sql.python_functions import shown
from magnetar.pipeline.sql.statements import Query
from magnetar.pipeline.sql.typed import StructKind, kind, of_kind

ADDED: Final = "__sub"
"""How the names of inputs begin that nobody wrote: those of subqueries that became joins."""

_WRITTEN: Final = "written"

SESSION: Final = "__session"
"""The qualifier of a session's `start` and `end` where GROUP BY SESSION(...) makes sessions: the columns of Spark's session window."""

_NOT_REPEATABLE = {"rand", "random", "uuid", "gen_random_uuid", "randn", "monotonically_increasing_id", "shuffle"}
_REACHING = {"reflect", "java_method", "try_reflect"}
"""Spark's functions that call any method of its process."""


def refuse(query: Query, node: exp.Expr, message: str) -> PlanRefusedError:
    """The error for a node of the query, at its place in the file."""
    return PlanRefusedError(message, *place_of(node, query.line, query.column))


@dataclass
class Side:
    """One name of FROM: its plan, its columns when known, and those the query asked for."""

    alias: str
    plan: Plan
    columns: tuple[str, ...] | None
    kinds: Mapping[str, str | None] = field(default_factory=dict)
    """By lower-case name, where they are known."""
    used: dict[str, None] = field(default_factory=dict)
    merged: tuple[str, ...] = ()
    """Lower-case names of the columns that USING made one with those of an input before: by itself the name means that one."""


class Scope:
    """The names of one SELECT. With one side a column keeps its name, with several `o.x` becomes `o__x`."""

    def __init__(self, query: Query, sides: list[Side]) -> None:
        self.query = query
        self.sides = sides

    def side_of(self, column: exp.Column) -> Side:
        if column.table:
            for side in self.sides:
                if side.alias.lower() == column.table.lower():
                    return side
            names = ", ".join(side.alias for side in self.sides)
            raise refuse(self.query, column, f"{column.table} is not in FROM; there is {names}")
        sides = [side for side in self.sides if not side.alias.startswith(ADDED)] or self.sides
        if len(sides) == 1:
            return sides[0]
        name = column.name.lower()
        found = [
            side
            for side in sides
            if side.columns and name in (c.lower() for c in side.columns) and name not in side.merged
        ]
        if len(found) == 1 and all(side.columns is not None for side in sides):
            return found[0]
        example = f"{self.sides[0].alias}.{column.name}"
        raise refuse(self.query, column, f"{column.name} may be of more than one input; write {example}, say")

    def has(self, name: str) -> bool:
        """Whether an input is known to have such a column; in GROUP BY it goes before an output of that name."""
        return any(name.lower() in (c.lower() for c in side.columns or ()) for side in self.sides)

    def resolved(self, node: exp.Expr) -> exp.Expr:
        """A copy over the input's columns: qualifiers gone, now() the epoch's time, what a repeat would change refused."""
        return node.copy().transform(self._resolve)

    def _resolve(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.table == SESSION:
            return of_kind(exp.column(node.name, table="session_window"), "timestamp")
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            side = self.side_of(node)
            if side.columns is not None and node.name.lower() not in (c.lower() for c in side.columns):
                known = ", ".join(side.columns[:20])
                if not known:
                    raise refuse(self.query, node, f"there is no column {node.name}; add FROM and what has it")
                raise refuse(self.query, node, f"{side.alias} has no column {node.name}; it has {known}")
            side.used[node.name] = None
            name = node.name if len(self.sides) == 1 else f"{side.alias}__{node.name}"
            column = exp.column(exp.to_identifier(name, quoted=not name.isidentifier()))
            column.this.meta.update(node.this.meta)
            if name != node.name:
                standing_for(column, node)
            return of_kind(column, side.kinds.get(node.name.lower()))
        if isinstance(node, exp.CurrentTimestamp) or (
            isinstance(node, exp.Anonymous) and node.name.lower() == "proctime"
        ):
            return of_kind(standing_for(exp.column(EPOCH_TIMESTAMP), node), "timestamptz")
        if isinstance(node, exp.In) and any(isinstance(each, exp.Values) for each in node.expressions):
            return self._listed(node)
        if isinstance(node, exp.Values):
            raise refuse(
                self.query, node, "VALUES stands in FROM, as (VALUES (1), (2)) AS t (a), or in IN (VALUES ...)"
            )
        if isinstance(node, exp.Query | exp.Exists):
            raise refuse(self.query, node, "a SELECT has no incremental plan at this place; write a JOIN with it")
        name = node.name.lower() if isinstance(node, exp.Anonymous) else node.key
        if name in _REACHING:
            raise refuse(
                self.query,
                node,
                f"{name}() calls methods of Spark's process; write CREATE FUNCTION ... LANGUAGE python",
            )
        if name in _NOT_REPEATABLE:
            raise refuse(
                self.query, node, f"{name}() gives another value when an epoch is repeated; compute it in the producer"
            )
        return node

    def _listed(self, node: exp.In) -> exp.Expr:
        """`x IN (VALUES (1), (2))` as `x IN (1, 2)`."""
        found: list[exp.Expr] = []
        for each in node.expressions:
            rows = each.expressions if isinstance(each, exp.Values) else [exp.Tuple(expressions=[each])]
            if any(len(row.expressions) != 1 for row in rows if isinstance(row, exp.Tuple)):
                raise refuse(
                    self.query, node, "IN (VALUES ...) takes rows of one value; JOIN (VALUES ...) AS t (a, b) by both"
                )
            found += [row.expressions[0] if isinstance(row, exp.Tuple) else row for row in rows]
        node.set("expressions", found)
        return node

    def sql(self, node: exp.Expr) -> str:
        """Spark SQL of a node that is resolved already."""
        try:
            found = translated(node)
            text, bad = spark_sql(found), computed.condition(found)
            return text if bad is None else Computed.of(text, spark_sql(bad), shown(_as_written(node).sql("postgres")))
        except PlanRefusedError:
            raise
        except SqlError as error:
            raise refuse(self.query, node, str(error).partition(": ")[2]) from None

    def expanded(self, expressions: list[exp.Expr]) -> list[exp.Expr]:
        """The select list with `*` and `o.*` as columns where those are known; a lone `*` stays where they are not."""
        found: list[exp.Expr] = []
        for expression in expressions:
            if isinstance(expression, exp.Dot) and isinstance(expression.expression, exp.Star):
                found += self._fields(expression)
                continue
            star = isinstance(expression, exp.Star) or (
                isinstance(expression, exp.Column) and isinstance(expression.this, exp.Star)
            )
            if not star:
                found.append(expression)
                continue
            table = expression.table if isinstance(expression, exp.Column) else ""
            first = [] if table else self._merged()
            found += first
            taken = {(column.table, column.name.lower()) for column in first}
            for side in self.sides:
                if (table and side.alias.lower() != table.lower()) or side.alias.startswith(ADDED):
                    continue
                if side.columns is None and len(self.sides) > 1:
                    raise refuse(
                        self.query,
                        expression,
                        f"the columns of {side.alias} are not known here; name them instead of *",
                    )
                if side.columns is None:
                    found.append(exp.Star())
                else:
                    found += [
                        exp.column(exp.to_identifier(c, quoted=not c.isidentifier()), table=side.alias)
                        for c in side.columns
                        if table or (c.lower() not in side.merged and (side.alias, c.lower()) not in taken)
                    ]
        return found

    def _fields(self, expression: exp.Dot) -> list[exp.Expr]:
        """`(a).*` as its fields."""
        known = self.kind(self.resolved(expression.this))
        if not isinstance(known, StructKind):
            raise refuse(self.query, expression, "(x).* takes a STRUCT whose fields are known; write (x).field")
        return [
            exp.alias_(
                exp.Dot(this=expression.this.copy(), expression=exp.to_identifier(name, quoted=True)), name, quoted=True
            )
            for name in known.fields
        ]

    def _merged(self) -> list[exp.Column]:
        """The columns of USING, which come first in `*`: those of the last join before those of the others."""
        names = dict.fromkeys(name for side in reversed(self.sides) for name in side.merged)
        found = []
        for name in names:
            owner = next(
                side for side in self.sides if name not in side.merged and name in map(str.lower, side.columns or ())
            )
            written = next(column for column in owner.columns or () if column.lower() == name)
            found.append(exp.column(exp.to_identifier(written, quoted=not written.isidentifier()), table=owner.alias))
        return found

    def named(self, expressions: list[exp.Expr]) -> list[tuple[exp.Expr, str]]:
        """Resolved expressions with their output names, which are unique."""
        result: list[tuple[exp.Expr, str]] = []
        seen: set[str] = set()
        for number, expression in enumerate(self.expanded(expressions), 1):
            inner = expression.this if isinstance(expression, exp.Alias) else expression
            given = expression.alias_or_name if isinstance(expression, exp.Alias | exp.Column | exp.Star) else ""
            if isinstance(inner, exp.Dot):
                given = given or inner.expression.name
            name = given or f"{plain_name(inner)}{number}"
            if name.lower() in seen:
                raise refuse(self.query, expression, f"two columns have the name {name}; give one another name with AS")
            seen.add(name.lower())
            result.append((self.resolved(inner), name))
        return result

    def outputs(self, named: list[tuple[exp.Expr, str]]) -> tuple[Named, ...]:
        return tuple(Named("*" if name == "*" else self.sql(node), name, self.kind(node)) for node, name in named)

    def kind(self, node: exp.Expr) -> str | None:
        """The sort of value that a resolved node has, where that is known."""
        try:
            return kind(translated(node))
        except SqlError:
            return None


def plain_name(node: exp.Expr) -> str:
    """How the name of an expression begins to which none was given."""
    return f"{node.key}_" if isinstance(node, exp.Func) else "column_"


class Columns(tuple[str, ...]):
    """Names of columns, and the sorts of values of those that are known, by lower-case name."""

    kinds: Mapping[str, str | None]
    plan: Plan | None = None
    """Of a view that is not materialized: what is read in its place."""

    @classmethod
    def of(cls, names: Iterable[str], kinds: Mapping[str, str | None], plan: Plan | None = None) -> Columns:
        found = cls(names)
        found.kinds = kinds
        found.plan = plan
        return found


Relations = Mapping[str, tuple[str, ...] | None]
"""The names a query may read, with their columns when known."""


def standing_for(column: exp.Expr, written: exp.Expr) -> exp.Expr:
    """A column that holds the value of an expression, which errors show in its place."""
    column.meta[_WRITTEN] = _as_written(written)
    return column


def _as_written(node: exp.Expr) -> exp.Expr:
    def written(each: exp.Expr) -> exp.Expr:
        found: exp.Expr = each.meta.get(_WRITTEN, each)
        return found

    return node.copy().transform(written)
