"""Why a view is as fresh as it is, and where a key's row comes from: of what the pipeline's driver reports, or its directory says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from magnetar.base.clock import iso_time
from magnetar.base.errors import InvalidArgumentError
from magnetar.broker.explain.answer import Explanation, iso_or_none
from magnetar.broker.explain.sentences import in_order, verdict
from magnetar.broker.pipelines.report import FeedReport, PipelineReport, SourceReport, ViewReport
from magnetar.broker.reasons import Code, Named, Reason, because
from magnetar.hashing.errors import HashingError
from magnetar.hashing.key_text import value_of
from magnetar.hashing.key_types import as_key_type
from magnetar.hashing.mapping import VnodeMapping, diff
from magnetar.hashing.vnode import VnodeHash, vnode

RUNNING: Final = ("starting", "running")
ENDED: Final = {
    "stopped": "was stopped",
    "killed": "is gone without a word",
    "failed": "failed",
}

SILENT_MS: Final = 60_000
"""A driver that runs tells of itself at least every 20 seconds; one that was silent for so long is taken for hung or cut off."""

IDLE_MS: Final = 10_000
"""A source without rows for so long holds windows up; before that the next rows may be on their way."""


class Question(NamedTuple):
    """`key`: texts of key columns by name; empty for the view as a whole. `units`: what so many would change; 0: not asked."""

    view: str
    key: Mapping[str, str] = {}
    units: int = 0


class Stored(NamedTuple):
    """What only the pipeline's directory knows of a key: its `rows`, the `files` that can have them, newest last (`rows`: how many are read
    from there), and the `inputs` that stages keep."""

    rows: Sequence[Mapping[str, Any]]
    files: Sequence[Mapping[str, Any]]
    inputs: Sequence[Mapping[str, Any]]


def view_named(report: PipelineReport, name: str) -> str:
    """Names are compared without case, as Spark does. InvalidArgumentError, which names those that there are."""
    found = next((known for known in report.views if known.lower() == name.lower()), None)
    if found is None:
        known = ", ".join(report.views) or "none yet"
        raise InvalidArgumentError(f"pipeline {report.name} has no view {name}; there are: {known}")
    return found


def key_of(report: PipelineReport, view: str, texts: Sequence[str]) -> dict[str, str]:
    """`VALUE`, or `COLUMN=VALUE` for each column where rows are placed by several. InvalidArgumentError."""
    columns = report.views[view].placed_by
    if not texts:
        return {}
    if not columns:
        raise InvalidArgumentError(f"view {view} has one row and no key: ask without a key")
    if len(columns) == 1 and len(texts) == 1:
        name, equals, value = texts[0].partition("=")
        return {columns[0]: value if equals and name.lower() == columns[0].lower() else texts[0]}
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        column = next((each for each in columns if each.lower() == name.lower()), None)
        if not equals or column is None:
            raise InvalidArgumentError(f"{text!r}: give COLUMN=VALUE for each of {', '.join(columns)}")
        found[column] = value
    if missing := [column for column in columns if column not in found]:
        raise InvalidArgumentError(f"the key of view {view} needs {', '.join(missing)} as well: COLUMN=VALUE for each")
    return found


def vnode_of(
    columns: Sequence[str], types: Sequence[str], key: Mapping[str, str], count: int, hash: VnodeHash = "crc32"
) -> int:
    """InvalidArgumentError for values that are not of these types."""
    if len(types) != len(columns):
        raise InvalidArgumentError(f"the columns {', '.join(columns)} have types without a vnode encoding")
    kinds = [as_key_type(kind) for kind in types]
    try:
        values = [value_of(key[column], kind) for column, kind in zip(columns, kinds, strict=True)]
        return vnode(values, kinds, count, hash)
    except (HashingError, ValueError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"the key does not fit the columns {', '.join(columns)}: {error}") from None


def explain_view(report: PipelineReport, question: Question, now_ms: int, stored: Stored | None = None) -> Explanation:
    """Raises InvalidArgumentError for a view that there is not, a key that does not fit, and units that cannot be."""
    name = view_named(report, question.view)
    view, mapping = report.views[name], report.vnodes
    runs = report.state in RUNNING
    reasons = _of_driver(report, now_ms)
    waits, holds = _of_watermarks(report, name, now_ms)
    reasons += waits
    if view.backfilling:
        reasons.append(because(Code.VIEW_BACKFILLING, view=name))
    sources = {each: report.sources[each] for each in report.sources_of_view(name)}
    behind = {each: source.lag for each, source in sources.items() if source.lag}
    if behind:
        lag = sum(behind.values())
        reasons.append(because(Code.VIEW_BEHIND, lag=lag, sources=Named(behind), epoch=report.epoch))
    stands = any(reason.code in _STOPS for reason in reasons) or (holds and not behind)
    moving = False if stands else (True if runs and (behind or view.backfilling) else None)
    if not reasons:
        reasons.append(because(Code.VIEW_CURRENT, epoch=report.epoch, committed=iso_time(report.committed_ms)))
    details = _details(report, name, view, sources, mapping, now_ms)
    subject: dict[str, Any] = {"kind": "view", "pipeline": report.name, "view": name}
    if question.key:
        subject["key"] = Named(question.key)
        number = vnode_of(view.placed_by, view.types, question.key, mapping.vnodes, view.vnode_hash)
        reasons.append(_placed(name, question, number, mapping, stored))
        details["key"] = _key_details(number, mapping, stored)
    if question.units:
        number_or_none = details["key"]["vnode"] if question.key else None
        details["what_if"] = what_if(mapping, question.units, number_or_none)
    reasons = in_order(reasons)
    about = f"View {name} of pipeline {report.name}"
    return Explanation(subject, verdict(about, moving, reasons), moving, reasons, details)


_STOPS: Final = (Code.VIEW_DRIVER_FAILED, Code.VIEW_DRIVER_GONE, Code.VIEW_DRIVER_SILENT)


def _of_driver(report: PipelineReport, now_ms: int) -> list[Reason]:
    pipeline, epoch = report.name, report.epoch
    if report.state == "failed":
        error = (report.error or "it did not say why").rstrip(".")
        return [because(Code.VIEW_DRIVER_FAILED, report.updated_ms, pipeline=pipeline, epoch=epoch, error=error)]
    if report.state not in RUNNING:
        how = ENDED.get(report.state, report.state)
        return [because(Code.VIEW_DRIVER_GONE, report.updated_ms, pipeline=pipeline, epoch=epoch, how=how)]
    silent_ms = now_ms - report.updated_ms
    if silent_ms > SILENT_MS:
        host = f"process {report.pid}" + (f" on {report.host}" if report.host else "")
        seconds = silent_ms // 1000
        return [
            because(
                Code.VIEW_DRIVER_SILENT,
                report.updated_ms,
                pipeline=pipeline,
                epoch=epoch,
                process=host,
                seconds=seconds,
            )
        ]
    return []


def _of_watermarks(report: PipelineReport, view: str, now_ms: int) -> tuple[list[Reason], bool]:
    """Why windows do not close, and whether results wait for that."""
    stages = [stage for name in report.upstream(view) for stage in report.views[name].stages if stage.closed_by]
    reasons: list[Reason] = []
    holds = False
    for stage in stages:
        closing = {name: report.sources[name] for name in stage.closed_by if name in report.sources}
        if not closing or not (stage.on_close or len(closing) > 1):
            continue
        name, source = min(closing.items(), key=lambda item: _mark(item[1]))
        others = {other: _shown(each) for other, each in closing.items() if _mark(each) > _mark(source)}
        idle = now_ms - max(source.rows_at_ms, source.watermark_since_ms) > IDLE_MS
        if not others and not (idle and stage.on_close and stage.stored_rows):
            continue
        holds = holds or (stage.on_close and stage.stored_rows > 0)
        reason = because(
            Code.VIEW_WAITS_FOR_WATERMARK,
            source.watermark_since_ms or source.rows_at_ms,
            view=view,
            stage=stage.stage,
            source=name,
            watermark=_shown(source),
            others=Named(others),
            topics=sorted(source.positions),
            lag=source.lag,
        )
        if all(each.facts["source"] != name for each in reasons):
            reasons.append(reason)
    return reasons, holds


def _mark(source: SourceReport) -> int:
    return -(2**63) if source.watermark_ms is None else source.watermark_ms


def _shown(source: SourceReport) -> str:
    return "not there yet" if source.watermark_ms is None else iso_time(source.watermark_ms)


def _placed(view: str, question: Question, number: int, mapping: VnodeMapping, stored: Stored | None) -> Reason:
    key, unit = ", ".join(f"{column} = {value}" for column, value in question.key.items()), mapping.owner(number)
    if stored is not None and not stored.rows:
        return because(Code.VIEW_ROW_ABSENT, view=view, key=key, vnode=number, unit=unit)
    files = [str(file["path"]) for file in stored.files if file["rows"]] if stored is not None else []
    return because(Code.VIEW_KEY_PLACED, key=key, vnode=number, unit=unit, files=files)


def _key_details(number: int, mapping: VnodeMapping, stored: Stored | None) -> dict[str, Any]:
    found: dict[str, Any] = {"vnode": number, "unit": mapping.owner(number)}
    if stored is not None:
        found |= {"rows": [Named(row) for row in stored.rows], "files": list(stored.files)}
        found["inputs"] = [{**each, "rows": [Named(row) for row in each.get("rows", ())]} for each in stored.inputs]
    return found


def _details(
    report: PipelineReport,
    name: str,
    view: ViewReport,
    sources: Mapping[str, SourceReport],
    mapping: VnodeMapping,
    now_ms: int,
) -> dict[str, Any]:
    lags = [source.lag for source in sources.values()]
    unknown, caught_up = None in lags or not lags, not any(lags)
    return {
        "pipeline": report.name,
        "state": report.state,
        "epoch": report.epoch,
        "committed_at": iso_or_none(report.committed_ms),
        "stale_s": None if unknown else 0.0 if caught_up else max(now_ms - report.committed_ms, 0) / 1000,
        "stored_rows": view.stored_rows,
        "size_bytes": view.size_bytes,
        "files": view.files,
        "sources": [
            {
                "source": each,
                "positions": Named(source.positions),
                "lag": source.lag,
                "watermark": _shown(source) if source.has_watermark else None,
                "last_rows": iso_or_none(source.rows_at_ms),
            }
            for each, source in sources.items()
        ],
        "units": Named(mapping.counts()),
        "stages": [
            {"stage": stage.stage, "operator": stage.operator, "keeps": stage.keeps, "stored_rows": stage.stored_rows}
            for stage in view.stages
        ],
    }


def what_if(mapping: VnodeMapping, units: int, number: int | None = None) -> dict[str, Any]:
    """Which vnodes would have another unit. InvalidArgumentError."""
    try:
        after = mapping.rescale(units)
    except HashingError as error:
        raise InvalidArgumentError(str(error)) from None
    moves = diff(mapping, after)
    return {
        "units": units,
        "vnodes": mapping.vnodes,
        "vnodes_moved": len(moves),
        "owner_before": None if number is None else mapping.owner(number),
        "owner_after": None if number is None else after.owner(number),
        "counts_before": Named(mapping.counts()),
        "counts_after": Named(after.counts()),
        "ranges_before": [list(each) for each in mapping.ranges()],
        "ranges_after": [list(each) for each in after.ranges()],
    }


PLACES_MAX: Final = 100
"""Stages of one answer about a key."""


def places_of_key(report: PipelineReport, topic: str, key: str) -> list[dict[str, Any]]:
    """For each stage that reads the topic (without partition): the vnode and unit of rows whose placing column is `key`."""
    sources, mapping = set(report.sources_of(topic)), report.vnodes
    found = []
    for name, view in report.views.items():
        for stage in view.stages:
            for feed in stage.feeds:
                if feed.of_topic and feed.origin in sources:
                    place = _place(feed, key, mapping)
                    found.append({"pipeline": report.name, "view": name, "stage": stage.stage, **place})
    return found[:PLACES_MAX]


def _place(feed: FeedReport, key: str, mapping: VnodeMapping) -> dict[str, Any]:
    column = ", ".join(feed.placed_by)
    if not feed.placed_by:
        return {"column": None, "vnode": 0, "unit": mapping.owner(0), "note": "all rows go to vnode 0"}
    if len(feed.placed_by) > 1:
        return {"column": column, "vnode": None, "unit": None, "note": "the vnode needs all of these columns"}
    try:
        number = vnode_of(feed.placed_by, feed.types, {feed.placed_by[0]: key}, mapping.vnodes, feed.vnode_hash)
    except InvalidArgumentError:
        note = f"{key!r} is not a value of this column"
        return {"column": column, "vnode": None, "unit": None, "note": note}
    return {"column": column, "vnode": number, "unit": mapping.owner(number), "note": None}
