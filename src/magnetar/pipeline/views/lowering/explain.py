"""Plans for people: the stages of a view, what each keeps, and how rows get there."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.hashing.vnode import VnodeHash
from magnetar.pipeline.operators.materialize import Materialized
from magnetar.pipeline.sql.python_functions import shown
from magnetar.pipeline.views.lowering.stages import (
    AddElements,
    AddWindows,
    Feed,
    Filter,
    Late,
    Select,
    Stage,
    Step,
    ViewPlan,
)

_STEP_CHARACTERS = 100


def explain_view(plan: ViewPlan) -> list[str]:
    """One line for the view, one for each stage, and below it one for each feed (a shuffle) and each state table."""
    hidden = [name for name in plan.schema.names if name not in plan.columns]
    kind = "append-only" if plan.append_only else "changing"
    key = ", ".join(plan.key) or "one row"
    lines = [f"{plan.name} ({', '.join(plan.columns)}) key ({key}) {kind}"]
    if hidden:
        lines.append(f"  hidden: {', '.join(hidden)}")
    lines += [f"  watermark of {source}: {sql} - {delay_us} us" for source, sql, delay_us in plan.watermarks]
    for stage in plan.stages:
        lines += _stage(plan, stage)
    return lines


def _stage(plan: ViewPlan, stage: Stage) -> list[str]:
    operator = stage.operator
    names = [type(operator).__name__]
    if isinstance(operator, Materialized):
        names = [type(operator.inner).__name__, "stores the view"]
    if stage.preaggregate is not None:
        names.append("partial results by Spark")
    if stage.watermarks:
        names.append(f"windows closed by {', '.join(stage.watermarks)}")
    lines = [f"  stage {stage.stage_id}: {', '.join(names)}"]
    lines += [f"    {line}" for feed in stage.feeds for line in _feed(feed, stage.vnode_hash)]
    for table in operator.state_tables():
        what = "rows of the view" if table.table_id == plan.table.table_id else "state"
        lines.append(f"    {what}: ({', '.join(table.schema.names)}) by ({', '.join(table.key)})")
    return lines


def _feed(feed: Feed, vnode_hash: VnodeHash) -> Iterable[str]:
    place = f"vnode({', '.join(feed.place_by)})" if feed.place_by else "vnode 0"
    if vnode_hash == "segment":
        place += " by the hash of segments, read there without a shuffle"
    yield f"{feed.input} <- {feed.origin or 'one row, once'}, to {place}"
    for step in feed.steps:
        yield f"  {_short(shown(_step(step)))}"
    if feed.sends_failed:
        yield f"  rows for which an expression fails: left out, sent to the dead-letter topic of {feed.origin}"


def _step(step: Step) -> str:
    match step:
        case Filter(condition):
            return f"where {condition}"
        case Select(outputs):
            return "select " + ", ".join(
                output.name if output.sql.strip("`") == output.name else f"{output.sql} as {output.name}"
                for output in outputs
            )
        case AddWindows(spark_sql):
            return f"windows {spark_sql}"
        case AddElements(array, name, _, outer):
            return f"elements of {array} as {name}{', or NULL' if outer else ''}"
        case Late(end, sources):
            return f"where {end} is not after the watermark of {', '.join(sources)}"
        case _:
            return f"over groups: {step.sql}"


def _short(text: str) -> str:
    return text if len(text) <= _STEP_CHARACTERS else text[: _STEP_CHARACTERS - 3] + "..."
