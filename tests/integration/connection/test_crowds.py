"""Many connections at once: idle ones cost little, too many are turned away, and those who were there notice nothing."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import requests

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.integration.connection.conftest import check_newcomer
from tests.support.process import cpu_seconds, resident_bytes
from tests.support.raw import RawClient
from tests.support.waiting import wait_until

IDLE = 10_000
BYTES_EACH_MAX = 16 * 1024
CONNECT = encode_frame(
    BaseCommand(
        type=BaseCommand.CONNECT, connect={"client_version": "idle", "protocol_version": 19}
    ).SerializeToString()
)


Start = Callable[..., ServerProcess]


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds the other end of every connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < IDLE + 1000:
        pytest.skip(f"the system allows {hard} open files, {IDLE} connections need more")  # the limit is the machine's
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def metric(server: ServerProcess, name: str) -> float:
    text = requests.get(f"{server.http_url}/metrics", timeout=60).text
    return float(next(line for line in text.splitlines() if line.startswith(name + "{")).rpartition(" ")[2])


def refused(port: int) -> bool:
    """Whether a new connection is closed before anything is said on it."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(CONNECT)
            return connection.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True


def test_ten_thousand_idle_connections(start_server: Start, many_files: None) -> None:
    """Half of them have shaken hands, half say nothing at all; neighbours are served at once, before, meanwhile and after."""
    server = start_server()
    check_newcomer(server)
    before = resident_bytes(server.pid)
    with ExitStack() as stack:
        for number in range(IDLE):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            if number % 2:
                connection.sendall(CONNECT)
        wait_until(lambda: metric(server, "pulsar_active_connections") >= IDLE // 2, 60)
        check_newcomer(server)
        grown = resident_bytes(server.pid) - before
        assert grown < IDLE * BYTES_EACH_MAX, f"{grown / IDLE:.0f} bytes for each connection"
        # Those that said nothing are gone after the ten seconds a stranger has; the others stay and cost next to nothing.
        wait_until(lambda: metric(server, "pulsar_active_connections") <= IDLE // 2 + 10, 60)
        used = cpu_seconds(server.pid)
        check_newcomer(server)
        assert cpu_seconds(server.pid) - used < 1.0
    wait_until(lambda: metric(server, "pulsar_active_connections") < 10, 60)
    check_newcomer(server)
    assert "Traceback" not in server.log()


def test_more_than_allowed_are_turned_away(start_server: Start, topic: str) -> None:
    server = start_server(brokerMaxConnections=20)
    with RawClient(server.port) as there:
        there.connect()
        assert there.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
        others = [RawClient(server.port) for _ in range(19)]
        for other in others:
            other.connect()
        for _ in range(50):
            assert refused(server.port)
        assert there.publish(b"still here").type == BaseCommand.SEND_RECEIPT
        assert metric(server, "pulsar_broker_refused_connections_total") == 50
        assert server.log().count("connection refused") == 1
        others.pop().close()
        wait_until(lambda: not refused(server.port))
        for other in others:
            other.close()


def test_one_address_does_not_take_all(start_server: Start) -> None:
    server = start_server(brokerMaxConnectionsPerIp=3)
    clients = [RawClient(server.port) for _ in range(3)]
    for client in clients:
        client.connect()
    assert refused(server.port)
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.settimeout(30)
        other.connect(("127.0.0.1", server.port))
        other.sendall(CONNECT)
        assert other.recv(4)
    for client in clients:
        client.close()
