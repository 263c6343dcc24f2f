"""Keeps a ledger client's directory of bookies like the lists in the metadata: one channel per bookie, made when it is first seen."""

from __future__ import annotations

import random
from types import TracebackType

from magnetar.base.clock import Clock
from magnetar.base.network import Network
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie_watcher import BookieWatcher
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.channel import RemoteBookie
from magnetar.metadata.store import MetadataStore


class RemoteBookies:
    """`async with RemoteBookies(metadata, directory, ...)`: both lists are known when it is entered.

    A bookie that leaves the lists takes no new ledgers; what it holds is still asked for, since it may only have lost its session.
    """

    def __init__(
        self, metadata: MetadataStore, directory: BookieDirectory, network: Network, clock: Clock, rng: random.Random
    ) -> None:
        self._directory = directory
        self._network = network
        self._clock = clock
        self._rng = rng
        self._watcher = BookieWatcher(metadata, self._changed)
        self._scope = TaskScope("connections to bookies")
        self._channels: dict[str, RemoteBookie] = {}
        self._listed: frozenset[str] = frozenset()

    @property
    def writable(self) -> list[str]:
        """Ids of the bookies that take new ledgers, sorted."""
        return self._directory.writable()

    async def __aenter__(self) -> RemoteBookies:
        await self._scope.__aenter__()
        try:
            await self._watcher.__aenter__()
        except BaseException:
            await self._scope.__aexit__(None, None, None)
            raise
        self._changed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._watcher.__aexit__(kind, error, trace)
        for channel in self._channels.values():
            channel.close()
        await self._scope.__aexit__(None, None, None)

    def _changed(self) -> None:
        known, writable = self._watcher.known, self._watcher.writable
        for bookie_id, info in known.items():
            endpoint = info.rpc
            if endpoint is None:
                continue
            channel = self._channels.get(bookie_id)
            if channel is None or channel.address != (endpoint.host, endpoint.port):
                if channel is not None:
                    channel.close()
                channel = self._channels[bookie_id] = RemoteBookie(
                    (endpoint.host, endpoint.port), self._network, self._clock, self._rng, self._scope
                )
            elif bookie_id not in self._listed:
                channel.announce()
            self._directory.register(bookie_id, channel, writable=bookie_id in writable)
        for bookie_id in self._channels.keys() - known.keys():
            self._directory.register(bookie_id, self._channels[bookie_id], writable=False)
        self._listed = frozenset(known)
