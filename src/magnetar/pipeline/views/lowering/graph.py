"""The stages of a program as plain values: what a manifest says of them, so that whoever has no Spark can tell where rows go."""

from __future__ import annotations

from typing import Any, Final

from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.key_types import KeyType
from magnetar.hashing.vnode import VnodeHash
from magnetar.pipeline.operators.aggregate import MergedAggregate
from magnetar.pipeline.operators.materialize import Materialize, Materialized
from magnetar.pipeline.operators.operator import Operator
from magnetar.pipeline.operators.single_row import SingleRow
from magnetar.pipeline.operators.upsert import Upsert
from magnetar.pipeline.operators.window import WindowAggregate
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.lowering.program import Program
from magnetar.pipeline.views.lowering.stages import Feed, Stage, ViewPlan

GRAPH: Final = "graph"
"""In a manifest's `views`: by view, its stages."""

INPUT_ROWS: Final = "input rows"
PARTIAL_RESULTS: Final = "partial results"


def graph(program: Program) -> dict[str, list[dict[str, Any]]]:
    """By view, with the names of `broker.pipelines.report.StageReport`."""
    return {plan.name: [_stage(program, plan, stage) for stage in plan.stages] for plan in program.plans}


def placing_types(table: StateTable) -> list[str]:
    """The key types of the columns that the table is distributed by; none where one of them has no encoding."""
    return types_of(table.schema, table.distributed_by)


def types_of(schema: Any, columns: tuple[str, ...]) -> list[str]:
    """Key types of columns of an Arrow schema."""
    try:
        return [str(KeyType.from_arrow(schema.field(name).type)) for name in columns]
    except KeyEncodingError:
        return []


def _stage(program: Program, plan: ViewPlan, stage: Stage) -> dict[str, Any]:
    operator, on_close = _core(stage.operator)
    own = [table.table_id for table in stage.operator.state_tables() if table.table_id != plan.table.table_id]
    keeps = ""
    if own:
        keeps = PARTIAL_RESULTS if isinstance(operator, MergedAggregate) else INPUT_ROWS
    elif isinstance(operator, Upsert):
        keeps, own = INPUT_ROWS, [plan.table.table_id]
    return {
        "stage": stage.stage_id,
        "operator": type(operator).__name__,
        "feeds": [_feed(program, plan, feed, stage.vnode_hash) for feed in stage.feeds],
        "closedBy": list(stage.watermarks),
        "onClose": on_close,
        "keeps": "" if isinstance(operator, Materialize) else keeps,
        "tables": own,
    }


def _feed(program: Program, plan: ViewPlan, feed: Feed, vnode_hash: VnodeHash) -> dict[str, Any]:
    return {
        "origin": feed.origin,
        "ofTopic": program.reads_source(plan, feed),
        "placedBy": list(feed.place_by),
        "types": types_of(feed.schema, feed.place_by),
        "vnodeHash": vnode_hash,
    }


def _core(operator: Operator) -> tuple[object, bool]:
    """What an operator is inside of those that only store its rows or close its windows; and whether it waits for closed windows."""
    on_close = False
    found: object = operator
    while isinstance(found, Materialized | WindowAggregate | SingleRow):
        on_close = on_close or (isinstance(found, WindowAggregate) and found.on_close)
        found = found.inner
    return found, on_close
