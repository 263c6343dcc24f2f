"""Pipelines that read this cluster's topics: the graph of stages, how fresh views are, vnodes over units, and a rescale as it happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from magnetar.admin.console.page import Page, page
from magnetar.admin.console.visit import Visit, path_of
from magnetar.broker.explain.view import SILENT_MS
from magnetar.hashing.mapping import VnodeMapping

STAGES_SHOWN = 60
"""Stages of a drawn graph; a larger pipeline is listed only."""


async def pipelines(visit: Visit) -> Page:
    found = await visit.get("/pipelines")
    now_ms = visit.now_ms()
    rows = [{**each, "shown": state_of(each, now_ms), "units": len(_mapping(each).units)} for each in found]
    return Page("pipelines.html", "Pipelines", {"rows": rows})


async def pipeline(visit: Visit) -> Page:
    name = visit.params["pipeline"]
    found = await visit.get(path_of("pipelines", name))
    mapping = _mapping(found)
    before = visit.remembered("mapping", mapping)
    now_ms = visit.now_ms()
    lag = found["lag"]
    values = {
        "pipeline": found,
        "shown": state_of(found, now_ms),
        "members": sorted({*mapping.units, *before.units}, key=_natural),
        "counts": mapping.counts(),
        "vnodes": mapping.vnodes,
        "stretches": _stretches(mapping),
        "before": _stretches(before) if before != mapping else None,
        "moved": sum(old != new for old, new in zip(_owners(before), _owners(mapping), strict=False)),
        "views": [{"name": view, **each, "why": why(name, view)} for view, each in found["views"].items()],
        "graph": graph_of(found)
        if sum(len(each["stages"]) for each in found["views"].values()) <= STAGES_SHOWN
        else None,
        "charts": {"rows": visit.sample("rows", found["rowsPerS"]), "lag": visit.sample("lag", lag or 0)},
        "heard_s": max(0, now_ms - found["updatedMs"]) // 1000,
    }
    return Page("pipeline.html", name, values, (("Pipelines", "/console/pipelines"),))


def why(pipeline: str, view: str) -> str:
    """The address that answers it."""
    return "/console/explain/view?" + urlencode({"pipeline": pipeline, "view": view})


def state_of(found: Mapping[str, Any], now_ms: int) -> tuple[str, str]:
    """Kind of the badge, and its text."""
    state = str(found["state"])
    if state in ("running", "starting"):
        return ("bad", "silent") if now_ms - int(found["updatedMs"]) > SILENT_MS else ("good", state)
    return ("bad" if state in ("failed", "killed") else "warn", state)


def graph_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """`nodes`: (id, kind, label, numbers) by column, `edges`: (from, to). A node is at least one column behind whatever it reads."""
    edges = list(_edges(found))
    kinds = {f"source {name}": "source" for name in found["sources"]}
    columns: dict[str, int] = dict.fromkeys(kinds, 0)
    for view in found["views"].values():
        for stage in view["stages"]:
            kinds[stage["stage"]] = "stage"
            columns[stage["stage"]] = 1
    for name in found["views"]:
        kinds[f"view {name}"] = "view"
        columns[f"view {name}"] = 1
    for _ in columns:  # as often as a chain can be long
        for start, end in edges:
            columns[end] = max(columns[end], columns[start] + 1)
    nodes = [(node, kinds[node], *_words(found, node)) for node in columns]
    return {"nodes": nodes, "columns": columns, "edges": edges}


def _edges(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    stages = {stage["stage"] for view in found["views"].values() for stage in view["stages"]}
    for name, view in found["views"].items():
        for stage in view["stages"]:
            for feed in stage["feeds"]:
                origin = feed["origin"]
                if feed["ofTopic"] and origin in found["sources"]:
                    yield f"source {origin}", stage["stage"]
                elif origin in stages:
                    yield origin, stage["stage"]
                elif origin in found["views"]:
                    yield f"view {origin}", stage["stage"]
        if view["stages"]:
            yield view["stages"][-1]["stage"], f"view {name}"


def _words(found: Mapping[str, Any], node: str) -> tuple[str, str]:
    kind, _, name = node.partition(" ")
    if kind == "source":
        lag = found["sources"][name]["lag"]
        return name, "lag unknown" if lag is None else f"{lag:,} behind"
    if kind == "view":
        return name, f"{found['views'][name]['storedRows']:,} rows"
    for view in found["views"].values():
        for stage in view["stages"]:
            if stage["stage"] == node:
                return str(stage["operator"]), f"{stage['rowsPerS']:,.0f} rows/s"
    return node, ""


def _mapping(found: Mapping[str, Any]) -> VnodeMapping:
    return VnodeMapping.from_json(found["mapping"])


def _owners(mapping: VnodeMapping) -> list[str]:
    return [mapping.units[owner] for owner in mapping.owners]


def _stretches(mapping: VnodeMapping) -> list[tuple[int, int, str]]:
    return [(start, end + 1, unit) for start, end, unit in mapping.ranges()]


def _natural(unit: str) -> tuple[int, str]:
    return (int(unit) if unit.isdigit() else 1 << 30, unit)


PAGES = (page("GET", "/pipelines", pipelines), page("GET", "/pipelines/{pipeline}", pipeline))
