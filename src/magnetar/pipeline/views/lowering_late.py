"""LATE_ROWS(v): the rows that a view of windows drops because their window is closed, as a relation of their own."""

from __future__ import annotations

from typing import Final

from magnetar.pipeline.sql.plan import Aggregate, Plan, Project
from magnetar.pipeline.views.changes import Changes
from magnetar.pipeline.views.lowering_context import Lowering
from magnetar.pipeline.views.stages import Filter, Late

CLOSING: Final = (
    "it takes GROUP BY window_start or window_end of a TUMBLE or HOP over a time with a watermark: WATERMARK FOR ts AS ts - INTERVAL "
    "'5 seconds' in the source"
)


def lower_late_rows(lowering: Lowering, view: str) -> Changes:
    """The input of the view's GROUP BY, with its windows, of rows for which the watermark had reached the window's end."""
    aggregate = _aggregate(lowering.plan_of(view))
    if aggregate is None:
        raise lowering.refuse(f"LATE_ROWS({view}): no window of {view} ever closes; {CLOSING}")
    below = lowering.changes(aggregate.input)
    windows = below.windows
    if windows is None or windows.end is None or not windows.sources:
        raise lowering.refuse(f"LATE_ROWS({view}): no window of {view} ever closes; {CLOSING}")
    if not below.append_only:
        raise lowering.refuse(
            f"LATE_ROWS({view}): rows of its input change later, and a change has no window of its own"
        )
    late = Late(windows.end, tuple(sorted(windows.sources)))
    steps = (late,) if aggregate.condition is None else (Filter(aggregate.condition), late)
    # their time is over: no window of late rows would ever close again
    return below.after(steps, below.schema, times={}, windows=None)


def _aggregate(plan: Plan | None) -> Aggregate | None:
    while isinstance(plan, Project):
        plan = plan.input
    return plan if isinstance(plan, Aggregate) else None
