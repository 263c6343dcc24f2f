"""The brokers of the cluster: this one's registration, and the list of all of them.

`/loadbalance/brokers/<id>` is ephemeral: it vanishes with its broker's session. Its value is Pulsar's: addresses and load report in
one JSON object.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.base.process_watch import ProcessWatch
from magnetar.broker.namespaces.records import BrokerAddress, broker_fields, parse_broker
from magnetar.broker.namespaces.session_probe import process_fields
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore

logger = logging.getLogger(__name__)


class BrokerDirectory:
    """Reads through a cache that the store's watch keeps true."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._addresses: dict[str, BrokerAddress] = {}
        self._stale: dict[str, int] = {}
        """Nodes that have to be read again, each with the number of its last change: every load report is one."""
        self._all_stale = True
        self._changes = 0
        self._unwatch = metadata.watch(self._changed, paths.BROKERS_PATH)

    def close(self) -> None:
        self._unwatch()

    def _changed(self, path: str) -> None:
        self._changes += 1
        parent, _, name = path.rpartition("/")
        if parent == paths.BROKERS_PATH:
            self._stale[name] = self._changes
        elif path == RESYNC:
            self._all_stale = True

    @property
    def remembered(self) -> list[BrokerAddress]:
        """The addresses as last read, for when the store cannot be read."""
        return list(self._addresses.values())

    async def live(self) -> list[str]:
        """Ids, sorted."""
        return sorted(await self._all())

    async def get(self, broker_id: str) -> BrokerAddress | None:
        return (await self._all()).get(broker_id)

    async def _all(self) -> dict[str, BrokerAddress]:
        while self._all_stale:
            changes = self._changes
            names = await self._metadata.children(paths.BROKERS_PATH)
            if changes == self._changes:  # else what was read may be of before the change
                self._stale.update(dict.fromkeys([*self._addresses, *names], changes))
                self._all_stale = False
        while self._stale:
            name, change = next(iter(self._stale.items()))
            node = await self._metadata.get(paths.broker_path(name))
            if self._stale.get(name) != change:
                continue  # it has changed once more, or somebody else has read it
            del self._stale[name]
            if node is None:
                self._addresses.pop(name, None)
            else:
                self._addresses[name] = parse_broker(node.value)
        return self._addresses


class Registration:
    """This broker's own node: there while it takes bundles."""

    def __init__(self, metadata: MetadataStore, address: BrokerAddress, processes: ProcessWatch) -> None:
        self._metadata = metadata
        self._address = address
        self._processes = processes
        self._report: dict[str, Any] = {"loadReportType": "LocalBrokerData"}
        self.registered = False

    async def register(self) -> None:
        """Create this broker's node. Call it again with a new session: a node of the old one would vanish with it."""
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
        process = process_fields(self._metadata, self._processes)
        value = json.dumps({**broker_fields(self._address), **process, **self._report}).encode()
        await self._metadata.put(paths.broker_path(self._address.broker_id), value, ephemeral=True)
