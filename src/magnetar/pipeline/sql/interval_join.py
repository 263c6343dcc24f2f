"""How far apart the times of two joined rows may be, as the conditions of the query say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlglot import exp

from magnetar.pipeline.sql.intervals import interval_us


@dataclass(frozen=True, slots=True)
class Bounds:
    """`low_us <= left - right <= high_us`, of two columns; None: no bound."""

    left: exp.Column
    right: exp.Column
    low_us: int | None = None
    high_us: int | None = None


def bounds(
    terms: Iterable[exp.Expr], is_left: Callable[[exp.Expr], bool], is_right: Callable[[exp.Expr], bool]
) -> Bounds | None:
    """Of the first pair of columns that these conditions, all of which have to hold, compare with each other. `<` counts as `<=`."""
    found: Bounds | None = None
    for low, high in _orders(terms):  # low <= high
        one, other = _time(low), _time(high)
        if one is None or other is None:
            continue
        (a, da), (b, db) = one, other
        if is_left(a) and is_right(b):  # left + da <= right + db
            found = _closer(found, Bounds(a, b, high_us=db - da))
        elif is_right(a) and is_left(b):  # right + da <= left + db
            found = _closer(found, Bounds(b, a, low_us=da - db))
    return found


def _orders(terms: Iterable[exp.Expr]) -> Iterable[tuple[exp.Expr, exp.Expr]]:
    for term in terms:
        if isinstance(term, exp.Between):
            yield term.args["low"], term.this
            yield term.this, term.args["high"]
        elif isinstance(term, exp.LTE | exp.LT):
            yield term.this, term.expression
        elif isinstance(term, exp.GTE | exp.GT):
            yield term.expression, term.this


def _time(node: exp.Expr) -> tuple[exp.Column, int] | None:
    """A column, and the microseconds that are added to it."""
    inner = node.unnest()
    if isinstance(inner, exp.Column):
        return inner, 0
    if not isinstance(inner, exp.Add | exp.Sub):
        return None
    interval, below = inner.expression.unnest(), _time(inner.this)
    if below is None or not isinstance(interval, exp.Interval) or not isinstance(interval.this, exp.Literal):
        return None
    try:
        length = interval_us(interval.this.name, interval.unit.name if interval.unit is not None else None)
    except ValueError:  # a month, say, has no fixed length
        return None
    return below[0], below[1] + (length if isinstance(inner, exp.Add) else -length)


def _closer(found: Bounds | None, more: Bounds) -> Bounds | None:
    if found is None:
        return more
    if (found.left, found.right) != (more.left, more.right):
        return found
    lows = [each for each in (found.low_us, more.low_us) if each is not None]
    highs = [each for each in (found.high_us, more.high_us) if each is not None]
    return Bounds(found.left, found.right, max(lows) if lows else None, min(highs) if highs else None)
