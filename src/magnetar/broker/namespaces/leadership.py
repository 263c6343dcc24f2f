"""The one broker that decides where bundles go: whoever has the ephemeral node `/loadbalance/leader`.

While there is no leader, or it does not answer, every broker decides for itself: taking a bundle is a compare-and-set in any case.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from magnetar.base.errors import BadVersionError, MetadataError, NodeNotFoundError
from magnetar.base.tasks import TaskScope
from magnetar.broker.namespaces.records import decode
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Pause between attempts while the metadata store cannot be reached."""


@dataclass(frozen=True, slots=True)
class Leader:
    """`ready`: it has read what it decides by."""

    broker_id: str
    service_url: str
    ready: bool


class Leadership:
    """`async with Leadership(...)`. `on_change(leads)` tells of gain and loss."""

    def __init__(self, metadata: MetadataStore, broker_id: str, web_service_url: str) -> None:
        self._metadata = metadata
        self._broker_id = broker_id
        self._url = web_service_url
        self.is_leader = False
        self.on_change: Callable[[bool], None] = lambda leads: None
        self._resigned = False
        self._epoch = 0
        self._wake = asyncio.Event()
        self._scope = TaskScope("leadership")

    async def __aenter__(self) -> Leadership:
        self._end_session = self._metadata.on_session(self._session)
        self._end_watch = self._metadata.watch(lambda _: self._wake.set(), paths.LEADER_PATH)
        try:
            await self._stand()  # so that there is a leader when the first broker of a cluster is ready
        except MetadataError as error:
            logger.warning("not standing for leader yet: %s", error)
        await self._scope.__aenter__()
        self._scope.supervise(self._campaign, "campaign")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_session()
        self._end_watch()
        await self._scope.__aexit__(None, None, None)
        try:
            await self.resign()
        except MetadataError:
            logger.info("the leader's node stays until the session ends")

    async def leader(self) -> Leader | None:
        """Whoever leads now."""
        node = await self._metadata.get(paths.LEADER_PATH)
        if node is None:
            return None
        record = decode(node.value)
        service_url = str(record.get("serviceUrl") or "")
        broker_id = str(record.get("brokerId") or service_url.partition("://")[2])
        return Leader(broker_id, service_url, bool(record.get("leaderReady")))

    async def resign(self) -> None:
        """Lead no more, now or later: this broker is about to go."""
        self._resigned = True
        if not self.is_leader:
            return
        self._lead(False)
        node = await self._metadata.get(paths.LEADER_PATH)
        if node is not None and node.owner == self._metadata.session_id:
            try:
                await self._metadata.delete(paths.LEADER_PATH, node.version)
            except (BadVersionError, NodeNotFoundError):
                return

    def _session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._epoch += 1
            self._lead(False)
        self._wake.set()

    async def _campaign(self) -> None:
        while not self._resigned:
            self._wake.clear()
            try:
                await self._stand()
            except MetadataError as error:
                logger.warning("not standing for leader: %s; trying again", error)
                await asyncio.sleep(RETRY_S)
                continue
            await self._wake.wait()

    async def _stand(self) -> None:
        epoch = self._epoch
        node = await self._metadata.get(paths.LEADER_PATH)
        if node is None:
            record = {"serviceUrl": self._url, "brokerId": self._broker_id, "leaderReady": True}
            try:
                await self._metadata.put(paths.LEADER_PATH, json.dumps(record).encode(), MUST_NOT_EXIST, ephemeral=True)
            except BadVersionError:
                self._wake.set()  # somebody was faster, or our own answer was lost: look again
                return
            leads = True
        else:
            leads = node.owner == self._metadata.session_id
        if epoch == self._epoch and not self._resigned:
            self._lead(leads)

    def _lead(self, leads: bool) -> None:
        if leads != self.is_leader:
            self.is_leader = leads
            logger.info("this broker %s", "leads the cluster" if leads else "does not lead the cluster any more")
            self.on_change(leads)
