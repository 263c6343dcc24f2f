"""Subqueries of WHERE, HAVING and the select list as joins, which is what has an incremental plan.

What each becomes (`d` is the subquery's distinct keys, its columns that are compared with those of the outer query):

| written | joined |
|---|---|
| `x IN (SELECT y ...)`, `EXISTS (SELECT ... WHERE y = o.x)` | an inner join with `d` |
| the same below NOT, OR or CASE | a left join with `d`, and whether it found something |
| `x NOT IN (SELECT y ...)` | as well a count of the `y` that are NULL, of which one makes the answer NULL |
| `(SELECT max(y) ... WHERE z = o.x)` | a left join with the aggregate grouped by `z` |
| `(SELECT max(y) ...)`, `EXISTS (SELECT ...)` | a join with its one row |

A correlated subquery compares columns of its own with those of the outer query by equality, which stand in its WHERE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlglot import exp

from magnetar.pipeline.errors import PlanRefusedError
from magnetar.pipeline.sql.scope import ADDED, plain_name, refuse, standing_for
from magnetar.pipeline.sql.statements import Query

ColumnsOf: TypeAlias = Callable[[exp.Expr], tuple[str, ...] | None]
"""The columns of an input of FROM, where they are known."""

_VALUE: Final = "__value"
_CORRELATED: Final = (
    "a correlated subquery compares its columns with the outer query's by equality: WHERE y = outer.x AND ...; "
)


def terms(condition: exp.Expr) -> list[exp.Expr]:
    """What AND connects."""
    inner = condition.unnest()
    return [each for half in inner.flatten() for each in terms(half)] if isinstance(inner, exp.And) else [inner]


def without_subqueries(query: Query, tree: exp.Select, columns_of: ColumnsOf) -> exp.Select:
    """The SELECT with joins in place of its subqueries. PlanRefusedError for those that have none."""
    tree = _without_having(query, tree)
    places = [tree.args.get("where"), *tree.expressions]
    if not any(place.find(exp.Query) for place in places if place is not None):
        return tree
    return _Rewriting(query, tree.copy(), columns_of).done()


def _without_having(query: Query, tree: exp.Select) -> exp.Select:
    """HAVING with a subquery as WHERE over the groups."""
    having = tree.args.get("having")
    if having is None or not having.find(exp.Query):
        return tree
    inner = tree.copy()
    condition = inner.args["having"].this
    inner.set("having", None)
    named: list[exp.Expr] = []
    for number, output in enumerate(inner.expressions, 1):
        if isinstance(output, exp.Star):
            raise refuse(query, output, "SELECT * together with HAVING; name the columns")
        inside = output.unalias()
        named.append(exp.alias_(inside, output.alias_or_name or f"{plain_name(inside)}{number}"))
    shown = [exp.column(output.alias, table="__groups", quoted=True) for output in named]
    extra: dict[str, exp.Expr] = {}

    def lifted(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Query):
            return node
        if isinstance(node, exp.AggFunc | exp.Column):
            text = node.sql()
            name = f"__having{len(extra)}" if text not in extra else extra[text].alias
            extra.setdefault(text, exp.alias_(node.copy(), name))
            return exp.column(name, table="__groups")
        for key, value in list(node.args.items()):
            if isinstance(value, exp.Expr):
                node.set(key, lifted(value))
            elif isinstance(value, list):
                node.set(key, [lifted(each) if isinstance(each, exp.Expr) else each for each in value])
        return node

    condition = lifted(condition)
    inner.set("expressions", [*named, *extra.values()])
    outer = exp.select(*shown).from_(inner.subquery("__groups")).where(condition)
    outer.set("with_", inner.args.get("with_"))
    inner.set("with_", None)
    return outer


@dataclass(frozen=True)
class _Inner:
    """A subquery without what connects it: pairs of (its column, the outer query's)."""

    tree: exp.Select
    pairs: list[tuple[exp.Expr, exp.Expr]]


class _Rewriting:
    def __init__(self, query: Query, tree: exp.Select, columns_of: ColumnsOf) -> None:
        self._query = query
        self._tree = tree
        self._columns_of = columns_of
        self._count = 0

    def done(self) -> exp.Select:
        where = self._tree.args.get("where")
        kept = [term for term in ([] if where is None else terms(where.this)) if not self._is_joined(term)]
        condition = exp.Paren(this=exp.and_(*kept, copy=False)) if kept else None
        if condition is not None:
            self._replaced(condition)
        self._tree.set("where", None if condition is None else exp.Where(this=condition.this))
        grouped = self._tree.args.get("group") is not None or any(map(_aggregates, self._tree.expressions))
        for output in self._tree.expressions:
            self._replaced(output, grouped=grouped)
        return self._tree

    def _is_joined(self, term: exp.Expr) -> bool:
        """`x IN (...)` and `EXISTS (...)` that have to be true: an inner join keeps the rows for which they are."""
        term = _in_of_any(term)
        if isinstance(term, exp.In) and term.args.get("query") is not None:
            pairs, inner = self._members(term)
        elif isinstance(term, exp.Exists):
            inner = self._split(term.this)
            pairs = inner.pairs
            if not pairs:
                return False
        else:
            return False
        self._join(self._distinct(inner, [own for own, _ in pairs]), [other for _, other in pairs], "")
        return True

    def _replaced(self, root: exp.Expr, grouped: bool = False) -> None:
        """The subqueries below, each by an expression over what is joined for it."""
        for compared in list(root.find_all(exp.EQ, exp.NEQ)):
            written = _in_of_any(compared)
            if written is not compared:
                compared.replace(written)
        for node in list(root.find_all(exp.In, exp.Exists, exp.Subquery)):
            if node.find_ancestor(exp.Query) not in (None, self._tree) or node.root() is not root.root():
                continue
            if isinstance(node, exp.Subquery) and isinstance(node.parent, exp.In):
                continue
            found: exp.Expr
            if isinstance(node, exp.In):
                if node.args.get("query") is None:
                    continue
                found = self._is_member(node)
            elif isinstance(node, exp.Exists):
                found = self._is_there(node)
            else:
                assert isinstance(node, exp.Subquery)
                found = self._value(node)
                if grouped and node.find_ancestor(exp.AggFunc) is None:
                    found = exp.Max(this=found)
            node.replace(standing_for(found, node))

    def _is_there(self, node: exp.Exists) -> exp.Expr:
        inner = self._split(node.this)
        if inner.pairs:
            name = self._join(
                self._distinct(inner, [own for own, _ in inner.pairs]), [other for _, other in inner.pairs], "left"
            )
            return exp.column("__key0", table=name).is_(exp.null()).not_()
        return exp.column("__rows", table=self._join(_counted(inner.tree), [], "cross")) > 0

    def _is_member(self, node: exp.In) -> exp.Expr:
        """TRUE, FALSE, or NULL where a NULL on either side leaves it open."""
        members, inner = self._members(node)
        found = self._join(self._distinct(inner, [own for own, _ in members]), [other for _, other in members], "left")
        correlated = inner.pairs
        rows = _select(inner.tree, [])
        own = members[0][0]
        rows.set("expressions", [exp.alias_(own.copy(), _VALUE), *_keys(correlated)])
        counts: list[exp.Expr] = [
            exp.alias_(exp.Count(this=exp.Star()), "__rows"),
            exp.alias_(exp.Count(this=exp.column(_VALUE)), "__values"),
        ]
        names = [exp.column(f"__key{n}") for n in range(len(correlated))]
        each = exp.select(*[name.copy() for name in names], *counts).from_(rows.subquery(f"{found}_rows"))
        if names:
            each = each.group_by(*names)
        counted = self._join(each, [other for _, other in correlated], "left" if names else "cross")
        total = exp.func("coalesce", exp.column("__rows", table=counted), exp.Literal.number(0))
        open_ = exp.or_(
            node.this.copy().is_(exp.null()),
            exp.column("__values", table=counted) < exp.column("__rows", table=counted),
        )
        return exp.Paren(
            this=exp.case()
            .when(exp.column("__key0", table=found).is_(exp.null()).not_(), exp.true())
            .when(total.eq(0), exp.false())
            .when(open_, exp.null())
            .else_(exp.false())
        )

    def _value(self, node: exp.Subquery) -> exp.Expr:
        """The one value of an aggregate."""
        inner = self._split(node.this)
        tree = inner.tree
        if len(tree.expressions) != 1 or tree.args.get("group") or not _aggregates(tree.expressions[0]):
            raise self._refuse(
                node,
                "a subquery that is a value gives one row, which an aggregate over all of its rows does; "
                "write max(x) within it, or JOIN it",
            )
        value = tree.expressions[0].unalias()
        if not inner.pairs:
            tree.set("expressions", [exp.alias_(value.copy(), _VALUE)])
            return exp.column(_VALUE, table=self._join(tree, [], "cross"))
        grouped = _select(tree, [exp.alias_(value.copy(), _VALUE), *_keys(inner.pairs)])
        grouped = grouped.group_by(*[own.copy() for own, _ in inner.pairs])
        name = self._join(grouped, [other for _, other in inner.pairs], "left")
        found = exp.column(_VALUE, table=name)
        if not value.find(exp.Count):
            return found
        # over no rows a count is 0 and any other aggregate NULL
        of_none = exp.Paren(this=value.copy())
        for call in list(of_none.find_all(exp.AggFunc)):
            call.replace(exp.Literal.number(0) if isinstance(call, exp.Count) else exp.null())
        return exp.Paren(
            this=exp.case().when(exp.column("__key0", table=name).is_(exp.null()), of_none.this).else_(found)
        )

    def _members(self, node: exp.In) -> tuple[list[tuple[exp.Expr, exp.Expr]], _Inner]:
        """What is compared: pairs of (the subquery's, the outer query's), those of IN first."""
        inner = self._split(node.args["query"].this)
        values = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this.unnest()]
        own = [output.unalias() for output in inner.tree.expressions]
        if len(values) != len(own) or any(isinstance(each, exp.Star) for each in own):
            raise self._refuse(node, f"IN compares {len(values)} values; let the subquery SELECT as many columns")
        if len(values) > 1 and not (isinstance(node.parent, exp.Where | exp.And) or node.parent is None):
            raise self._refuse(node, "a row of several values with NOT IN; write NOT EXISTS (SELECT ... WHERE ...)")
        outer = [self._qualified(value) for value in values]
        return [*zip(own, outer, strict=True), *inner.pairs], inner

    def _split(self, tree: exp.Expr) -> _Inner:
        """The subquery without the equalities with columns of the outer query."""
        tree = tree.unnest() if isinstance(tree, exp.Subquery) else tree
        if not isinstance(tree, exp.Select):
            names = tree.named_selects if isinstance(tree, exp.Query) else []
            shown: list[exp.Expr] = [exp.column(name, quoted=True) for name in names]
            tree = exp.select(*(shown or [exp.Star()])).from_(
                exp.Subquery(this=tree.copy(), alias=exp.TableAlias(this=self._name("_of")))
            )
        tree = tree.copy()
        own = self._inputs(tree)
        where = tree.args.get("where")
        pairs: list[tuple[exp.Expr, exp.Expr]] = []
        kept: list[exp.Expr] = []
        for term in [] if where is None else terms(where.this):
            outside = [column for column in term.find_all(exp.Column) if self._is_outside(column, own)]
            if not outside:
                kept.append(term)
                continue
            pair = self._pair(term, own)
            if pair is None:
                raise self._refuse(outside[0], f"{_CORRELATED}give anything else a view of its own and JOIN it")
            pairs.append(pair)
        tree.set("where", exp.Where(this=exp.and_(*kept, copy=False)) if kept else None)
        for place in [
            *tree.expressions,
            tree.args.get("group"),
            tree.args.get("having"),
            *(tree.args.get("joins") or []),
        ]:
            for column in [] if place is None else place.find_all(exp.Column):
                if self._is_outside(column, own):
                    raise self._refuse(column, f"{_CORRELATED}elsewhere it cannot read the outer query's columns")
        if pairs and any(tree.args.get(name) for name in ("group", "having", "limit", "offset")):
            raise self._refuse(
                pairs[0][1],
                "a correlated subquery with GROUP BY, HAVING or LIMIT; give it a view of its own and JOIN it",
            )
        return _Inner(tree, pairs)

    def _inputs(self, tree: exp.Select) -> dict[str, tuple[str, ...] | None]:
        """By alias: the columns, where they are known."""
        tables = (
            [tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or [])]
            if tree.args.get("from_")
            else []
        )
        return {table.alias_or_name.lower(): self._columns_of(table) for table in tables}

    def _is_outside(self, column: exp.Column, own: dict[str, tuple[str, ...] | None]) -> bool:
        """Whether it is the outer query's: by its qualifier, else because no input of the subquery has it and one outside does."""
        select = column.find_ancestor(exp.Select)
        if isinstance(column.this, exp.Star):
            return False
        if column.table:
            nested = self._inputs(select) if select is not None else {}
            return column.table.lower() not in own and column.table.lower() not in nested
        if any(known is None or column.name.lower() in (c.lower() for c in known) for known in own.values()):
            return False
        outside = self._inputs(self._tree)
        return any(
            known is not None and column.name.lower() in (c.lower() for c in known) for known in outside.values()
        )

    def _pair(self, term: exp.Expr, own: dict[str, tuple[str, ...] | None]) -> tuple[exp.Expr, exp.Expr] | None:
        if not isinstance(term, exp.EQ) or term.find(exp.Query):
            return None
        for one, other in ((term.this, term.expression), (term.expression, term.this)):
            inside, outside = list(one.find_all(exp.Column)), list(other.find_all(exp.Column))
            if (
                inside
                and not any(self._is_outside(column, own) for column in inside)
                and all(self._is_outside(column, own) for column in outside)
            ):
                return one, self._qualified(other)
        return None

    def _qualified(self, node: exp.Expr) -> exp.Expr:
        """With the name of the one input, so that it is told from those that are added."""
        node = node.copy()
        inputs = list(self._inputs(self._tree))
        own = [name for name in inputs if not name.startswith(ADDED)]
        if len(own) == 1:
            for column in node.find_all(exp.Column):
                if not column.table:
                    column.set("table", exp.to_identifier(own[0], quoted=not own[0].isidentifier()))
        return node

    def _distinct(self, inner: _Inner, own: list[exp.Expr]) -> exp.Select:
        """Its keys `__key0`, ..., each once."""
        tree = inner.tree
        if tree.args.get("group") or tree.args.get("distinct") or tree.args.get("limit") or any(map(_aggregates, own)):
            rows = tree.copy()
            rows.set("expressions", [exp.alias_(each.copy(), f"__key{n}") for n, each in enumerate(own)])
            names = [exp.column(f"__key{n}") for n in range(len(own))]
            return exp.select(*names).distinct().from_(rows.subquery(self._name("_of")))
        return _select(tree, [exp.alias_(each.copy(), f"__key{n}") for n, each in enumerate(own)]).distinct()

    def _join(self, tree: exp.Select, outer: list[exp.Expr], how: str) -> str:
        """Join the rows by their keys; the name by which they are joined. `how`: inner without a word, left, or cross."""
        name = self._name("")
        self._count += 1
        on = [
            exp.EQ(this=other.copy(), expression=exp.column(f"__key{n}", table=name)) for n, other in enumerate(outer)
        ]
        join = exp.Join(this=tree.subquery(name))
        if how == "cross":
            join.set("kind", "CROSS")
        else:
            join.set("on", exp.and_(*on, copy=False))
            if how == "left":
                join.set("side", "LEFT")
        self._tree.append("joins", join)
        return name

    def _name(self, suffix: str) -> str:
        return f"{ADDED}{self._count}{suffix}"

    def _refuse(self, node: exp.Expr, message: str) -> PlanRefusedError:
        return refuse(self._query, node, message)


def _in_of_any(node: exp.Expr) -> exp.Expr:
    """`x = ANY (SELECT ...)` is IN, `x <> ALL (SELECT ...)` its opposite."""
    other = node.args.get("expression")
    if isinstance(node, exp.EQ) and isinstance(other, exp.Any) and other.find(exp.Query):
        return exp.In(this=node.this.copy(), query=_subquery(other.this))
    if isinstance(node, exp.NEQ) and isinstance(other, exp.All) and other.find(exp.Query):
        return exp.Not(this=exp.In(this=node.this.copy(), query=_subquery(other.this)))
    return node


def _subquery(node: exp.Expr) -> exp.Subquery:
    inner = node.unnest()
    inner = inner.this if isinstance(inner, exp.Subquery) else inner
    return exp.Subquery(this=inner.copy())


def _select(tree: exp.Select, outputs: list[exp.Expr]) -> exp.Select:
    """The same FROM and WHERE with other outputs."""
    found = tree.copy()
    found.set("expressions", outputs)
    for name in ("distinct", "order", "limit"):
        found.set(name, None)
    return found


def _keys(pairs: list[tuple[exp.Expr, exp.Expr]]) -> list[exp.Expr]:
    return [exp.alias_(own.copy(), f"__key{n}") for n, (own, _) in enumerate(pairs)]


def _counted(tree: exp.Select) -> exp.Select:
    count: exp.Expr = exp.alias_(exp.Count(this=exp.Star()), "__rows")
    if any(tree.args.get(name) for name in ("group", "having", "distinct", "limit")) or any(
        map(_aggregates, tree.expressions)
    ):
        named = tree.copy()
        named.set("expressions", [exp.alias_(e.unalias().copy(), f"__c{n}") for n, e in enumerate(tree.expressions)])
        return exp.select(count).from_(named.subquery(f"{ADDED}_counted"))
    return _select(tree, [count])


def _aggregates(node: exp.Expr) -> bool:
    """Whether it calls an aggregate, not counting those of subqueries and OVER."""
    if isinstance(node, exp.Query | exp.Window):
        return False
    return isinstance(node, exp.AggFunc) or any(map(_aggregates, node.iter_expressions()))
