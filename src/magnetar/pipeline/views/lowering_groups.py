"""What has no incremental rule: the rows of a group in one stage, Spark SQL over the groups that changed, their results in the next."""

from __future__ import annotations

from collections.abc import Iterable

import sqlglot
from sqlglot import exp

from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.operators.whole_groups import ReplaceGroups, TouchedGroups
from magnetar.pipeline.sql.plan import EPOCH_TIMESTAMP, RECOMPUTE_INPUT, Named, Recompute
from magnetar.pipeline.views.changes import Changes
from magnetar.pipeline.views.lowering_context import Lowering
from magnetar.pipeline.views.stages import OverGroups, quoted


def lower_recompute(lowering: Lowering, node: Recompute) -> Changes:
    """The changelog of GROUP BY with any aggregate function, and of OVER (PARTITION BY ...)."""
    below = lowering.changes(node.input)
    outputs = below.expanded(node.outputs)
    if any(EPOCH_TIMESTAMP in output.sql for output in outputs):
        raise lowering.refuse(
            "now() together with OVER or with aggregates that are recomputed; select now() in a view that this one reads"
        )
    rows, row_key = _rows(lowering, below, node, outputs)
    results = list(outputs)
    group = tuple(_result(below, results, sql, f"_group{place}") for place, sql in enumerate(node.keys))
    key = group if node.grouped else tuple(_result(below, results, quoted(column), column) for column in row_key)
    kept = _group_names(node)
    sql = f"SELECT {', '.join(f'{output.sql} AS {quoted(output.name)}' for output in results)} FROM {RECOMPUTE_INPUT}"
    sql += f" GROUP BY {', '.join(node.keys)}" if node.grouped else ""
    sql += f" HAVING {node.having}" if node.having is not None else ""
    stage_id = lowering.stage_id("groups")
    (table_id,) = lowering.ids.of_stage(stage_id, 1)
    with lowering.refusing():
        touched = TouchedGroups(table_id, stage_id, rows.schema, kept, row_key, lowering.vnode_count)
    found = lowering.stage(stage_id, {INPUT: (rows, kept)}, touched, append_only=False)
    steps = (OverGroups(sql, tuple(zip(kept, group, strict=True))),)
    recomputed = found.after(steps, lowering.after(found.schema, steps))
    stage_id = lowering.stage_id("results")
    (table_id,) = lowering.ids.of_stage(stage_id, 1)
    with lowering.refusing():
        replace = ReplaceGroups(table_id, stage_id, recomputed.schema, group, key, lowering.vnode_count)
    stored = lowering.stage(stage_id, {INPUT: (recomputed, group)}, replace, append_only=False)
    return lowering.project(stored, [Named(quoted(output.name), output.name) for output in outputs])


def _group_names(node: Recompute) -> tuple[str, ...]:
    return tuple(f"__group{place}" for place in range(len(node.keys)))


def _rows(
    lowering: Lowering, below: Changes, node: Recompute, outputs: tuple[Named, ...]
) -> tuple[Changes, tuple[str, ...]]:
    """The rows that are kept: the group, the columns that the outputs read, and the key."""
    texts = [*(output.sql for output in outputs), *node.keys, *([node.having] if node.having else [])]
    used = _columns(below, texts)
    group = [Named(sql, name) for sql, name in zip(node.keys, _group_names(node), strict=True)]
    selected = [*group, *(Named(quoted(column), column) for column in used)]
    with_key, _ = below.with_key(selected[len(group) :], "_row_")
    row_key = below.with_key(selected[len(group) :], "_row_")[1]
    rows = lowering.select(below, node.condition, [*group, *with_key], row_key)
    return rows, row_key


def _columns(below: Changes, texts: Iterable[str]) -> list[str]:
    """The input's columns that these Spark SQL expressions name, in the input's order."""
    named = {
        column.name.lower()
        for text in texts
        for column in sqlglot.parse_one(f"SELECT {text}", read="spark").find_all(exp.Column)
    }
    return [name for name in below.schema.names if name.lower() in named]


def _result(below: Changes, results: list[Named], sql: str, name: str) -> str:
    """The name of this expression among the results, to which it is added when it is not there."""
    column = below.column(sql)
    for output in results:
        if output.sql == sql or (column is not None and below.column(output.sql) == column):
            return output.name
    name = name if name.startswith("_") else f"_key_{name}"
    results.append(Named(sql, name))
    return name
