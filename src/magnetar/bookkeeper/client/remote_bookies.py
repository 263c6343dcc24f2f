"""Keeps a `BookieDirectory` filled with channels to the bookies that have registered themselves in the cluster's metadata."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Container
from functools import partial
from types import TracebackType

from magnetar.base.clock import Clock
from magnetar.base.network import Network
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie_watcher import BookieWatcher
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.channel.channel import RemoteBookie
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.metadata.store import MetadataStore

_logger = logging.getLogger(__name__)


class RemoteBookies:
    """`async with RemoteBookies(metadata, directory, network, clock, rng):`

    A bookie whose registration is gone takes no new ledgers; while its connection lasts, ledgers that have it are still served. One
    that registers at another address gets a new channel. `local`: ids that this process registers in the directory itself.
    `info_interval_s`: how often bookies are asked for their free space (0: never), for placement by it.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        directory: BookieDirectory,
        network: Network,
        clock: Clock,
        rng: random.Random,
        options: ChannelOptions | None = None,
        *,
        local: Container[str] = (),
        info_interval_s: float = 0.0,
    ) -> None:
        self._directory = directory
        self._network = network
        self._clock = clock
        self._rng = rng
        self._options = options or ChannelOptions()
        self._local = local
        self._info_interval_s = info_interval_s
        self._watcher = BookieWatcher(metadata, self._update)
        self._scope = TaskScope("remote bookies")
        self._channels: dict[str, RemoteBookie] = {}
        self._listed: set[str] = set()

    @property
    def channels(self) -> dict[str, RemoteBookie]:
        """By bookie id; a copy."""
        return dict(self._channels)

    @property
    def watcher(self) -> BookieWatcher:
        """What the bookies have registered."""
        return self._watcher

    async def __aenter__(self) -> RemoteBookies:
        """The directory holds every registered bookie when it returns. Raises MetadataError."""
        await self._scope.__aenter__()
        try:
            await self._watcher.__aenter__()
        except BaseException:
            await self._scope.__aexit__(None, None, None)
            raise
        self._update()
        if self._info_interval_s > 0:
            self._scope.supervise(self._ask_all_for_space, "free space")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._watcher.__aexit__(kind, error, trace)
        finally:
            for bookie_id in list(self._channels):
                self._drop(bookie_id)
            await self._scope.__aexit__(None, None, None)

    def _update(self) -> None:
        writable, known = self._watcher.writable, self._watcher.known
        appeared = known.keys() - self._listed
        for bookie_id, info in known.items():
            endpoint = info.rpc
            if bookie_id in self._local:
                continue
            if endpoint is None:
                _logger.warning("bookie %s registered no address for clients; it is left out", bookie_id)
                continue
            channel = self._channel(bookie_id, (endpoint.host, endpoint.port))
            if bookie_id in appeared:
                channel.announce()
            self._directory.register(bookie_id, channel, writable=bookie_id in writable)
            if bookie_id in appeared and self._info_interval_s > 0:  # one of unknown room would get no ledgers
                self._ask_for_space(bookie_id, channel)
        for bookie_id in self._channels.keys() - known.keys():
            self._leave(bookie_id)
        self._listed = set(known)

    def _channel(self, bookie_id: str, address: tuple[str, int]) -> RemoteBookie:
        channel = self._channels.get(bookie_id)
        if channel is not None and channel.address == address:
            return channel
        if channel is not None:
            channel.close()
        channel = RemoteBookie(address, self._network, self._clock, self._rng, self._scope, self._options)
        self._channels[bookie_id] = channel
        return channel

    def _leave(self, bookie_id: str) -> None:
        channel = self._channels[bookie_id]
        channel.retire()
        if channel.connected:
            self._directory.register(bookie_id, channel, writable=False)
        else:
            self._drop(bookie_id)

    def _drop(self, bookie_id: str) -> None:
        self._directory.unregister(bookie_id)
        self._channels.pop(bookie_id).close()

    async def _ask_all_for_space(self) -> None:
        while True:
            await asyncio.sleep(self._info_interval_s)
            for bookie_id, channel in list(self._channels.items()):
                self._ask_for_space(bookie_id, channel)

    def _ask_for_space(self, bookie_id: str, channel: RemoteBookie) -> None:
        channel.bookie_info(partial(self._note_space, bookie_id))

    def _note_space(self, bookie_id: str, code: int, total_bytes: int, free_bytes: int) -> None:
        if code == ReturnCode.OK and bookie_id in self._channels:
            self._directory.set_free_bytes(bookie_id, free_bytes)
