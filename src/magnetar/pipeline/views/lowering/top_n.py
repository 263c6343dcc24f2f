"""The first rows of each group: all kept where rows can go again, else only those that are first."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.pipeline.operators.operator import INPUT, Operator
from magnetar.pipeline.operators.top_n import AppendOnlyTopN, Order, top_n
from magnetar.pipeline.operators.upsert import Deduplicate
from magnetar.pipeline.sql import plan
from magnetar.pipeline.sql.plan import Dedup, Named, TopN
from magnetar.pipeline.views.lowering.changes import Changes
from magnetar.pipeline.views.lowering.context import Lowering
from magnetar.pipeline.views.lowering.stages import quoted


def lower_top_n(lowering: Lowering, node: TopN) -> Changes:
    """The first `limit` rows of each partition, with their number where it is wanted."""
    return _first_rows(lowering, node, node.partition_by, node.limit, node.rank)


def lower_dedup(lowering: Lowering, node: Dedup) -> Changes:
    """The first row of each key: the one that came first where no order is given."""
    below = lowering.changes(node.input)
    if node.order_by or not below.append_only:
        return _first_rows(lowering, node, node.keys, 1, None)
    outputs = below.expanded(node.outputs)
    selected = list(outputs)
    keys = _named(below, selected, node.keys, "__part")
    with_key, row_key = below.with_key(selected, "_row_")
    rows = lowering.select(below, node.condition, with_key, row_key)
    stage_id = lowering.stage_id("first-row")
    (table_id,) = lowering.ids.of_stage(stage_id, 1)
    with lowering.refusing():
        operator = Deduplicate(table_id, stage_id, rows.schema, keys, lowering.vnode_count)
    found = lowering.stage(stage_id, {INPUT: (rows, keys)}, operator, append_only=True, ordered_by=row_key)
    return lowering.project(found, [Named(quoted(output.name), output.name) for output in outputs])


def _first_rows(
    lowering: Lowering, node: TopN | Dedup, partition_by: Sequence[str], limit: int, rank: str | None
) -> Changes:
    below = lowering.changes(node.input)
    outputs = below.expanded(node.outputs)
    selected = list(outputs)
    group = _named(below, selected, partition_by, "__part")
    order = _orders(below, selected, node.order_by)
    with_key, row_key = below.with_key(selected, "_row_")
    rows = lowering.select(below, node.condition, with_key, row_key)
    stage_id = lowering.stage_id("top-n")
    (table_id,) = lowering.ids.of_stage(stage_id, 1)
    offset = node.offset if isinstance(node, TopN) else 0
    with lowering.refusing():
        operator: Operator
        if below.append_only and not offset:
            operator = AppendOnlyTopN(
                table_id,
                stage_id,
                rows.schema,
                group,
                order,
                limit,
                row_key=row_key,
                rank=rank,
                vnode_count=lowering.vnode_count,
            )
        else:
            operator = top_n(
                table_id,
                stage_id,
                rows.schema,
                group,
                order,
                limit,
                row_key=row_key,
                offset=offset,
                rank=rank,
                vnode_count=lowering.vnode_count,
            )
    found = lowering.stage(stage_id, {INPUT: (rows, group)}, operator, append_only=False)
    shown = [*(output.name for output in outputs), *([] if rank is None else [rank])]
    return lowering.project(found, [Named(quoted(name), name) for name in shown])


def _orders(below: Changes, selected: list[Named], order_by: Sequence[plan.Order]) -> list[Order]:
    names = _named(below, selected, [by.sql for by in order_by], "__order")
    return [Order(name, by.descending, by.nulls_first) for name, by in zip(names, order_by, strict=True)]


def _named(below: Changes, selected: list[Named], sqls: Sequence[str], prefix: str) -> tuple[str, ...]:
    """The names of these expressions among the selected, to which those are added that are not there."""
    names = []
    for number, sql in enumerate(sqls):
        column = below.column(sql)
        for output in selected:
            if output.sql == sql or (column is not None and below.column(output.sql) == column):
                names.append(output.name)
                break
        else:
            selected.append(Named(sql, f"{prefix}{number}"))
            names.append(f"{prefix}{number}")
    return tuple(names)
