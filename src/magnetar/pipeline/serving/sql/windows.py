"""TUMBLE and HOP in FROM, as queries of DuckDB. A decision core.

Windows begin at multiples of their slide since 1970-01-01 00:00, as those of views do; a row whose time is NULL is in none.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp, parse_one

from magnetar.pipeline.serving.sql.result_names import Node
from magnetar.pipeline.sql.intervals import interval_us

_USAGES: Final = {
    "tumble": (3, "TUMBLE(t, ts, INTERVAL '10 minutes')"),
    "hop": (4, "HOP(t, ts, INTERVAL '1 minute', INTERVAL '1 hour')"),
}
_NUMBER: Final = "_window_number"

WINDOWS_MAX: Final = 10_000
"""In which a row may be; more are refused, since each of them is a row of the result."""


class WindowError(Exception):
    """A window that cannot be: what is wrong and what to write."""


def with_windows(tree: Node) -> str:
    """Puts a query in the place of each TUMBLE and HOP in FROM. Why one cannot be, else nothing."""
    for table in list(tree.find_all(exp.Table)):
        call = table.this
        if isinstance(call, exp.Anonymous) and call.name.lower() in _USAGES:
            try:
                table.replace(_windowed(table, call))
            except WindowError as error:
                return str(error)
    return ""


def _windowed(table: exp.Table, call: exp.Anonymous) -> Node:
    count, usage = _USAGES[call.name.lower()]
    given = call.expressions
    if len(given) != count or not isinstance(given[0], exp.Column | exp.Subquery):
        raise WindowError(f"{call.name} is not understood; write {usage}")
    lengths = [_length_us(each, usage) for each in given[2:]]
    slide, size = lengths[0], lengths[-1]
    if not 0 < slide <= size or -(-size // slide) > WINDOWS_MAX:
        raise WindowError(
            f"slide and size are positive, the slide is not longer than the size, and a row is in {WINDOWS_MAX} windows at most; "
            f"write {usage}"
        )
    source, time = given[0], given[1].sql("duckdb")
    label = table.alias or source.alias_or_name or "windowed"
    behind = f"((epoch_us({time}) % {slide} + {slide}) % {slide} + {_NUMBER} * {slide})"
    start = f"{time} - to_microseconds({behind})"
    query = parse_one(
        f"SELECT _given.*, {start} AS window_start, {start} + to_microseconds({size}) AS window_end "
        f"FROM _given, range({-(-size // slide)}) AS _windows({_NUMBER}) WHERE {behind} < {size}",
        read="duckdb",
    )
    named = exp.to_identifier(source.alias_or_name or "_given", quoted=True)
    place = source.copy() if isinstance(source, exp.Subquery) else exp.Table(this=source.this.copy())
    place.set("alias", exp.TableAlias(this=named))
    for star in list(query.find_all(exp.Column)):
        if star.table == "_given":
            star.set("table", named.copy())
    next(each for each in query.find_all(exp.Table) if each.name == "_given").replace(place)
    alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(label, quoted=True))
    placed = exp.Subquery(this=query, alias=alias)
    if table.args.get("joins"):
        placed.set("joins", table.args["joins"])
    return placed


def _length_us(node: Node, usage: str) -> int:
    if isinstance(node, exp.Cast):  # '1 hour'::interval
        node = exp.Interval(this=node.this)
    if not isinstance(node, exp.Interval) or not isinstance(node.this, exp.Literal):
        raise WindowError(f"a window's length is an INTERVAL of fixed length; write {usage}")
    unit = node.args.get("unit")
    try:
        return interval_us(node.this.name, None if unit is None else unit.name)
    except ValueError as error:
        raise WindowError(f"{error}; write {usage}") from None
