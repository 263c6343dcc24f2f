"""Joins: both sides get their join columns and their keys, then one stage looks at both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from magnetar.pipeline.operators.interval_join import IntervalJoin
from magnetar.pipeline.operators.join import Join as JoinOperator
from magnetar.pipeline.operators.operator import INPUT, LEFT, RIGHT, Operator
from magnetar.pipeline.operators.temporal_join import TemporalJoin
from magnetar.pipeline.operators.top_n import AppendOnlyTopN, Order, top_n
from magnetar.pipeline.sql.plan import Join, Named
from magnetar.pipeline.views.lowering.changes import Changes
from magnetar.pipeline.views.lowering.context import Lowering
from magnetar.pipeline.views.lowering.stages import Select, quoted

_THERE: Final = "_right_there"
"""True in every right row: what tells a match whose key is NULL from no match."""
_LEFT_THERE: Final = "_left_there"
"""The same in every left row of a full join."""
_LEFT_NEAR: Final = "_left_near"
_RIGHT_NEAR: Final = "_right_near"
"""What an ASOF join orders by."""
_NEAREST: Final = "_nearest"
"""The right side's, where the two stand in the order."""


def lower_join(lowering: Lowering, node: Join) -> Changes:
    """The changelog of a join, with the columns that the query asks for and a key of both sides' keys."""
    left, right = lowering.changes(node.left), lowering.changes(node.right)
    on = tuple(f"_on{number}" for number in range(len(node.keys)))
    casts = [_common(lowering, left, right, *pair) for pair in node.keys]
    left_on = [Named(_cast(sql, cast), name) for (sql, _), cast, name in zip(node.keys, casts, on, strict=True)]
    right_on = [Named(_cast(sql, cast), name) for (_, sql), cast, name in zip(node.keys, casts, on, strict=True)]
    if node.temporal:
        found = _temporal(lowering, node, (left, right), (left_on, right_on))
    else:
        found = _joined(lowering, node, (left, right), (left_on, right_on))
    # what is the join column itself was not sent twice
    by_sql = {} if node.side == "full" else {named.sql: named.name for named in left_on}
    outputs = [Named(quoted(by_sql.get(column.sql, column.name)), column.name) for column in node.left_columns]
    by_sql = {} if node.side != "inner" else {named.sql: named.name for named in right_on}
    outputs += [Named(quoted(by_sql.get(column.sql, column.name)), column.name) for column in node.right_columns]
    return lowering.project(found, outputs)


def _joined(
    lowering: Lowering, node: Join, sides: tuple[Changes, Changes], on: tuple[list[Named], list[Named]]
) -> Changes:
    left, right = sides
    outer, full = node.side != "inner", node.side == "full"
    marks = [Named("true", _LEFT_THERE)] if full else []
    near = () if node.asof is None else (Named(node.asof[0], _LEFT_NEAR), Named(node.asof[2], _RIGHT_NEAR))
    left_rows = _rows(lowering, left, on[0], node.left_columns, "_left_", keep=full, extra=[*marks, *near[:1]])
    left_key = (*left_rows.key, *(named.name for named in marks))
    extra = [Named("true", _THERE)] if outer else []
    right_rows = _rows(lowering, right, on[1], node.right_columns, "_right_", keep=outer, extra=[*extra, *near[1:]])
    right_key = (*right_rows.key, *(named.name for named in extra))
    names = tuple(named.name for named in on[0])
    stage_id = lowering.stage_id("join")
    left_id, right_id = lowering.ids.of_stage(stage_id, 2)
    with lowering.refusing():
        operator = JoinOperator(
            (left_id, right_id),
            stage_id,
            left_rows.schema,
            right_rows.schema,
            names,
            left_key,
            right_key,
            how=node.side,
            vnode_count=lowering.vnode_count,
        )
    append_only = left.append_only and right.append_only and not outer
    sources = _closing(node, left_rows, right_rows) if append_only else frozenset[str]()
    kept: Operator = operator
    if sources and node.interval is not None:
        one, other, low_us, high_us = node.interval
        kept = IntervalJoin(operator, (one, other), low_us, high_us, fails_late=lowering.late_rows == "fail")
    found = lowering.stage(
        stage_id,
        {LEFT: (left_rows, names), RIGHT: (right_rows, names)},
        kept,
        append_only=append_only,
        watermarks=tuple(sources),
    )
    if node.asof is None:
        return found
    width = len(operator.state_tables()[0].key)
    if not outer:
        return _nearest(lowering, found, node.asof[1], width)
    return _nearest_or_none(lowering, found, node.asof[1], width, right_rows.schema.names)


def _nearest(lowering: Lowering, found: Changes, sign: str, left: int) -> Changes:
    """Of the matches of each left row the first behind it in the order. `left`: how many columns of the key tell left rows apart."""
    columns = [Named(quoted(name), name) for name in found.schema.names]
    rows = lowering.select(found, f"{_LEFT_NEAR} {sign} {_RIGHT_NEAR}", columns, found.key)
    order = Order(_RIGHT_NEAR, descending=sign.startswith(">"))
    return _first(lowering, rows, found.key, left, order, AppendOnlyTopN if found.append_only else top_n)


def _nearest_or_none(lowering: Lowering, found: Changes, sign: str, left: int, right: Sequence[str]) -> Changes:
    """The same of a left join: rows that do not stand in the order come behind all that do, and the last of them has no right side."""
    near = f"CASE WHEN {_LEFT_NEAR} {sign} {_RIGHT_NEAR} THEN {_RIGHT_NEAR} END"
    columns = [*(Named(quoted(name), name) for name in found.schema.names), Named(near, _NEAREST)]
    rows = lowering.select(found, None, columns, found.key)
    order = Order(_NEAREST, descending=sign.startswith(">"), nulls_first=False)
    best = _first(lowering, rows, found.key, left, order, top_n)
    outputs = [
        Named(
            quoted(name)
            if name not in right or name in best.key
            else f"CASE WHEN {_NEAREST} IS NOT NULL THEN {quoted(name)} END",
            name,
        )
        for name in found.schema.names
    ]
    return lowering.select(best, None, outputs, best.key)


def _first(
    lowering: Lowering, rows: Changes, key: Sequence[str], left: int, order: Order, kind: Callable[..., Operator]
) -> Changes:
    """The first of the rows of each left row. `key` tells the rows apart, its first `left` columns the left rows."""
    stage_id = lowering.stage_id("nearest")
    (table_id,) = lowering.ids.of_stage(stage_id, 1)
    with lowering.refusing():
        operator = kind(
            table_id, stage_id, rows.schema, key[:left], [order], 1, row_key=key, vnode_count=lowering.vnode_count
        )
    return lowering.stage(stage_id, {INPUT: (rows, key[:left])}, operator, append_only=False)


def _closing(node: Join, left: Changes, right: Changes) -> frozenset[str]:
    """The sources whose watermarks say when a row can match nothing any more; none where that is never said."""
    if node.interval is None:
        return frozenset()
    one, other, low_us, high_us = node.interval
    if one not in left.times or other not in right.times or (low_us is None and high_us is None):
        return frozenset()
    kinds = (left.schema.field(one).type, right.schema.field(other).type)
    if not all(pa.types.is_timestamp(kind) and kind.unit == "us" for kind in kinds):
        return frozenset()
    return left.times[one] | right.times[other]


def _temporal(
    lowering: Lowering, node: Join, sides: tuple[Changes, Changes], on: tuple[list[Named], list[Named]]
) -> Changes:
    left, right = sides
    if not left.append_only:
        raise lowering.refuse(
            "rows of the left side change, and FOR SYSTEM_TIME AS OF PROCTIME() never corrects what it looked up; leave it out"
        )
    looked_up = {right.column(named.sql) for named in on[1]}
    if right.append_only or looked_up != set(right.key):
        raise lowering.refuse(
            f"FOR SYSTEM_TIME AS OF PROCTIME() looks rows up by their key, which is "
            f"({', '.join(right.key) if not right.append_only else 'none'}); "
            "take a table with that PRIMARY KEY or a view grouped by it, or leave FOR SYSTEM_TIME out"
        )
    names = tuple(named.name for named in on[0])
    left_rows = _rows(lowering, left, on[0], node.left_columns, "_left_")
    right_rows = _rows(lowering, right, on[1], node.right_columns, "_right_", keep=node.side == "left")
    stage_id = lowering.stage_id("temporal-join")
    (table_id,) = lowering.ids.of_stage(stage_id, 1)
    with lowering.refusing():
        operator = TemporalJoin(
            table_id,
            stage_id,
            left_rows.schema,
            right_rows.schema,
            names,
            (*names, *(column for column in left_rows.key if column not in names)),
            how=node.side,
            vnode_count=lowering.vnode_count,
        )
    found = lowering.stage(stage_id, {LEFT: (left_rows, names), RIGHT: (right_rows, names)}, operator, append_only=True)
    # a row leaves in the epoch in which it came, so its time is as late as it was
    return found.after((), found.schema, times=left_rows.times)


def _rows(
    lowering: Lowering,
    side: Changes,
    on: Sequence[Named],
    columns: Sequence[Named],
    prefix: str,
    *,
    keep: bool = False,
    extra: Sequence[Named] = (),
) -> Changes:
    """`on`, the columns that are not `on` themselves (all with `keep`), and what the key needs."""
    once = {named.sql for named in on} if not keep else set()
    selected = [*on, *(column for column in columns if column.sql not in once), *extra]
    outputs, key = side.with_key(selected, prefix)
    return lowering.select(side, None, outputs, key)


def _cast(sql: str, kind: str | None) -> str:
    return sql if kind is None else f"CAST({sql} AS {kind})"


def _common(lowering: Lowering, left: Changes, right: Changes, left_sql: str, right_sql: str) -> str | None:
    """The Spark type that both sides are to be cast to; None when they have the same. A refusal when there is none."""
    kinds = [
        lowering.after(side.schema, [Select((Named(sql, "x"),))]).field(0).type
        for side, sql in ((left, left_sql), (right, right_sql))
    ]
    if kinds[0] == kinds[1]:
        return None
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) for kind in kinds):
        raise lowering.refuse(
            f"{left_sql} is {kinds[0]} and {right_sql} is {kinds[1]}; CAST one side to the other's type in ON"
        )
    both = pa.schema([pa.field("l", kinds[0]), pa.field("r", kinds[1])])
    common = lowering.after(both, [Select((Named("coalesce(l, r)", "x"),))]).field(0).type
    return lowering.spark_name(common)
