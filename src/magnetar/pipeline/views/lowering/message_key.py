"""Views with `vnode.hash = 'segment'`: what has to hold so that their units can read the rows of their own vnodes.

A row's vnode is that of its message's key, and the segments of a scalable topic are ranges of the same hash: a unit reads the segments
in which its vnodes lie, and nothing is sent from one unit to another. So every stage has to be placed by the message's key alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.lowering.context import Lowering
from magnetar.pipeline.views.lowering.stages import AddElements, Late, OverGroups, Select, Stage, Step, ViewPlan, quoted

FIX: Final = (
    "or leave vnode.hash out, and rows are sent to their units by the hash of the columns that they are grouped by"
)


def require_message_key(lowering: Lowering, plan: ViewPlan, catalog: Catalog) -> None:
    """Raises PlanRefusedError, which says what to write instead."""
    before: Stage | None = None
    for stage in plan.stages:
        if any(table.vnode_hash != "segment" for table in stage.operator.state_tables()) or len(stage.feeds) != 1:
            raise lowering.refuse(
                "vnode.hash = 'segment' is for one GROUP BY of a source's message key; join, rank, deduplicate, or use other aggregates "
                f"than those of docs/reference/sql.md, in a view of its own that reads this one, {FIX}"
            )
        (feed,) = stage.feeds
        if len(feed.place_by) != 1:
            raise lowering.refuse(
                f"vnode.hash = 'segment' needs GROUP BY the message key alone, not ({', '.join(feed.place_by)}); group by the other "
                f"columns in a view of its own, {FIX}"
            )
        column = traced(feed.steps, feed.place_by[0])
        if before is None:
            _check_source(lowering, catalog, feed.origin, column)
        elif column != before.feeds[0].place_by[0] or feed.origin != before.stage_id:
            raise lowering.refuse(
                f"vnode.hash = 'segment' needs the message key among the view's columns; select it, {FIX}"
            )
        before = stage


def traced(steps: Sequence[Step], column: str) -> str | None:
    """The column before the steps of which this one is nothing but a copy, under whatever name. None where it is computed."""
    for step in reversed(steps):
        match step:
            case Select(outputs):
                found = next((_column(output.sql) for output in outputs if output.name.lower() == column.lower()), None)
                if found is None:
                    return None
                column = found
            case AddElements(_, name, position) if column in (name, position):
                return None
            case OverGroups() | Late():
                return None
    return column


def _column(sql: str) -> str | None:
    """The name that Spark SQL consists of."""
    inner = sql[1:-1].replace("``", "`")
    return inner if quoted(inner) == sql else (sql if sql.isidentifier() else None)


def _check_source(lowering: Lowering, catalog: Catalog, origin: str, column: str | None) -> None:
    entry = catalog.entries.get(origin)
    statement = entry.statement if entry is not None else None
    if not isinstance(statement, CreateSource) or statement.table:
        raise lowering.refuse(
            f"vnode.hash = 'segment' reads the topic itself, and {origin} is a view or a table; read a SOURCE of the topic, {FIX}"
        )
    keys = [include.name for include in statement.includes if include.kind == "KEY"]
    if column is None or column.lower() not in {name.lower() for name in keys}:
        wanted = f"GROUP BY {keys[0]}" if keys else f"INCLUDE KEY AS key in {origin}, and GROUP BY key"
        raise lowering.refuse(
            f"vnode.hash = 'segment' needs rows that are grouped by the key of their messages: write {wanted}, {FIX}"
        )
