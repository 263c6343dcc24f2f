"""The pipelines that report to this cluster: their last reports, in the metadata store, so that every broker knows them."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from magnetar.base.clock import Clock
from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.pipelines.report import PipelineReport
from magnetar.metadata.paths import PIPELINES_PATH, decode, encode
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

NODE: Final = "report"
FOLLOWED: Final = "followed"
"""When somebody looked at the pipeline last, in ms since 1970, as text."""

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

REPORT_BYTES_MAX: Final = 256 * 1024
"""A larger report is refused: a store like ZooKeeper takes a megabyte a node."""

PIPELINES_MAX: Final = 200
"""Pipelines of a cluster that may report; further ones are refused until one is removed or forgotten."""

FORGOTTEN_MS: Final = 7 * 24 * 3600 * 1000
"""A pipeline that nobody has heard of for so long makes room for others, and its name is anybody's."""

FOLLOWED_MS: Final = 20_000
"""So long after somebody looked, a driver is asked to report often."""

LOOK_NOTED_MS: Final = 5_000
"""Looks that come sooner after another are not written down."""


class Registered(msgspec.Struct, rename="camel", kw_only=True):
    """`role`: who registered it and may replace or remove it; empty without authentication. `heard_ms`: by the broker's clock."""

    role: str
    heard_ms: int
    report: PipelineReport


class PipelineRegistry:
    """Of one cluster."""

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    async def get(self, name: str) -> Registered | None:
        """None for one that never reported, or whose report another version wrote."""
        node = await self._metadata.get(_path(name, NODE))
        if node is None:
            return None
        try:
            return msgspec.json.decode(node.value, type=Registered)
        except msgspec.MsgspecError:
            return None

    async def all(self) -> list[Registered]:
        """By name."""
        names = sorted(decode(child) for child in await self._metadata.children(PIPELINES_PATH))
        found = [await self.get(name) for name in names[:PIPELINES_MAX]]
        return [each for each in found if each is not None]

    async def put(self, report: PipelineReport, role: str, *, may_replace: bool) -> bool:
        """Keep a report; True if somebody looks at it at the moment. Raises NotAllowedError for another role's pipeline (unless
        `may_replace`), for one too many, and for one that is too large."""
        now_ms = self._clock.now_ms()
        known = await self.get(report.name)
        if known is not None and known.role != role and not may_replace and now_ms - known.heard_ms < FORGOTTEN_MS:
            raise NotAllowedError(f"pipeline {report.name} was registered by another role: give this one another name")
        if known is None and await self._full(now_ms):
            raise NotAllowedError(
                f"{PIPELINES_MAX} pipelines report to this cluster already: remove those that are gone (DELETE "
                "/admin/v2/pipelines/NAME)"
            )
        value = msgspec.json.encode(Registered(role=role, heard_ms=now_ms, report=report))
        if len(value) > REPORT_BYTES_MAX:
            raise NotAllowedError(f"the report of pipeline {report.name} has {len(value)} bytes of {REPORT_BYTES_MAX}")
        await self._metadata.put(_path(report.name, NODE), value)
        looked = await self._metadata.get(_path(report.name, FOLLOWED))
        return looked is not None and looked.value.isdigit() and now_ms - int(looked.value) < FOLLOWED_MS

    async def note_look(self, name: str) -> None:
        """Somebody looks at it: its driver is to report often for a while."""
        now_ms, path = self._clock.now_ms(), _path(name, FOLLOWED)
        node = await self._metadata.get(path)
        if node is not None and node.value.isdigit() and 0 <= now_ms - int(node.value) < LOOK_NOTED_MS:
            return
        try:
            await self._metadata.put(path, str(now_ms).encode(), MUST_NOT_EXIST if node is None else node.version)
        except BadVersionError:
            pass  # somebody else has noted it at the same moment

    async def remove(self, name: str) -> bool:
        """False if it never reported."""
        found = False
        for node in (NODE, FOLLOWED):
            try:
                await self._metadata.delete(_path(name, node))
                found = found or node == NODE
            except NodeNotFoundError:
                pass
        return found

    async def _full(self, now_ms: int) -> bool:
        if await self._metadata.children_count(PIPELINES_PATH) < PIPELINES_MAX:
            return False
        registered = await self.all()
        for each in registered:
            if now_ms - each.heard_ms >= FORGOTTEN_MS:
                await self.remove(each.report.name)
                return False
        return len(registered) >= PIPELINES_MAX


def _path(name: str, node: str) -> str:
    return f"{PIPELINES_PATH}/{encode(name)}/{node}"
