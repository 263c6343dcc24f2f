"""The entry point of an application: one client, from which producers and consumers are made."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final, TypeVar

from magnetar.base.clock import SystemClock
from magnetar.base.errors import InvalidArgumentError
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.client.client import Endpoint, RemoteClient, service_addresses
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.client.scalable.consumers import QUEUE_MESSAGES, CheckpointConsumer, QueueConsumer, StreamConsumer
from magnetar.client.scalable.context import ClientContext
from magnetar.client.scalable.messages import EARLIEST, Checkpoint
from magnetar.client.scalable.producer import Producer
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType

CLIENT_VERSION: Final = "magnetar-scalable"

M = TypeVar("M", Producer, QueueConsumer, StreamConsumer, CheckpointConsumer)


class Client:
    """An asyncio client of scalable topics (`topic://`), which works on classic topics as well.

    Used with `async with`. Its methods connect, and return what they made when it is ready to be used.
    """

    def __init__(
        self,
        service_url: str = "pulsar://127.0.0.1:6650",
        *,
        token: str = "",
        credentials: Credentials | None = None,
        trust: TlsTrust | None = None,
    ) -> None:
        """`token`: the token, or file:///PATH of a file that holds it. `credentials`: for other kinds of authentication.
        Raises ConfigError for a URL that is not one."""
        service_addresses(service_url)
        if credentials is None:
            credentials = Credentials("token", {"token": token}) if token else Credentials()
        self._scope = TaskScope("client")
        remote = RemoteClient(Endpoint(service_url, credentials, trust or TlsTrust()), AsyncioNetwork(), CLIENT_VERSION)
        self._context = ClientContext(remote, SystemClock(), self._scope)
        self._made: list[Producer | QueueConsumer | StreamConsumer | CheckpointConsumer] = []

    async def producer(
        self,
        topic: str,
        *,
        name: str = "",
        properties: Mapping[str, str] | None = None,
        batching: bool = True,
        compression: str = "none",
        send_timeout_s: float = 30.0,
        pending_max: int = 10_000,
        low_bits: bool = False,
    ) -> Producer:
        """`compression`: none, lz4, zlib, zstd or snappy. `low_bits`: route as clients of 5.0.0-M1, where such ones produce to the topic.
        Raises ClientError."""
        codec = CompressionType.Value(compression.upper()) if compression.upper() in CompressionType.keys() else None  # noqa: SIM118
        if codec is None:
            raise InvalidArgumentError(f"compression must be none, lz4, zlib, zstd or snappy, not {compression!r}")
        made = Producer(
            self._context,
            topic,
            name=name,
            properties=properties,
            batching=batching,
            codec=codec,
            send_timeout_s=send_timeout_s,
            pending_max=pending_max,
            low_bits=low_bits,
        )
        return await self._opened(made)

    async def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        name: str = "",
        earliest: bool = False,
        redelivery_delay_s: float = 60.0,
        queue_messages: int = QUEUE_MESSAGES,
        replicated: bool = False,
    ) -> QueueConsumer:
        """`earliest`: a new subscription begins with the oldest message instead of the next one. `replicated`: its place follows it to the
        topic's other clusters. Raises ClientError."""
        made = QueueConsumer(
            self._context,
            topic,
            subscription,
            name=name,
            earliest=earliest,
            redelivery_delay_s=redelivery_delay_s,
            queue_messages=queue_messages,
            replicated=replicated,
        )
        return await self._opened(made)

    async def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        name: str = "",
        earliest: bool = False,
        queue_messages: int = QUEUE_MESSAGES,
        replicated: bool = False,
    ) -> StreamConsumer:
        """`replicated`: its place follows it, as for a queue.

        `name`: under which the consumer gets its segments back after it lost its connection. Raises ClientError, and
        InvalidArgumentError for a topic that is not scalable."""
        made = StreamConsumer(
            self._context,
            topic,
            subscription,
            name=name,
            earliest=earliest,
            queue_messages=queue_messages,
            replicated=replicated,
        )
        return await self._opened(made)

    async def checkpoint_consumer(
        self, topic: str, start: Checkpoint = EARLIEST, *, queue_messages: int = QUEUE_MESSAGES
    ) -> CheckpointConsumer:
        """`start`: EARLIEST, LATEST, or a checkpoint of before. Raises ClientError."""
        made = CheckpointConsumer(self._context, topic, start, queue_messages=queue_messages)
        return await self._opened(made)

    async def __aenter__(self) -> Client:
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes all that it made; messages of producers are sent before."""
        try:
            made, self._made = self._made, []
            for each in made:
                await each.close()
        finally:
            await self._context.remote.close()
            await self._scope.__aexit__(kind, error, trace)

    async def _opened(self, made: M) -> M:
        self._made = [each for each in self._made if not each.closed]
        try:
            await made.opened()
        except BaseException:
            await made.close()
            raise
        self._made.append(made)
        return made
