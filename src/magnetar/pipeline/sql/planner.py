"""From a SELECT to its plan, or a refusal that says why and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from sqlglot import exp

from magnetar.pipeline.errors import PlanRefusedError
from magnetar.pipeline.sql.constant_rows import rows_of
from magnetar.pipeline.sql.expressions import read_query
from magnetar.pipeline.sql.from_clause import FromClause, column_aliases
from magnetar.pipeline.sql.grouping import grouping_sets, windows_in_group
from magnetar.pipeline.sql.plan import (
    Aggregate,
    Call,
    Dedup,
    Named,
    Order,
    Plan,
    Project,
    Recompute,
    TopN,
    UnionAll,
    output_names,
)
from magnetar.pipeline.sql.scope import Relations, Scope, refuse, standing_for
from magnetar.pipeline.sql.statements import Query
from magnetar.pipeline.sql.subqueries import terms as terms_of
from magnetar.pipeline.sql.subqueries import without_subqueries
from magnetar.pipeline.sql.table_functions import without_selected
from magnetar.pipeline.sql.typed import of_kind

_ONE_ROW_CALLS: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}
_REFUSED_CLAUSES = {
    "offset": "OFFSET without LIMIT; write LIMIT n OFFSET m, or OFFSET in the query over the view",
    "qualify": "write the window function in a subquery and filter its column outside",
    "windows": "write the window within OVER (...)",
    "laterals": "LATERAL has no incremental plan; create a view for the inner part and JOIN it",
    "sample": "a sample differs when an epoch is repeated; filter by a hash of the key",
}


def plan_query(query: Query, relations: Relations) -> Plan:
    """The plan of a view's or sink's query. PlanRefusedError when there is none, SqlError when it is no SQL."""
    try:
        return _plan(query, read_query(query.text, query.line, query.column), relations, {})
    except RecursionError:
        raise PlanRefusedError(
            "the query is nested too deeply; give an inner part a view of its own", query.line, query.column
        ) from None


def _plan(query: Query, tree: exp.Expr, relations: Relations, named: dict[str, Plan]) -> Plan:
    if isinstance(tree, exp.Subquery):
        return _plan(query, tree.this, relations, named)
    named = _with(query, tree, relations, named)
    if tree.args.get("limit"):
        return _first_rows(query, tree, relations, named)
    if isinstance(tree, exp.SetOperation):
        return _set_operation(query, tree, relations, named)
    if isinstance(tree, exp.Values):
        return _plan(query, rows_of(query, tree), relations, named)
    if not isinstance(tree, exp.Select):
        raise refuse(query, tree, f"{tree.key.upper()} has no incremental plan; write a SELECT")
    distinct = tree.args.get("distinct")
    unshown: list[exp.Expr] = []
    for name, instead in _REFUSED_CLAUSES.items():
        if tree.args.get(name):
            raise refuse(query, tree, instead)
    if tree.args.get("order") and not (distinct is not None and distinct.args.get("on")):
        tree, unshown = _without_order(query, tree)
    top = _top_n(query, tree, relations, named)
    if top is not None:
        return top
    sets = grouping_sets(query, tree)
    if sets is not None:
        return UnionAll(tuple(_plan(query, each, relations, named) for each in sets))
    tree, session = windows_in_group(query, without_selected(query, tree))
    clauses = FromClause(query, relations, named, _plan)
    tree = without_subqueries(query, tree, clauses.columns_of)
    scope, below = clauses.read(tree)
    for ordered in unshown:
        scope.resolved(ordered)
    select = _Select(tree, scope, scope.named(tree.expressions), _condition(tree, scope, clauses), session)
    return _above(select, below)


def _condition(tree: exp.Select, scope: Scope, clauses: FromClause) -> exp.Expr | None:
    """WHERE, and what inner joins ask for beside equalities; resolved."""
    where = tree.args.get("where")
    terms = [*clauses.filters, *([] if where is None else [where.this])]
    return scope.resolved(exp.and_(*terms)) if terms else None


def _first_rows(query: Query, tree: exp.Expr, relations: Relations, named: dict[str, Plan]) -> Plan:
    """`SELECT ... ORDER BY x LIMIT n OFFSET m`: one group of all rows."""
    limit = _count(query, tree, "limit")
    offset = _count(query, tree, "offset") if tree.args.get("offset") else 0
    if limit < 1:
        raise refuse(query, tree, "LIMIT 0 selects no rows; write the number of rows")
    order = tree.args.get("order")
    inner = tree.copy()
    distinct = tree.args.get("distinct")
    for name in ("limit", "offset", "with_", *([] if distinct and distinct.args.get("on") else ["order"])):
        inner.set(name, None)
    hidden: list[exp.Expr] = []
    names: list[tuple[str, exp.Ordered]] = []
    for item in [] if order is None else order.expressions:
        ordered = item if isinstance(item, exp.Ordered) else exp.Ordered(this=item)
        names.append((_ordered_by(query, tree, ordered.this, hidden), ordered))
    if hidden and isinstance(inner, exp.Select) and isinstance(tree, exp.Select):
        inner.set("expressions", [*inner.expressions, *hidden])
    below = _plan(query, inner, relations, named)
    columns = output_names(below)
    orders = tuple(
        Order(_name(name), bool(by.args.get("desc")), bool(by.args.get("nulls_first"))) for name, by in names
    )
    if columns is None and hidden:
        raise refuse(query, tree, "ORDER BY what SELECT * does not show; name the columns")
    shown = [name for name in columns or () if name not in {each.alias for each in hidden}]
    outputs = (Named("*", "*"),) if columns is None else tuple(Named(_name(name), name) for name in shown)
    return TopN(below, (), orders, limit, outputs, offset=offset)


def _ordered_by(query: Query, tree: exp.Expr, node: exp.Expr, hidden: list[exp.Expr]) -> str:
    """The name of the output that ORDER BY means; an expression becomes one more output, which is among `hidden` then."""
    selects = list(tree.selects) if isinstance(tree, exp.Query) else []
    if isinstance(node, exp.Literal) and node.name.isdigit():
        if not 1 <= int(node.name) <= len(selects) or not selects[int(node.name) - 1].alias_or_name:
            raise refuse(query, tree, f"ORDER BY {node.name}: there is no column of that number with a name")
        return selects[int(node.name) - 1].alias_or_name
    if isinstance(node, exp.Column):
        for output in selects:
            if output.alias_or_name.lower() == node.name.lower() and (
                not node.table or (isinstance(output, exp.Column) and output.table.lower() in ("", node.table.lower()))
            ):
                return output.alias_or_name
        if not isinstance(tree, exp.Select) or (tree.is_star and not node.table):
            return node.name
    for output in selects:
        if isinstance(output, exp.Alias) and output.this == node:
            return output.alias
    if not isinstance(tree, exp.Select) or tree.args.get("distinct"):
        raise refuse(query, node, "ORDER BY what is not in the select list; add it there")
    hidden.append(exp.alias_(node.copy(), f"__order{len(hidden)}"))
    return f"__order{len(hidden) - 1}"


def _count(query: Query, tree: exp.Expr, clause: str) -> int:
    node = tree.args[clause]
    value = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
    options = node.args.get("limit_options")
    plain = options is None or not any(options.args.get(name) for name in ("percent", "with_ties"))
    if not isinstance(value, exp.Literal) or not value.name.isdigit() or not plain:
        raise refuse(query, tree, f"{clause.upper()} takes a whole number: LIMIT 10 OFFSET 20")
    return int(value.name)


def _with(query: Query, tree: exp.Expr, relations: Relations, named: dict[str, Plan]) -> dict[str, Plan]:
    """The plans of WITH, and those that there were."""
    clause = tree.args.get("with_")
    if clause is None:
        return named
    if clause.args.get("recursive"):
        raise refuse(query, tree, "WITH RECURSIVE has no incremental plan; run it as a query over the views")
    named = dict(named)
    for table in clause.expressions:
        plan, names = _plan(query, table.this, relations, named), column_aliases(table)
        if names:
            plan = FromClause(query, relations, named, _plan).called(table, plan, output_names(plan), names)
        named[table.alias.lower()] = plan
    return named


def _set_operation(query: Query, tree: exp.SetOperation, relations: Relations, named: dict[str, Plan]) -> Plan:
    """UNION ALL; UNION, INTERSECT and EXCEPT as groups of equal rows. The first SELECT names the columns."""
    if tree.args.get("offset"):
        raise refuse(query, tree, _REFUSED_CLAUSES["offset"])
    if tree.args.get("order"):
        tree, _ = _without_order(query, tree)
    word = tree.key.upper()
    if word != "UNION" and not tree.args.get("distinct"):
        raise refuse(query, tree, f"{word} ALL has no incremental plan; write {word}, whose rows are distinct")
    branches: list[Plan] = []
    for side in (tree.this, tree.expression):
        plan = _plan(query, side, relations, named)
        branches += plan.inputs if isinstance(plan, UnionAll) and word == "UNION" else [plan]
    columns = [output_names(branch) for branch in branches]
    first = columns[0]
    if first is None or any(names is None for names in columns):
        raise refuse(query, tree, f"{word} of inputs whose columns are not known; name them instead of *")
    if any(len(names or ()) != len(first) for names in columns):
        counts = ", ".join(str(len(names or ())) for names in columns)
        raise refuse(query, tree, f"the SELECTs of {word} have {counts} columns; give each the same number")
    outputs = tuple(Named(_name(name), name) for name in first)
    if word != "UNION":
        tagged = tuple(
            Project(branch, (*map(_renamed, names or (), first), Named(str(place), "__right")))
            for place, (branch, names) in enumerate(zip(branches, columns, strict=True))
        )
        calls = (Call("min", "__right", "__least"), Call("max", "__right", "__most"))
        having = "__least = 0 AND __most = 1" if word == "INTERSECT" else "__most = 0"
        return Aggregate(UnionAll(tagged), outputs, calls, outputs, having=having)
    renamed = tuple(
        branch if names == first else Project(branch, tuple(map(_renamed, names or (), first)))
        for branch, names in zip(branches, columns, strict=True)
    )
    if not tree.args.get("distinct"):
        return UnionAll(renamed)
    return Aggregate(UnionAll(renamed), outputs, (Call("count", None, "__rows"),), outputs)


def _renamed(old: str, new: str) -> Named:
    return Named(_name(old), new)


_Q = TypeVar("_Q", bound=exp.Query)


def _without_order(query: Query, tree: _Q) -> tuple[_Q, list[exp.Expr]]:
    """Rows of a view are in no order, so ORDER BY without LIMIT says nothing of them; but what it names has to be there, as anywhere:
    what is not among the outputs is returned, to be looked up."""
    hidden: list[exp.Expr] = []
    for item in tree.args["order"].expressions:
        _ordered_by(query, tree, item.this if isinstance(item, exp.Ordered) else item, hidden)
    tree = tree.copy()
    tree.set("order", None)
    return tree, [each.this for each in hidden]


Below: TypeAlias = Callable[[], Plan]
"""The plan of FROM, with the columns that were asked for until it is called: last of all."""


class _Select:
    """One SELECT, resolved over its input."""

    def __init__(
        self,
        tree: exp.Select,
        scope: Scope,
        outputs: list[tuple[exp.Expr, str]],
        condition: exp.Expr | None,
        session: tuple[exp.Expr, int] | None = None,
    ) -> None:
        """`session`: the time and the gap of GROUP BY SESSION(...)."""
        self.session = session
        self.tree = tree
        self.scope = scope
        self.outputs = outputs
        self.condition = None if condition is None else scope.sql(condition)

    def refuse(self, node: exp.Expr, message: str) -> PlanRefusedError:
        return refuse(self.scope.query, node, message)


def _above(select: _Select, below: Below) -> Plan:
    tree, scope = select.tree, select.scope
    windows: list[exp.Expr] = [node for output, _ in select.outputs for node in output.find_all(exp.Window)]
    having = tree.args.get("having")
    group = tree.args.get("group")
    aggregated = (
        select.session is not None
        or group is not None
        or having is not None
        or any(_calls(output) for output, _ in select.outputs)
    )
    distinct = tree.args.get("distinct")
    if distinct is not None and (aggregated or windows):
        raise select.refuse(
            tree, "DISTINCT together with GROUP BY or OVER; create a view without DISTINCT and one over it"
        )
    if windows:
        if aggregated:
            raise select.refuse(
                windows[0], "OVER together with GROUP BY; create a view with the groups and one over it"
            )
        return _over(select, windows, below)
    if aggregated:
        return _aggregate(select, group, having, below)
    outputs = scope.outputs(select.outputs)
    if distinct is None:
        return Project(below(), outputs, select.condition)
    if distinct.args.get("on"):
        order = tree.args.get("order")
        keys = tuple(scope.sql(scope.resolved(key)) for key in distinct.args["on"].expressions)
        ordered = _orders(scope, order.expressions if order is not None else [])
        return Dedup(below(), keys, tuple(item for item in ordered if item.sql not in keys), outputs, select.condition)
    if any(output.name == "*" for output in outputs):
        raise select.refuse(tree, "SELECT DISTINCT * of an input whose columns are not known; name the columns")
    rows = (Call("count", None, "__rows"),)
    return Aggregate(below(), outputs, rows, tuple(Named(_name(o.name), o.name) for o in outputs), select.condition)


def _calls(node: exp.Expr) -> list[exp.Expr]:
    return [found for found in node.find_all(exp.AggFunc) if found.find_ancestor(exp.Window) is None]


def _name(name: str) -> str:
    return exp.column(exp.to_identifier(name, quoted=not name.isidentifier())).sql("spark")


def _orders(scope: Scope, expressions: list[exp.Expr]) -> tuple[Order, ...]:
    found = []
    for item in expressions:
        ordered = item if isinstance(item, exp.Ordered) else exp.Ordered(this=item)
        sql = scope.sql(scope.resolved(ordered.this))
        found.append(Order(sql, bool(ordered.args.get("desc")), bool(ordered.args.get("nulls_first"))))
    return tuple(found)


def _group_keys(select: _Select, group: exp.Expr | None) -> list[tuple[exp.Expr, str]]:
    keys: list[tuple[exp.Expr, str]] = []
    if group is None:
        return keys
    if group.args.get("all"):
        raise select.refuse(group, "write out the columns of GROUP BY")
    by_name = {name.lower(): (node, name) for node, name in select.outputs}
    for number, item in enumerate(group.expressions):
        if isinstance(item, exp.Literal) and not item.is_string:
            position = int(item.name) if item.name.isdigit() else 0
            if not 1 <= position <= len(select.outputs):
                raise select.refuse(group, f"GROUP BY {item.name}: there are {len(select.outputs)} columns")
            keys.append(select.outputs[position - 1])
            continue
        alias = by_name.get(item.name.lower()) if isinstance(item, exp.Column) and not item.table else None
        if alias is not None and not _calls(alias[0]) and not select.scope.has(item.name):
            keys.append(alias)
            continue
        node = select.scope.resolved(item)
        same = [name for output, name in select.outputs if output == node]
        keys.append((node, same[0] if same else f"__key{number}"))
    return keys


def _aggregate(select: _Select, group: exp.Expr | None, having: exp.Expr | None, below: Below) -> Plan:
    scope = select.scope
    keys = _group_keys(select, group)
    resolved_having = None if having is None else scope.resolved(having.this)
    nodes = [output for output, _ in select.outputs] + ([] if resolved_having is None else [resolved_having])
    calls: dict[str, Call] = {}
    if select.session is not None or not all(_is_incremental(call) for node in nodes for call in _calls(node)):
        return _recompute(select, [node for node, _ in keys], below, [node for node, _ in keys], resolved_having)

    def lifted(node: exp.Expr) -> exp.Expr:
        for key, name in keys:
            if node == key:
                column = exp.column(exp.to_identifier(name, quoted=not name.isidentifier()))
                return of_kind(standing_for(column, node), scope.kind(node))
        inner = node.this if isinstance(node, exp.Filter) else node
        if isinstance(inner, exp.AggFunc):
            if len(_calls(inner)) > 1:
                raise select.refuse(
                    node, "an aggregate of an aggregate; create a view with the inner one and group it again"
                )
            text = scope.sql(node)
            call = calls.setdefault(text, _call(scope, node, f"__call{len(calls)}"))
            return of_kind(standing_for(exp.column(call.name), node), scope.kind(inner))
        if isinstance(node, exp.Column):
            raise select.refuse(
                node, f"{node.name} is neither in GROUP BY nor within an aggregate; add it to GROUP BY or take max()"
            )
        return node

    lifts = [(node.copy().transform(lifted), name) for node, name in select.outputs]
    outputs = tuple(Named(scope.sql(node), name, scope.kind(node)) for node, name in lifts)
    kept = None if resolved_having is None else scope.sql(resolved_having.copy().transform(lifted))
    named_keys = tuple(Named(scope.sql(node), name) for node, name in keys)
    return Aggregate(below(), named_keys, tuple(calls.values()), outputs, select.condition, kept)


def _is_incremental(call: exp.Expr) -> bool:
    if type(call) not in _ONE_ROW_CALLS or call.args.get("expressions") or call.find(exp.Order):
        return False
    if isinstance(call.this, exp.Distinct):
        return isinstance(call, exp.Count) and len(call.this.expressions) == 1
    return True


def _call(scope: Scope, node: exp.Expr, name: str) -> Call:
    condition = None
    if isinstance(node, exp.Filter):
        condition = scope.sql(node.expression.this)
        node = node.this
    function = _ONE_ROW_CALLS[type(node)]
    if isinstance(node.this, exp.Distinct):
        return Call("count_distinct", scope.sql(node.this.expressions[0]), name, condition)
    argument = None if isinstance(node.this, exp.Star) or node.this is None else scope.sql(node.this)
    return Call(function, argument, name, condition)


def _over(select: _Select, windows: list[exp.Expr], below: Below) -> Plan:
    partitions = [tuple(window.args.get("partition_by") or ()) for window in windows]
    if not partitions[0]:
        raise select.refuse(
            windows[0], "OVER without PARTITION BY would recompute every row each epoch; add PARTITION BY key"
        )
    if any(set(partition) != set(partitions[0]) for partition in partitions):
        raise select.refuse(windows[0], "the windows have different PARTITION BY; create a view for each")
    return _recompute(select, list(partitions[0]), below, [], None)


def _recompute(
    select: _Select, keys: list[exp.Expr], below: Below, group: list[exp.Expr], having: exp.Expr | None
) -> Recompute:
    scope = select.scope
    if not keys:
        raise select.refuse(
            select.tree,
            "this aggregate over all rows would be recomputed each epoch; add GROUP BY, or use count, sum, avg, min, max",
        )
    session = None
    if select.session is not None:
        time, gap_us = select.session
        session = (scope.sql(scope.resolved(time)), gap_us)
    return Recompute(
        below(),
        tuple(scope.sql(key) for key in keys),
        scope.outputs(select.outputs),
        select.condition,
        bool(group),
        None if having is None else scope.sql(having),
        session,
    )


def _top_n(query: Query, tree: exp.Select, relations: Relations, named: dict[str, Plan]) -> Plan | None:
    """`SELECT ... FROM (SELECT ..., row_number() OVER (PARTITION BY ... ORDER BY ...) AS rn FROM ...) WHERE rn <= n`."""
    clause = tree.args.get("from_")
    inner = None if clause is None else clause.this
    where = tree.args.get("where")
    if (
        not isinstance(inner, exp.Subquery)
        or not isinstance(inner.this, exp.Select)
        or where is None
        or tree.args.get("joins")
    ):
        return None
    ranks = [e for e in inner.this.expressions if isinstance(e, exp.Alias) and isinstance(e.this, exp.Window)]
    if len(ranks) != 1 or not isinstance(ranks[0].this.this, exp.RowNumber):
        return None
    rank, window = ranks[0].alias, ranks[0].this
    conditions = terms_of(where.this)
    filters = [term for term in conditions if _limit(term, rank) is not None]
    if not filters:
        return None  # the numbers of the groups that change are computed anew
    plain = not tree.args.get("group") and all(isinstance(e, exp.Column | exp.Star) for e in tree.expressions)
    if len(conditions) > 1 or not plain:
        return _over_top_n(query, tree, filters[0], relations, named)
    limit = _limit(filters[0], rank)
    assert limit is not None
    if any(inner.this.args.get(name) for name in ("group", "having", "distinct", "limit", "order")):
        raise refuse(query, tree, "row_number() over groups; create a view with the groups and one over it")
    if not window.args.get("partition_by") or not window.args.get("order"):
        raise refuse(
            query, tree, "a top-n is per group and has an order; write OVER (PARTITION BY key ORDER BY value DESC)"
        )
    clauses = FromClause(query, relations, named, _plan)
    source = without_subqueries(query, inner.this, clauses.columns_of)
    scope, below = clauses.read(source)
    kept = [e for e in source.expressions if not (isinstance(e, exp.Alias) and e.alias == rank)]
    columns = scope.named(kept)
    condition = _condition(source, scope, clauses)
    resolved = None if condition is None else scope.sql(condition)
    keys = tuple(scope.sql(scope.resolved(key)) for key in window.args["partition_by"])
    order = _orders(scope, window.args["order"].expressions)
    wanted = {e.alias_or_name.lower() for e in tree.expressions}
    star = any(isinstance(e, exp.Star) for e in tree.expressions)
    known = {name.lower() for _, name in columns}
    if "*" not in known:
        for expression in tree.expressions:
            if isinstance(expression, exp.Column) and expression.name.lower() not in {*known, rank.lower()}:
                raise refuse(query, expression, f"the inner SELECT has no column {expression.name}")
    shown = [(node, name) for node, name in columns if star or name == "*" or name.lower() in wanted]
    outputs = scope.outputs(shown)
    ranked = rank if star or rank.lower() in wanted else None
    if limit == 1 and ranked is None:
        found: TopN | Dedup = Dedup(below(), keys, order, outputs, resolved)
    else:
        found = TopN(below(), keys, order, limit, outputs, ranked, resolved)
    if "*" in known:
        return found
    inside = scope.expanded(list(source.expressions))
    return _in_order(found, _chosen(query, tree, [e.alias_or_name for e in inside]))


def _over_top_n(query: Query, tree: exp.Select, ranked: exp.Expr, relations: Relations, named: dict[str, Plan]) -> Plan:
    """A SELECT that does more than to name the columns of a top-n: the top-n first."""
    inner = tree.args["from_"].this
    outer = tree.copy()
    first = exp.select("*").from_(inner.copy()).where(ranked.copy())
    outer.set("from_", exp.From(this=first.subquery(inner.alias or "ranked")))
    rest = [term.copy() for term in terms_of(tree.args["where"].this) if term is not ranked]
    outer.set("where", exp.Where(this=exp.and_(*rest, copy=False)) if rest else None)
    outer.set("with_", None)
    return _plan(query, outer, relations, named)


def _chosen(query: Query, tree: exp.Select, inside: list[str]) -> list[str]:
    """The names that the outer SELECT shows, in its order."""
    names: list[str] = []
    for expression in tree.expressions:
        if isinstance(expression, exp.Star):
            names += inside
        else:
            names += [name for name in inside if name.lower() == expression.name.lower()]
    if len({name.lower() for name in names}) < len(names):
        raise refuse(query, tree, "a column is there twice; name each once")
    return names


def _in_order(found: TopN | Dedup, names: list[str]) -> Plan:
    given = [output.name for output in found.outputs]
    given += [found.rank] if isinstance(found, TopN) and found.rank is not None else []
    return found if names == given else Project(found, tuple(Named(_name(name), name) for name in names))


def _limit(condition: exp.Expr, rank: str) -> int | None:
    if not isinstance(condition, exp.LTE | exp.LT | exp.EQ) or condition.this.name.lower() != rank.lower():
        return None
    value = condition.expression
    if not isinstance(value, exp.Literal) or not value.name.isdigit():
        return None
    number = int(value.name) - isinstance(condition, exp.LT)
    return number if number >= 1 and (number == 1 or not isinstance(condition, exp.EQ)) else None
