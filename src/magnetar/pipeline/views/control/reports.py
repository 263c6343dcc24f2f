"""A pipeline as its manifest and its status tell it, for people who ask why and for brokers: no rows, no credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from magnetar.broker.pipelines.report import PipelineReport, SourceReport, StageReport, ViewReport
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.state.manifest import Manifest, TableState
from magnetar.pipeline.views.control.status import Status
from magnetar.pipeline.views.lowering.graph import GRAPH, placing_types
from magnetar.pipeline.views.lowering.program import BACKFILL
from magnetar.pipeline.views.scan.stored_views import table_ids


def report_of(status: Status, manifest: Manifest, host: str = "") -> PipelineReport:
    """Of one moment. A manifest that an older version wrote has no stages until its pipeline runs again."""
    catalog = Catalog.from_plain(list(manifest.views.get("catalog", [])))
    return PipelineReport(
        name=status.name,
        state=status.state,
        mapping=manifest.mapping,
        error=status.error,
        pid=status.pid,
        host=host,
        started_ms=status.started_ms,
        updated_ms=status.updated_ms,
        committed_ms=manifest.created_ms,
        epoch=manifest.epoch,
        rows_per_s=round(status.rows_per_s, 1),
        busy=round(status.busy, 3),
        work=round(status.work, 3),
        epoch_s=round(status.epoch_s, 3),
        lag=status.lag_messages,
        state_bytes=sum(run.size_bytes for state in manifest.tables.values() for run in state.runs),
        rescaled=status.rescaled,
        metrics_url=status.metrics_url,
        sources={name: _source(name, at, catalog, manifest, status) for name, at in manifest.sources.items()},
        views={name: _view(name, table_id, manifest, status) for name, table_id in table_ids(manifest).items()},
    )


def _source(
    name: str, positions: Mapping[str, Any], catalog: Catalog, manifest: Manifest, status: Status
) -> SourceReport:
    entry = catalog.entries.get(name)
    statement = entry.statement if entry is not None else None
    mark_us = manifest.watermarks_us.get(name)
    known = status.sources.get(name, {})
    return SourceReport(
        positions={topic: place_of(at) for topic, at in positions.items()},
        has_watermark=isinstance(statement, CreateSource) and statement.watermark is not None,
        watermark_ms=None if mark_us is None else mark_us // 1000,
        watermark_since_ms=known.get("watermark_at_ms", 0) if known.get("watermark_us") == mark_us else 0,
        rows_at_ms=known.get("rows_at_ms", 0),
        lag=status.lags.get(name),
    )


def _view(name: str, table_id: int, manifest: Manifest, status: Status) -> ViewReport:
    state = manifest.tables.get(table_id)
    counted = status.views.get(name, {})
    return ViewReport(
        key=list(state.table.key) if state else [],
        placed_by=list(state.table.distributed_by) if state else [],
        types=placing_types(state.table) if state else [],
        vnode_hash=state.table.vnode_hash if state else "crc32",
        stages=[_stage(plain, manifest, status) for plain in manifest.views.get(GRAPH, {}).get(name, [])],
        stored_rows=_rows(state),
        size_bytes=sum(run.size_bytes for run in state.runs) if state else 0,
        files=len(state.runs) if state else 0,
        changes=counted.get("changes", 0),
        last=counted.get("last", 0),
        backfilling=name in manifest.views.get(BACKFILL, []),
    )


def _stage(plain: Mapping[str, Any], manifest: Manifest, status: Status) -> StageReport:
    stage = msgspec.convert(plain, StageReport)
    counted = status.stages.get(stage.stage, {})
    stage.stored_rows = sum(_rows(manifest.tables.get(table_id)) for table_id in stage.tables)
    stage.rows = int(counted.get("rows", 0))
    stage.rows_per_s = round(counted.get("rows_per_s", 0.0), 1)
    return stage


def _rows(state: TableState | None) -> int:
    return sum(run.rows for run in state.runs) if state else 0


def place_of(at: Any) -> str:
    """A position as people read it: `ledger:entry`, with `:batch` inside of a batch; `earliest` before every message."""
    if not isinstance(at, Mapping):
        return str(at)
    if at.get("ledger", -1) < 0:
        return "earliest"
    batch = f":{at['batch']}" if at.get("batch") else ""
    return f"{at['ledger']}:{at['entry']}{batch}"
