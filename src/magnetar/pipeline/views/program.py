"""What a driver runs: sources, and the plans of its views in an order in which nothing reads from what comes later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.stages import Stage, ViewPlan


@dataclass(frozen=True)
class Program:
    """`sinks`: by name, the relation whose changes it sends on."""

    sources: Mapping[str, CreateSource]
    plans: tuple[ViewPlan, ...]
    sinks: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def readers(self) -> dict[str, int]:
        """Feeds that read from each source, view or stage."""
        found: dict[str, int] = {}
        for plan in self.plans:
            for stage in plan.stages:
                for feed in stage.feeds:
                    found[feed.origin] = found.get(feed.origin, 0) + 1
        return found

    @cached_property
    def tables(self) -> dict[int, StateTable]:
        """Every state table by id."""
        found = {}
        for plan in self.plans:
            for table in (plan.table, *(table for stage in plan.stages for table in stage.operator.state_tables())):
                found[table.table_id] = table
        return found

    @cached_property
    def watermarks(self) -> dict[str, tuple[str, int]]:
        """By relation: the time in its rows (Spark SQL), and the delay in microseconds."""
        return {relation: (sql, delay) for plan in self.plans for relation, sql, delay in plan.watermarks}

    def keeps_changes(self, name: str) -> bool:
        """Whether the changes of a view outlive their epoch, for a sink."""
        return name in self.sinks.values()


def materializes(plan: ViewPlan, stage: Stage) -> bool:
    """Whether the runner has to keep the rows of the view after this stage, because its operator does not."""
    own = {table.table_id for table in stage.operator.state_tables()}
    return stage is plan.stages[-1] and plan.table.table_id not in own
