"""GROUP BY: arguments and conditions are computed before, HAVING and outputs behind."""

from __future__ import annotations

from magnetar.pipeline.operators.aggregate import MergedAggregate, aggregate
from magnetar.pipeline.operators.aggregate_calls import Call
from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.operators.single_row import SingleRow
from magnetar.pipeline.operators.window import WindowAggregate
from magnetar.pipeline.sql.plan import Aggregate, Named
from magnetar.pipeline.views.changes import Changes
from magnetar.pipeline.views.lowering_context import Lowering
from magnetar.pipeline.views.stages import quoted

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
            )
    watermarks = below.windows.sources if below.windows is not None and end is not None else frozenset[str]()
    partials = None
    if isinstance(operator, MergedAggregate):
        partials = tuple(Named(sql, name) for name, sql in operator.spark_partials())
    if not group:
        (own,) = lowering.ids.of_stage(f"{stage_id}-row", 1)
        counts = [call.name for call in calls if call.function.startswith("count")]
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
        sql = f"CASE WHEN {condition} THEN {'1' if sql is None else f'({sql})'} END"
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
