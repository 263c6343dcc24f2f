"""The brokers of the cluster: this one's registration, and the list of all of them.

`/loadbalance/brokers/<id>` is ephemeral: whose session is gone is not there. Its value is Pulsar's: addresses and load report in
one JSON object (survey 2.3.2).
"""

from __future__ import annotations

import json
import logging
from typing import Any

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.broker.namespaces.records import BrokerAddress, broker_fields, parse_broker
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore

logger = logging.getLogger(__name__)


class BrokerDirectory:
    """Reads through a cache that the store's watch keeps true."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._addresses: dict[str, BrokerAddress] | None = None
        self._changes = 0
        self._unwatch = metadata.watch(self._changed, paths.BROKERS_PATH)

    def close(self) -> None:
        self._unwatch()

    def _changed(self, path: str) -> None:
        if path == RESYNC or path.startswith(paths.BROKERS_PATH):
            self._changes += 1
            self._addresses = None

    async def live(self) -> list[str]:
        """Ids, sorted."""
        return sorted(await self._all())

    async def get(self, broker_id: str) -> BrokerAddress | None:
        return (await self._all()).get(broker_id)

    async def _all(self) -> dict[str, BrokerAddress]:
        while self._addresses is None:
            changes = self._changes
            found: dict[str, BrokerAddress] = {}
            for broker_id in await self._metadata.children(paths.BROKERS_PATH):
                node = await self._metadata.get(paths.broker_path(broker_id))
                if node is not None:
                    found[broker_id] = parse_broker(node.value)
            if changes == self._changes:  # else what was read may be of before the change
                self._addresses = found
        return self._addresses


class Registration:
    """This broker's own node: there while it takes bundles."""

    def __init__(self, metadata: MetadataStore, address: BrokerAddress) -> None:
        self._metadata = metadata
        self._address = address
        self._report: dict[str, Any] = {"loadReportType": "LocalBrokerData"}
        self.registered = False

    async def register(self) -> None:
        """Also to be called again with a new session: a node of the old one would vanish with it."""
        path = paths.broker_path(self._address.broker_id)
        node = await self._metadata.get(path)
        if node is not None and node.owner != self._metadata.session_id:
            try:
                await self._metadata.delete(path, node.version)
            except (NodeNotFoundError, BadVersionError):
                logger.info("an old registration has just gone")
        await self._write()
        self.registered = True

    async def withdraw(self) -> None:
        """No more bundles come here."""
        self.registered = False
        try:
            await self._metadata.delete(paths.broker_path(self._address.broker_id))
        except NodeNotFoundError:
            return

    async def report(self, load: dict[str, Any]) -> None:
        """Replace the load report, the part of the node that is not addresses. Nothing is written while it is not registered."""
        self._report = load
        if self.registered:
            await self._write()

    async def _write(self) -> None:
        value = json.dumps({**broker_fields(self._address), **self._report}).encode()
        await self._metadata.put(paths.broker_path(self._address.broker_id), value, ephemeral=True)
