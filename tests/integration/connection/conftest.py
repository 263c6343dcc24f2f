"""After every test here the server must be as good as before: for a newcomer, for a bystander, in memory and in its log."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.headers import payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.process import MIB, cpu_seconds, open_files, resident_bytes
from tests.support.raw import RawClient
from tests.support.waiting import wait_until

GROWTH_MAX_BYTES = 30 * MIB
"""Six messages of the largest size: the allocator keeps four or five of their buffers, by chance."""
NEWCOMER_TIMEOUT_S = 8.0
"""Less than any time-out of the server that a newcomer could be made to wait for."""
NEWCOMER_CPU_S = 0.5
"""Of the server, a hundred times what serving one takes: this holds on a machine that is busy with other things, too."""
DESCRIPTORS_LEFT_MAX = 5

_numbers = itertools.count()

Raw = Callable[..., RawClient]


class Bystander:
    """An official client that was there before, and must notice nothing: its messages arrive over unbroken connections."""

    def __init__(self, url: str) -> None:
        self._client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._consumer = self._client.subscribe("bystander", "sub")
        self._producer = self._client.create_producer("bystander")
        self._sent = 0

    def check(self) -> None:
        assert self._producer.is_connected()
        assert self._consumer.is_connected()
        started = time.monotonic()
        payload = f"message {self._sent}".encode()
        self._sent += 1
        self._producer.send(payload)
        message = self._consumer.receive(30_000)
        assert message.data() == payload
        assert message.redelivery_count() == 0, "the bystander's connection was broken in between"
        self._consumer.acknowledge(message)
        assert time.monotonic() - started < NEWCOMER_TIMEOUT_S

    def close(self) -> None:
        self._client.close()


def check_newcomer(server: ServerProcess) -> None:
    """A new client connects, publishes, receives and acknowledges, in time and at little cost."""
    started, used = time.monotonic(), cpu_seconds(server.pid)
    topic = f"newcomer-{next(_numbers)}"
    with RawClient(server.port) as client:
        client.connect()
        assert client.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
        assert client.subscribe(topic).type == BaseCommand.SUCCESS
        client.flow(10)
        assert client.publish(b"hello").type == BaseCommand.SEND_RECEIPT
        command, rest = client.message()
        assert payload_of(rest) == b"hello"
        identifier = command.message.message_id
        answer = client.ack([(identifier.ledgerId, identifier.entryId)])
        assert answer is not None
        assert not answer.ackResponse.HasField("error")
    assert time.monotonic() - started < NEWCOMER_TIMEOUT_S
    assert cpu_seconds(server.pid) - used < NEWCOMER_CPU_S


def check_log(log: str) -> None:
    assert "Traceback" not in log, log[-4000:]


@pytest.fixture(scope="module")
def bystander(server: ServerProcess) -> Iterator[Bystander]:
    client = Bystander(server.service_url)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def unharmed(server: ServerProcess, bystander: Bystander) -> Iterator[None]:
    """What the module's docstring says."""
    check_newcomer(server)
    resident = resident_bytes(server.pid)
    descriptors = open_files(server.pid)
    read = len(server.log())
    yield
    check_newcomer(server)
    bystander.check()
    check_log(server.log()[read:])
    grown = resident_bytes(server.pid) - resident
    assert grown < GROWTH_MAX_BYTES, f"{grown / MIB:.1f} MiB more resident memory"
    wait_until(lambda: open_files(server.pid) <= descriptors + DESCRIPTORS_LEFT_MAX, 60, "connections are gone")


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[Raw]:
    """`raw()`: a client that has shaken hands; `raw(connected=False)`: one that has not. Closed after the test."""
    clients: list[RawClient] = []

    def open_client(port: int = 0, *, connected: bool = True, **options: Any) -> RawClient:
        client = RawClient(port or server.port, **options)
        clients.append(client)
        if connected:
            client.connect()
        return client

    yield open_client
    for client in clients:
        client.close()
