"""Another cluster as a client sees it: connections to its brokers, lookups, producers, schemas. Shared by all that talk to it."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from magnetar.base.errors import ConfigError, MagnetarError
from magnetar.base.network import Network
from magnetar.client.connection import ClientConnection
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.client.errors import RequestRefusedError, UnreachableError
from magnetar.client.producer import RemoteProducer
from magnetar.wire.pulsar import client_commands
from magnetar.wire.pulsar.client_commands import SchemaDefinition
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)

CONNECT_TIMEOUT_S = 10.0
"""Time-out of the TCP and TLS handshakes; then the address counts as unreachable."""

REDIRECTS_MAX = 20
"""Redirects that one lookup follows, as in Pulsar's clients; then it fails."""

_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a cluster is reached. `service_url`: pulsar://host:port,host:port, or pulsar+ssl://."""

    service_url: str
    credentials: Credentials = field(default_factory=Credentials)
    trust: TlsTrust = field(default_factory=TlsTrust)

    @property
    def tls(self) -> bool:
        return self.service_url.startswith("pulsar+ssl://")


class RemoteClient:
    """`close()` ends its connections and with them its producers."""

    connection_class: type[ClientConnection] = ClientConnection

    def __init__(self, endpoint: Endpoint, network: Network, client_version: str) -> None:
        self.endpoint = endpoint
        self._network = network
        self._version = client_version
        self._connections: dict[tuple[str, str], ClientConnection] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}
        self._producer_ids = itertools.count(1)
        self._context: ssl.SSLContext | None = None
        self._closed = False

    async def partitions(self, topic: str, create: bool = False) -> int:
        """0 for a topic without partitions, and for one that does not exist. Raises ClientError."""
        connection = await self._service()
        request_id = connection.next_request_id()
        command = client_commands.partition_metadata(topic, request_id, create)
        answer = (await connection.request(command, request_id)).partitionMetadataResponse
        if answer.response == CommandPartitionedTopicMetadataResponse.Failed:
            if answer.error == ServerError.TopicNotFound and not create:
                return 0
            raise RequestRefusedError(answer.error, answer.message)
        return answer.partitions

    async def open_producer(
        self,
        topic: str,
        name: str,
        properties: Mapping[str, str],
        on_receipt: Callable[[int, int], None],
        on_end: Callable[[MagnetarError], None],
    ) -> RemoteProducer:
        """On the broker that serves the topic, which creates it if it may. Raises ClientError."""
        connection = await self.broker_of(topic)
        producer = RemoteProducer(connection, next(self._producer_ids), topic, name, on_receipt, on_end)
        connection.producers[producer.producer_id] = producer
        request_id = connection.next_request_id()
        command = client_commands.producer(topic, producer.producer_id, request_id, name, properties)
        try:
            await connection.request(
                command, request_id, undo=partial(client_commands.close_producer, producer.producer_id)
            )
        except BaseException:
            producer.ended = True
            connection.producers.pop(producer.producer_id, None)
            raise
        return producer

    async def last_place(self, topic: str, name: str) -> tuple[int, int] | None:
        """The last place of the log of replicator `name`, ledger and entry, that a terminated topic has stored; None if it has nothing.

        Raises ClientError.
        """
        connection = await self.broker_of(topic)
        producer_id, request_id = next(self._producer_ids), connection.next_request_id()
        asks = {client_commands.LAST_SEQUENCE_METADATA: "true"}
        undo = partial(client_commands.close_producer, producer_id)
        command = client_commands.producer(topic, producer_id, request_id, name, asks)
        answer = (await connection.request(command, request_id, undo=undo)).producer_success
        return (answer.last_sequence_id, answer.topic_epoch) if answer.HasField("topic_epoch") else None

    async def schema_version(self, topic: str, schema: SchemaDefinition) -> bytes:
        """The version under which the topic keeps the schema there, added if it is new. Raises ClientError."""
        connection = await self.broker_of(topic)
        request_id = connection.next_request_id()
        command = client_commands.get_or_create_schema(topic, request_id, schema)
        answer = (await connection.request(command, request_id)).getOrCreateSchemaResponse
        if answer.HasField("error_code"):
            raise RequestRefusedError(answer.error_code, answer.error_message)
        return answer.schema_version

    async def close(self) -> None:
        self._closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    # ---- Finding a broker

    async def broker_of(self, topic: str) -> ClientConnection:
        """A connection to the broker that serves the topic. Raises ClientError."""
        connection, authoritative = await self._service(), False
        for _ in range(REDIRECTS_MAX):
            request_id = connection.next_request_id()
            command = client_commands.lookup(topic, request_id, authoritative)
            answer = (await connection.request(command, request_id)).lookupTopicResponse
            if answer.response == CommandLookupTopicResponse.Failed:
                raise RequestRefusedError(answer.error, answer.message)
            url = (answer.brokerServiceUrlTls if self.endpoint.tls else "") or answer.brokerServiceUrl
            if answer.response == CommandLookupTopicResponse.Connect:
                if answer.proxy_through_service_url:
                    return await self._service(proxy_to=_address(url))
                return await self._connection(_address(url))
            authoritative = answer.authoritative
            connection = await self._connection(_address(url))
        raise UnreachableError(f"the lookup of {topic} was redirected more than {REDIRECTS_MAX} times")

    async def at(self, url: str) -> ClientConnection:
        """A connection to the broker with this service URL. Raises ClientError, ConfigError."""
        return await self._connection(_address(url))

    async def _service(self, proxy_to: str = "") -> ClientConnection:
        """The first of the service URL's addresses that answers. Raises what the last of them raised."""
        failure: MagnetarError | None = None
        for address in service_addresses(self.endpoint.service_url):
            try:
                return await self._connection(address, proxy_to)
            except UnreachableError as error:
                failure = error
        assert failure is not None, "a service URL has at least one address"
        raise failure

    async def _connection(self, address: str, proxy_to: str = "") -> ClientConnection:
        key = (address, proxy_to)
        async with self._opening.setdefault(key, asyncio.Lock()):
            known = self._connections.get(key)
            if known is not None and not known.closed:
                return known
            connection = await self._connect(address, proxy_to)
            if self._closed:
                connection.close()
                raise UnreachableError("the client was closed")
            self._connections[key] = connection
            return connection

    async def _connect(self, address: str, proxy_to: str) -> ClientConnection:
        host, _, port = address.rpartition(":")
        connection = self.connection_class(address)
        try:
            await self._network.connect(
                host.strip("[]"), int(port), lambda: connection, self._tls(), timeout_s=CONNECT_TIMEOUT_S
            )
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"cannot connect to {address}: {error or 'no answer'}") from None
        try:
            await connection.handshake(self._version, self.endpoint.credentials, proxy_to)
        except BaseException:
            connection.close()
            raise
        return connection

    def _tls(self) -> ssl.SSLContext | None:
        if not self.endpoint.tls:
            return None
        if self._context is None:
            self._context = self.endpoint.trust.context(self.endpoint.credentials.certificate())
        return self._context


def service_addresses(url: str) -> list[str]:
    """host:port of each broker in a service URL. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _PORTS or not rest.strip("/"):
        raise ConfigError(f"{url!r} is not a service URL; write pulsar://host:port or pulsar+ssl://host:port")
    return [_with_port(part.strip().rstrip("/"), _PORTS[scheme]) for part in rest.split(",")]


def _with_port(address: str, port: int) -> str:
    parsed = urlsplit(f"//{address}")
    try:
        return address if parsed.port is not None else f"{address}:{port}"
    except ValueError:
        raise ConfigError(f"{address!r} is not an address; write host:port") from None


def _address(url: str) -> str:
    return service_addresses(url)[0]
