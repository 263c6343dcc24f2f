"""The one broker that decides where bundles go: whoever has the ephemeral node `/loadbalance/leader`.

While there is no leader, or it does not answer, every broker decides for itself: taking a bundle is a compare-and-set in any case.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from magnetar.base.errors import MetadataError
from magnetar.broker.namespaces.records import decode
from magnetar.metadata import paths
from magnetar.metadata.election import NodeElection
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leader:
    """`ready`: it has read what it decides by."""

    broker_id: str
    service_url: str
    ready: bool


class Leadership(NodeElection):
    """`async with Leadership(...)`. `on_change(leads)` tells of gain and loss."""

    def __init__(self, metadata: MetadataStore, broker_id: str, web_service_url: str) -> None:
        record = {"serviceUrl": web_service_url, "brokerId": broker_id, "leaderReady": True}
        super().__init__(metadata, paths.LEADER_PATH, json.dumps(record).encode())

    async def _entered(self) -> None:
        try:
            await self._stand_once()  # so that there is a leader when the first broker of a cluster is ready
        except MetadataError as error:
            logger.warning("not standing for leader yet: %s", error)

    async def leader(self) -> Leader | None:
        """Whoever leads now."""
        node = await self._metadata.get(paths.LEADER_PATH)
        if node is None:
            return None
        record = decode(node.value)
        service_url = str(record.get("serviceUrl") or "")
        broker_id = str(record.get("brokerId") or service_url.partition("://")[2])
        return Leader(broker_id, service_url, bool(record.get("leaderReady")))

    def _lead(self, leads: bool) -> None:
        if leads != self.is_leader:
            logger.info("this broker %s", "leads the cluster" if leads else "does not lead the cluster any more")
        super()._lead(leads)
