"""The replicator of a segment: it sends to the segments of the same scalable topic in another cluster, whose layout may be another one.

A segment is sent once everything in its ancestors has arrived, so the order of each key is kept across splits here. When the layout
there changes, everything begins anew from the cursor: what sealed segments have stored is asked of them (`segment_parts`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from magnetar.base.errors import ClientError, MagnetarError
from magnetar.broker.naming import TopicName
from magnetar.broker.replicators import names
from magnetar.broker.replicators.link import Link
from magnetar.broker.replicators.remote_clusters import TopicMismatchError
from magnetar.broker.replicators.replicator import Replicator
from magnetar.broker.replicators.segment_parts import Target, parts_of
from magnetar.client.client import RemoteClient
from magnetar.client.connection import ClientConnection
from magnetar.client.errors import RequestRefusedError, UnreachableError
from magnetar.client.producer import RemoteProducer
from magnetar.client.scalable.layout import Layout
from magnetar.wire.pulsar import client_commands, commands
from magnetar.wire.pulsar.client_commands import SchemaDefinition
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError

logger = logging.getLogger(__name__)

LAYOUT_TIMEOUT_S: Final = 30.0
"""How long the other cluster may take to tell the layout of a topic; then it counts as unreachable."""

ANCESTORS_FIRST_S: Final = 0.05
ANCESTORS_LONGEST_S: Final = 1.0
"""Pauses between looks at the ancestors of a segment that waits for its turn."""

_session_ids = itertools.count(1)


class LayoutChangedError(ClientError):
    """The other cluster has split or merged segments: their producers are made anew."""

    slug = "layout-changed"


class RemoteLayout:
    """The layout of a topic in another cluster, followed until `close`. `on_end` is called once when it is another one, or not known."""

    def __init__(self, connection: ClientConnection, topic: str, on_end: Callable[[MagnetarError], None]) -> None:
        self._connection = connection
        self._topic = topic
        self._on_end = on_end
        self._session_id = next(_session_ids)
        self._first: asyncio.Future[Layout] = asyncio.get_running_loop().create_future()
        self._known: frozenset[int] | None = None
        self._ended = False

    async def first(self) -> Layout:
        """Raises ClientError."""
        self._connection.layouts[self._session_id] = self
        self._connection.write(commands.frame(client_commands.scalable_lookup(self._topic, self._session_id, True)))
        try:
            async with asyncio.timeout(LAYOUT_TIMEOUT_S):
                return await self._first
        except TimeoutError:
            raise UnreachableError(
                f"{self._connection.address} did not tell the layout of {self._topic} within {LAYOUT_TIMEOUT_S:.0f} s"
            ) from None

    def pushed(self, command: BaseCommand) -> None:
        update = command.scalableTopicUpdate
        if update.HasField("error"):
            self.end(RequestRefusedError(update.error, update.message))
            return
        layout = Layout.of(update)
        active = frozenset(each.id for each in layout.active)
        if not self._first.done():
            self._known = active
            self._first.set_result(layout)
        elif active != self._known:
            self.end(LayoutChangedError(f"{self._topic} was split or merged there"))

    def end(self, error: MagnetarError) -> None:
        if not self._first.done():
            self._first.set_exception(error)
            self._first.exception()
        elif not self._ended:
            self._ended = True
            self._on_end(error)

    def close(self) -> None:
        self._ended = True
        connection = self._connection
        if connection.layouts.pop(self._session_id, None) is not None and not connection.closed:
            connection.write(commands.frame(client_commands.scalable_close(self._session_id)))


class _Entry:
    """One that was sent. `left`: receipts that it waits for."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0


class SegmentOutlet:
    """Implements `Outlet` and `OutletConnection`: producers in all active segments of a topic there. `on_receipt` is called for each entry,
    in the order of `send`, when all its parts are stored; `on_end` once."""

    def __init__(
        self, source_segment: int, on_receipt: Callable[[int, int], None], on_end: Callable[[MagnetarError], None]
    ) -> None:
        self._source_segment = source_segment
        self._on_receipt = on_receipt
        self._on_end = on_end
        self._producers: dict[int, RemoteProducer] = {}
        self._sent: dict[int, deque[_Entry]] = {}
        self._pending: deque[_Entry] = deque()
        self._target: Target | None = None
        self._layout: RemoteLayout | None = None
        self._ended = False

    async def open(self, client: RemoteClient, topic: str, name: str, about: Mapping[str, str]) -> None:
        """Raises ClientError."""
        connection = await client.broker_of(topic)
        self._layout = RemoteLayout(connection, topic, self._end)
        layout = await self._layout.first()
        if layout.classic or not layout.active:
            raise TopicMismatchError(
                f"{topic} is a scalable topic here and a classic one there; migrate it there, or delete one of the two"
            )
        stored = {}
        for segment in layout.segments.values():
            if not segment.active and not segment.classic:
                place = await self._last_place(client, segment.topic, name)
                if place is not None:
                    stored[segment.id] = place
        for segment in layout.active:
            sent = self._sent[segment.id] = deque()
            receipt = self._receipts_of(sent)
            self._producers[segment.id] = await client.open_producer(segment.topic, name, about, receipt, self._end)
        self._target = Target(layout, stored)

    async def _last_place(self, client: RemoteClient, topic: str, name: str) -> tuple[int, int] | None:
        try:
            return await client.last_place(topic, name)
        except RequestRefusedError as error:
            if error.code == ServerError.TopicNotFound:
                return None  # deleted meanwhile
            raise

    def _receipts_of(self, sent: deque[_Entry]) -> Callable[[int, int], None]:
        def receipt(ledger_id: int, entry_id: int) -> None:
            sent.popleft().left -= 1
            self._settle()

        return receipt

    def _settle(self) -> None:
        while self._pending and not self._pending[0].left:
            self._pending.popleft()
            self._on_receipt(-1, -1)

    def _end(self, error: MagnetarError) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(error)

    async def close(self) -> None:
        """Raises the first error of a producer that could not be closed, once all have been told."""
        self._ended = True
        if self._layout is not None:
            self._layout.close()
        producers, self._producers = list(self._producers.values()), {}
        outcomes = await asyncio.gather(*(each.close() for each in producers), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    @property
    def some_segment(self) -> str:
        """The name of an active segment there."""
        return next(each.topic for each in self._producers.values())

    # ---- What a link does

    @property
    def connection(self) -> SegmentOutlet:
        return self

    @property
    def address(self) -> str:
        """Of all brokers."""
        return ", ".join(sorted({each.connection.address for each in self._producers.values()}))

    @property
    def writable(self) -> bool:
        return all(each.connection.writable for each in self._producers.values())

    @property
    def message_bytes_max(self) -> int:
        return min((each.connection.message_bytes_max for each in self._producers.values()), default=0)

    def when_writable(self, callback: Callable[[], None]) -> None:
        full = [each.connection for each in self._producers.values() if not each.connection.writable]
        full[0].when_writable(callback) if full else callback()

    def send(
        self,
        data: bytes,
        sequence_id: int,
        highest_sequence_id: int = 0,
        num_messages: int = 1,
        is_chunk: bool = False,
        marker: bool = False,
    ) -> None:
        if self._ended:
            return
        assert self._target is not None, "open was called"
        entry = _Entry()
        self._pending.append(entry)
        parts = [] if marker else parts_of(data, self._source_segment, self._target)
        entry.left = len(parts)
        for part in parts:
            self._sent[part.segment_id].append(entry)
            self._producers[part.segment_id].send(
                part.data, part.sequence_id, part.highest_sequence_id, part.num_messages, is_chunk
            )
        self._settle()


class SegmentReplicator(Replicator):
    """Made by `ReplicatorSet` for a segment."""

    _some_segment = ""
    """The name of an active one there."""

    @property
    def _whole(self) -> TopicName:
        return self.topic.partitioned_name

    async def _prepare(self, client: RemoteClient) -> None:
        """Until it is this segment's turn."""
        pause_s = ANCESTORS_FIRST_S
        while not await self._service.ancestors_sent(self.topic, self.remote):
            await self._clusters.pause(pause_s)
            pause_s = min(2 * pause_s, ANCESTORS_LONGEST_S)

    async def _open_producer(self, client: RemoteClient, link: Link) -> SegmentOutlet:
        try:
            return await self._opened(client, link)
        except RequestRefusedError as error:
            create = self._clusters.config.create_topic_to_remote_cluster_for_replication
            if error.code != ServerError.TopicNotFound or not create:
                raise
        await self._service.create(self.remote, self._whole)
        return await self._opened(client, link)

    async def _opened(self, client: RemoteClient, link: Link) -> SegmentOutlet:
        segment_id = int(self.topic.local_name.rpartition("-")[2])
        name = names.producer_name(self._clusters.local, self.remote, segment_id)
        outlet = SegmentOutlet(segment_id, link.receipt, link.failed)
        try:
            await outlet.open(client, str(self._whole), name, await self._about())
        except BaseException:
            try:
                await outlet.close()
            except MagnetarError as error:
                logger.info("producers not closed topic=%s cluster=%s error=%s", self.topic, self.remote, error)
            raise
        self._some_segment = outlet.some_segment
        return outlet

    async def _schema_there(self, client: RemoteClient, schema: SchemaDefinition) -> bytes:
        """All segments share the topic's."""
        return await client.schema_version(self._some_segment, schema)
