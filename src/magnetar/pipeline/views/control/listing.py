"""What a pipeline's directory tells without its driver."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from magnetar.base.clock import Clock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.connect.segment_order import is_scalable, whole_topic
from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.home import Place, names, pipelines_directory, place_of
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.control.status import STOPPED, Status, read_status
from magnetar.pipeline.views.lowering.graph import GRAPH
from magnetar.pipeline.views.scan.stored_views import open_manifest, table_ids


@dataclass(frozen=True)
class Overview:
    """A pipeline as its directory tells it. `manifest` None: no driver has ever come so far."""

    place: Place
    status: Status
    manifest: Manifest | None

    @property
    def mapping(self) -> VnodeMapping:
        """CatalogError before the first manifest."""
        if self.manifest is None:
            raise CatalogError(f"pipeline {self.place.name} has not run yet; `magnetar pipeline run` begins it")
        return VnodeMapping.from_json(self.manifest.mapping)

    def split_with_units(self) -> list[str]:
        """Scalable topics of which units read the segments of their own vnodes (`vnode.hash = 'segment'`)."""
        if self.manifest is None:
            return []
        stages = [stage for view in self.manifest.views.get(GRAPH, {}).values() for stage in view]
        feeds = [feed for stage in stages for feed in stage["feeds"]]
        read = {feed["origin"] for feed in feeds if feed["ofTopic"] and feed.get("vnodeHash") == "segment"}
        names = {whole_topic(each) for origin in read for each in self.manifest.sources.get(origin, {})}
        return sorted(name for name in names if is_scalable(name))

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON: the status, and of each view the changes and the rows and bytes stored."""
        return {**asdict(self.status), "views": self.views()}

    def views(self) -> dict[str, dict[str, int]]:
        """By name. `stored_rows` counts a key once for each run that has it, until runs are merged."""
        found: dict[str, dict[str, int]] = {}
        if self.manifest is None:
            return found
        for name, table_id in table_ids(self.manifest).items():
            state = self.manifest.tables.get(table_id)
            runs = state.runs if state else ()
            counted = self.status.views.get(name, {})
            found[name] = {
                "changes": counted.get("changes", 0),
                "last": counted.get("last", 0),
                "stored_rows": sum(run.rows for run in runs),
                "bytes": sum(run.size_bytes for run in runs),
            }
        return found


def overview(name_or_directory: str, clock: Clock) -> Overview:
    """CatalogError, which names those that there are, when there is no such pipeline."""
    place = place_of(name_or_directory)
    status = read_status(place.local)
    manifest = None
    try:
        manifest = open_manifest(StateFiles(place.directory), clock)
    except CatalogError:
        if status is None:
            known = ", ".join(names()) or "none yet"
            raise CatalogError(
                f"no pipeline {name_or_directory}; those below {pipelines_directory()}: {known}"
            ) from None
    if status is None:
        status = Status(place.name, place.directory, state=STOPPED)
    if manifest is not None:
        status.epoch = max(status.epoch, manifest.epoch)
        status.units = len(VnodeMapping.from_json(manifest.mapping).units)
        status.state_bytes = sum(run.size_bytes for state in manifest.tables.values() for run in state.runs)
    return Overview(place, status, manifest)


def meant(name: str | None, clock: Clock) -> Overview:
    """The pipeline of that name, or the only one. CatalogError when none or several could be meant, or there is no such one."""
    if name is None:
        known = names()
        if len(known) != 1:
            there = ", ".join(known) or "none"
            raise CatalogError(f"which pipeline? Give its name; below {pipelines_directory()} there are: {there}")
        name = known[0]
    return overview(name, clock)
