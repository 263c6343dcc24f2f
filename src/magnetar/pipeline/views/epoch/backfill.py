"""Views that are created over sources and views which have been there for a while: their rows as if they had always been there.

Before the streaming query begins, one epoch runs the new views alone: over what their sources were read up to the manifest, and over the
rows that older views have in it. Views of constants get their rows then, and never again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.epoch.epoch import Batch
from magnetar.pipeline.views.epoch.stage_job import one_row_frame, rows_frame
from magnetar.pipeline.views.lowering.program import BACKFILL, STARTS, Program
from magnetar.pipeline.views.lowering.stages import ONE_ROW
from magnetar.pipeline.views.source.sources import Sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def to_backfill(program: Program, claimed: Manifest) -> list[str]:
    """The views that read from what was there before them, or constants, directly or through other new ones; with those that a driver
    left undone."""
    known = set(claimed.views.get("tables", {}))
    pending = list(claimed.views.get(BACKFILL, []))
    found: list[str] = []
    for plan in program.plans:
        fresh = plan.name not in known or plan.name in pending
        feeds = [feed for stage in plan.stages for feed in stage.feeds]
        stages = {stage.stage_id for stage in plan.stages}
        behind = any(
            feed.origin in claimed.sources
            if program.reads_source(plan, feed)
            else feed.origin not in stages and (feed.origin == ONE_ROW or feed.origin in found or feed.origin in known)
            for feed in feeds
            if not feed.is_late  # in the past nothing counts as late
        )
        if fresh and (behind or plan.name in pending):
            found.append(plan.name)
    return found


def starts(claimed: Manifest, positions: Mapping[str, Any]) -> dict[str, Any]:
    """Where each source began: what it was first given."""
    known = claimed.views.get(STARTS, {})
    return {name: known.get(name, at) for name, at in positions.items()}


def backfill_batch(
    spark: SparkSession, files: StateFiles, program: Program, sources: Sources, manifest: Manifest, time_us: int
) -> Batch | None:
    """The epoch that is left to do, or None."""
    names = frozenset(manifest.views.get(BACKFILL, []))
    if not names:
        return None
    mapping = VnodeMapping.from_json(manifest.mapping)
    frames, rows, letters = {}, {}, {}
    older = {plan.name: plan.table.table_id for plan in program.plans if plan.name not in names}
    for plan in program.plans:
        if plan.name not in names:
            continue
        for feed in (feed for stage in plan.stages for feed in stage.feeds):
            if program.reads_source(plan, feed):
                at, source = manifest.sources[feed.origin], program.sources[feed.origin]
                start = manifest.views[STARTS][feed.origin]
                if at and start != at:
                    raw = sources.range(spark, source, start, at)
                    frames[feed.origin] = sources.decoded(raw, source)
                    letters[feed.origin] = sources.dead_letters(raw, source)
            elif feed.origin == ONE_ROW:
                rows[ONE_ROW] = one_row_frame(spark)
            elif feed.origin in older and older[feed.origin] in manifest.tables:
                rows[feed.origin] = rows_frame(spark, files, manifest.tables[older[feed.origin]], mapping)
    dead = {name: each for name, each in letters.items() if each is not None}
    return Batch(manifest.batch_id, time_us, frames, {}, rows, names, dead_letters=dead)
