"""GROUP BY in the forms that are others written shorter: GROUPING SETS, ROLLUP and CUBE, and windows among the keys."""

from __future__ import annotations

from itertools import combinations, product
from typing import Final

from sqlglot import exp

from magnetar.pipeline.sql.intervals import interval_us
from magnetar.pipeline.sql.scope import SESSION, plain_name, refuse
from magnetar.pipeline.sql.statements import Query

_SETS_MAX: Final = 64


def grouping_sets(query: Query, tree: exp.Select) -> list[exp.Select] | None:
    """A SELECT for each grouping set; None where GROUP BY has none. What a set leaves out is NULL there."""
    group = tree.args.get("group")
    if group is None or not group.find(exp.GroupingSets, exp.Rollup, exp.Cube):
        return None
    factors = [_sets(tree, item) for item in _items(group)]
    sets = [[key for part in chosen for key in part] for chosen in product(*factors)]
    if len(sets) > _SETS_MAX:
        raise refuse(query, group, f"{len(sets)} grouping sets; at most {_SETS_MAX}: create a view for some of them")
    keys = list({key.sql(): key for each in sets for key in each}.values())
    return [_of_set(tree, keys, each) for each in sets]


def _items(group: exp.Expr) -> list[exp.Expr]:
    found = list(group.expressions)
    for name in ("grouping_sets", "rollup", "cube"):
        value = group.args.get(name)
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def _sets(tree: exp.Select, item: exp.Expr) -> list[list[exp.Expr]]:
    """The sets that one item of GROUP BY stands for."""
    if isinstance(item, exp.GroupingSets):
        return [each for inner in item.expressions for each in _sets(tree, inner)]
    parts = [_keys(tree, part) for part in item.expressions] if isinstance(item, exp.Rollup | exp.Cube) else []
    if isinstance(item, exp.Rollup):
        return [[key for part in parts[:count] for key in part] for count in range(len(parts), -1, -1)]
    if isinstance(item, exp.Cube):
        chosen = [c for count in range(len(parts), -1, -1) for c in combinations(parts, count)]
        return [[key for part in each for key in part] for each in chosen]
    return [_keys(tree, item)]


def _keys(tree: exp.Select, item: exp.Expr) -> list[exp.Expr]:
    """The expressions of `a`, `(a, b)` or `()`; a number or a name of the select list stands for what is written there."""
    if isinstance(item, exp.Tuple):
        return [key for inner in item.expressions for key in _keys(tree, inner)]
    inner = item.unnest()
    if isinstance(inner, exp.Tuple):
        return _keys(tree, inner)
    if isinstance(inner, exp.Literal) and inner.name.isdigit() and 1 <= int(inner.name) <= len(tree.expressions):
        return [tree.expressions[int(inner.name) - 1].unalias()]
    for output in tree.expressions:
        if (
            isinstance(output, exp.Alias)
            and isinstance(inner, exp.Column)
            and not inner.table
            and output.alias.lower() == inner.name.lower()
        ):
            return [output.this]
    return [inner]


def _of_set(tree: exp.Select, keys: list[exp.Expr], kept: list[exp.Expr]) -> exp.Select:
    texts = {key.sql() for key in kept}
    absent = {key.sql() for key in keys} - texts

    def without(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Grouping):
            bits = [each.sql() in absent for each in node.expressions]
            return exp.Literal.number(sum(bit << place for place, bit in enumerate(reversed(bits))))
        if isinstance(node, exp.AggFunc):
            return node
        if node.sql() in absent:
            return exp.null()
        for name, value in list(node.args.items()):
            if isinstance(value, exp.Expr):
                node.set(name, without(value))
            elif isinstance(value, list):
                node.set(name, [without(each) if isinstance(each, exp.Expr) else each for each in value])
        return node

    found = tree.copy()
    outputs: list[exp.Expr] = []
    for number, output in enumerate(found.expressions, 1):
        inner = output.unalias()
        outputs.append(
            exp.alias_(without(inner.copy()), output.alias_or_name or f"{plain_name(inner)}{number}", quoted=True)
        )
    found.set("expressions", outputs)
    if found.args.get("having") is not None:
        found.set("having", exp.Having(this=without(found.args["having"].this.copy())))
    unique = {key.sql(): key for key in kept}
    found.set("group", exp.Group(expressions=[key.copy() for key in unique.values()]) if kept else None)
    if not kept and not any(output.find(exp.AggFunc) for output in outputs) and found.args.get("having") is None:
        found.set("having", exp.Having(this=exp.Count(this=exp.Star()) >= 0))
    return found


def windows_in_group(query: Query, tree: exp.Select) -> tuple[exp.Select, tuple[exp.Expr, int] | None]:
    """`GROUP BY TUMBLE(ts, size)`, `TUMBLE_START` and `TUMBLE_END` as expressions; `GROUP BY SESSION(ts, gap)` as its time and gap in
    microseconds, with `SESSION_START` and `SESSION_END` as columns of SESSION."""
    group = tree.args.get("group")
    calls = [] if group is None else [item for item in group.expressions if _name(item) in ("TUMBLE", "SESSION", "HOP")]
    if not calls:
        return tree, None
    if _name(calls[0]) == "HOP" or len(calls) > 1:
        raise refuse(query, calls[0], "write FROM HOP(t, ts, slide, size) ... GROUP BY window_start, window_end")
    call, of_session = calls[0], _name(calls[0]) == "SESSION"
    usage = f"write {_name(call)}(ts, INTERVAL '10 seconds')"
    time, length = _arguments(query, call, usage)
    tree = tree.copy()

    def replaced(node: exp.Expr) -> exp.Expr:
        name = _name(node)
        if name not in (f"{_name(call)}_START", f"{_name(call)}_END", _name(call)):
            return node
        if _arguments(query, node, usage) != (time, length):
            raise refuse(query, node, f"{name} takes what stands in GROUP BY: {call.sql()}")
        if of_session:
            return exp.column("end" if name.endswith("_END") else "start", table=SESSION)
        start = exp.Anonymous(this="__tumble", expressions=[time.copy(), exp.Literal.number(length)])
        return start if not name.endswith("_END") else exp.Add(this=start, expression=call.expressions[1].copy())

    kept = [item for item in tree.args["group"].expressions if _name(item) != "SESSION"]
    tree.set("group", exp.Group(expressions=kept) if kept else None)
    for name in ("expressions", "group", "having"):
        value = tree.args.get(name)
        if isinstance(value, list):
            tree.set(name, [each.transform(replaced) for each in value])
        elif value is not None:
            tree.set(name, value.transform(replaced))
    return tree, (time, length) if of_session else None


def _name(node: exp.Expr) -> str:
    return node.name.upper() if isinstance(node, exp.Anonymous) else ""


def _arguments(query: Query, call: exp.Expr, usage: str) -> tuple[exp.Expr, int]:
    arguments = call.expressions
    interval = arguments[1] if len(arguments) == 2 else None
    if not isinstance(interval, exp.Interval) or not isinstance(interval.this, exp.Literal):
        raise refuse(query, call, usage)
    try:
        length = interval_us(interval.this.name, interval.unit.name if interval.unit is not None else None)
    except ValueError as error:
        raise refuse(query, call, str(error)) from None
    if length <= 0:
        raise refuse(query, call, usage)
    return arguments[0], length
