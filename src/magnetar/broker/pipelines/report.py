"""What a pipeline's driver tells of itself: sources, views with their stages, and who has which vnode. Plain values, no rows.

The same document is made of a pipeline's directory by the commands, and sent to brokers by a driver that runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from magnetar.broker.naming import TopicName
from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.vnode import VnodeHash


class Part(Struct, rename="camel", kw_only=True):
    """A JSON object; fields that are not named here are ignored."""


class FeedReport(Part):
    """What goes into a stage: `origin` is a source (`of_topic`), a view or an earlier stage; `placed_by` with key types says the vnode,
    by the function `vnode_hash`."""

    origin: str
    of_topic: bool = False
    placed_by: list[str] = []
    types: list[str] = []
    vnode_hash: VnodeHash = "crc32"


class StageReport(Part):
    """`closed_by`: sources whose least watermark closes its windows; `on_close`: it gives a result only then. `keeps`: what its state is,
    `input rows`, `partial results` or nothing. `stored_rows` counts a key once for each run that has it."""

    stage: str
    operator: str
    feeds: list[FeedReport] = []
    closed_by: list[str] = []
    on_close: bool = False
    keeps: str = ""
    tables: list[int] = []
    stored_rows: int = 0
    rows: int = 0
    rows_per_s: float = 0.0


class SourceReport(Part):
    """`positions`: by topic partition, just before this message. Times in ms since 1970, 0 or null where they are not known; `lag`: entries
    of its topics that are not in the pipeline yet, null where nobody can tell."""

    positions: dict[str, str] = {}
    watermark_ms: int | None = None
    watermark_since_ms: int = 0
    has_watermark: bool = False
    rows_at_ms: int = 0
    lag: int | None = None


class ViewReport(Part):
    """`key` makes a row unique; `placed_by` are those of its columns that say the vnode, of these key types, by the function
    `vnode_hash`."""

    key: list[str] = []
    placed_by: list[str] = []
    types: list[str] = []
    vnode_hash: VnodeHash = "crc32"
    stages: list[StageReport] = []
    stored_rows: int = 0
    size_bytes: int = 0
    files: int = 0
    changes: int = 0
    last: int = 0
    backfilling: bool = False


class PipelineReport(Part):
    """`state`: starting, running, stopped, failed or killed. `mapping`: of vnodes to units, as JSON text."""

    name: str
    state: str
    mapping: str
    error: str | None = None
    pid: int = 0
    host: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    committed_ms: int = 0
    epoch: int = 0
    rows_per_s: float = 0.0
    busy: float = 0.0
    work: float = 0.0
    epoch_s: float = 0.0
    lag: int | None = None
    state_bytes: int = 0
    rescaled: dict[str, Any] | None = None
    metrics_url: str | None = None
    sources: dict[str, SourceReport] = field(default_factory=dict)
    views: dict[str, ViewReport] = field(default_factory=dict)

    @property
    def vnodes(self) -> VnodeMapping:
        """Raises HashingError."""
        return VnodeMapping.from_json(self.mapping)

    def topics(self) -> set[str]:
        """All that it reads, without partitions. Raises InvalidTopicNameError."""
        return {
            str(TopicName.parse(topic).partitioned_name) for each in self.sources.values() for topic in each.positions
        }

    def sources_of(self, topic: str) -> list[str]:
        """The sources that read a topic (without partition)."""
        return [
            name
            for name, source in self.sources.items()
            if any(str(TopicName.parse(each).partitioned_name) == topic for each in source.positions)
        ]

    def upstream(self, view: str) -> Iterator[str]:
        """The view and all views that it reads, each once."""
        seen: list[str] = []
        waiting = [view]
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.views:
                continue
            seen.append(name)
            yield name
            waiting += [feed.origin for stage in self.views[name].stages for feed in stage.feeds if not feed.of_topic]

    def sources_of_view(self, view: str) -> list[str]:
        """The sources whose rows come into it, directly or through other views."""
        found = {
            feed.origin: None
            for name in self.upstream(view)
            for stage in self.views[name].stages
            for feed in stage.feeds
            if feed.of_topic and feed.origin in self.sources
        }
        return list(found)
