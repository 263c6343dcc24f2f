"""GROUP BY: arguments and conditions are computed before, HAVING and outputs behind."""

from __future__ import annotations

from collections.abc import Iterable

import sqlglot
from sqlglot import exp

from magnetar.pipeline.operators.aggregate import MergedAggregate, aggregate
from magnetar.pipeline.operators.aggregate_functions import FUNCTIONS, Call
from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.operators.single_row import SingleRow
from magnetar.pipeline.operators.whole_groups import ReplaceGroups, TouchedGroups
from magnetar.pipeline.operators.window import WindowAggregate
from magnetar.pipeline.sql.computed import where
from magnetar.pipeline.sql.plan import EPOCH_TIMESTAMP, RECOMPUTE_INPUT, Aggregate, Named, Recompute
from magnetar.pipeline.views.lowering.changes import Changes
from magnetar.pipeline.views.lowering.context import Lowering
from magnetar.pipeline.views.lowering.stages import OverGroups, quoted

_END = "_window_end"


def lower_aggregate(lowering: Lowering, node: Aggregate, *, on_close: bool = False) -> Changes:
    """The changelog of a GROUP BY. `on_close`: of its windows, each when it is closed."""
    below = lowering.changes(node.input)
    keys = tuple(below.expanded(node.keys))
    arguments: dict[str, str] = {}
    calls = [Call(call.function, _argument(call.argument, call.condition, arguments), call.name) for call in node.calls]
    keys, end = _with_window_end(below, keys)
    if on_close and end is None:
        raise lowering.refuse(
            "EMIT ON WINDOW CLOSE needs GROUP BY window_start or window_end of a TUMBLE or HOP over a time with a watermark; "
            "add WATERMARK FOR ts AS ts - INTERVAL '5 seconds' to the source, or leave EMIT ON WINDOW CLOSE out"
        )
    selected = [*keys, *(Named(sql, name) for sql, name in arguments.items())]
    with_key, row_key = below.with_key(selected, "_row_")
    rows = lowering.select(below, node.condition, with_key, row_key)
    group = tuple(key.name for key in keys)
    stage_id = lowering.stage_id("aggregate")
    (table_id,) = lowering.ids.of_stage(stage_id, 1)
    with lowering.refusing():
        operator = aggregate(
            table_id,
            stage_id,
            rows.schema,
            group,
            calls,
            append_only=below.append_only,
            row_key=row_key,
            vnode_count=lowering.vnode_count,
            vnode_hash=lowering.vnode_hash,
        )
        if isinstance(operator, MergedAggregate):
            rows = lowering.select(below, node.condition, selected, ())
            operator = aggregate(
                table_id,
                stage_id,
                rows.schema,
                group,
                calls,
                append_only=below.append_only,
                vnode_count=lowering.vnode_count,
                vnode_hash=lowering.vnode_hash,
            )
    watermarks = below.windows.sources if below.windows is not None and end is not None else frozenset[str]()
    partials = None
    if (
        isinstance(operator, MergedAggregate) and lowering.vnode_hash != "segment"
    ):  # Spark would send its results elsewhere
        partials = tuple(Named(sql, name) for name, sql in operator.spark_partials())
    if not group:
        (own,) = lowering.ids.of_stage(f"{stage_id}-row", 1)
        counts = [call.name for call in calls if FUNCTIONS[call.function].counts]
        single = SingleRow(operator, own, f"{stage_id}-row", counts, lowering.vnode_count)
        found = lowering.stage(stage_id, {INPUT: (rows, ())}, single, append_only=False, preaggregate=partials)
        return lowering.project(found, node.outputs, node.having)
    closing = (
        operator
        if end is None
        else WindowAggregate(operator, on_close=on_close, end=end, fails_late=lowering.late_rows == "fail")
    )
    found = lowering.stage(
        stage_id,
        {INPUT: (rows, group)},
        closing,
        append_only=on_close,
        watermarks=tuple(watermarks),
        preaggregate=partials,
        takes_rows=isinstance(operator, MergedAggregate) and operator.is_exact,
        windows=below.windows_of(keys),
    )
    return lowering.project(found, node.outputs, node.having)


def _argument(sql: str | None, condition: str | None, arguments: dict[str, str]) -> str | None:
    if condition is not None:
        sql = where(condition, "1" if sql is None else sql) if sql is not None else f"CASE WHEN {condition} THEN 1 END"
    return None if sql is None else arguments.setdefault(sql, f"__arg{len(arguments)}")


def _with_window_end(below: Changes, keys: tuple[Named, ...]) -> tuple[tuple[Named, ...], str | None]:
    """The keys, and that of them which is the window's end when windows are closed. The start alone says the same as both."""
    windows = below.windows
    if windows is None or not windows.sources:
        return keys, None
    named = {below.column(key.sql): key.name for key in keys}
    if windows.end is not None and windows.end in named:
        return keys, named[windows.end]
    if windows.start is not None and windows.start in named and windows.end is not None:
        return (*keys, Named(quoted(windows.end), _END)), _END
    return keys, None


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
    if node.session is not None:
        start = _result(below, results, "session_window.start", "_session")
        key: tuple[str, ...] = (*group, start)
    else:
        key = group if node.grouped else tuple(_result(below, results, quoted(column), column) for column in row_key)
    kept = _group_names(node)
    sql = f"SELECT {', '.join(f'{output.sql} AS {quoted(output.name)}' for output in results)} FROM {RECOMPUTE_INPUT}"
    session = [] if node.session is None else [f"session_window({node.session[0]}, '{node.session[1]} microseconds')"]
    sql += f" GROUP BY {', '.join([*node.keys, *session])}" if node.grouped else ""
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
    texts += [] if node.session is None else [node.session[0]]
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
