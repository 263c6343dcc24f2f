"""CONNECT, PING/PONG, keep-alive, and the time a stranger has before it must say who it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.connection.conftest import Raw
from tests.support.raw import ClosedByServer, RawClient, connect_command, send_command
from tests.support.waiting import wait_until

HANDSHAKE_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 2
"""Who is alive has this long to answer, also on a machine that is busy with other things."""


@pytest.mark.parametrize(("asked", "answered"), [(0, 0), (6, 6), (19, 19), (21, 21), (22, 21), (2**31 - 1, 21)])
def test_the_lower_protocol_version_is_agreed(raw: Raw, asked: int, answered: int) -> None:
    connected = raw(connected=False).connect(asked).connected
    assert connected.protocol_version == answered
    assert connected.server_version.startswith("magnetar ")
    assert connected.max_message_size == 5 * 1024 * 1024


def test_features_are_offered_and_none_is_forced(raw: Raw) -> None:
    with_flags = connect_command()
    with_flags.connect.feature_flags.supports_auth_refresh = True
    with_flags.connect.feature_flags.supports_broker_entry_metadata = True
    with_flags.connect.feature_flags.supports_topic_watchers = True
    client = raw(connected=False)
    client.send(with_flags)
    flags = client.expect(BaseCommand.CONNECTED).connected.feature_flags
    assert flags.supports_get_partitioned_metadata_without_auto_creation
    assert not flags.supports_topic_watchers


def test_a_protocol_version_is_optional_and_authentication_data_is_not_needed(raw: Raw) -> None:
    client = raw(connected=False)
    client.connect(auth_method_name="token", auth_data=b"secret")
    client.ping()


def test_ping_is_answered_in_every_state(raw: Raw, topic: str) -> None:
    client = raw(connected=False)
    client.ping()
    client.connect()
    client.ping()
    assert client.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
    client.ping()
    assert client.subscribe(topic).type == BaseCommand.SUCCESS
    client.ping()
    client.flow(1000)
    for sequence_id in range(50):
        client.publish(b"x", sequence_id)
        client.ping()
    client.send(BaseCommand(type=BaseCommand.PONG, pong={}))
    client.ping()


def test_a_second_connect_ends_the_connection(raw: Raw) -> None:
    client = raw()
    client.send(connect_command())
    (said,) = client.closed_within(8)
    assert said.error.error == ServerError.NotAllowedError
    assert said.error.request_id == 2**64 - 1


@pytest.mark.parametrize(
    "command",
    [
        BaseCommand(type=BaseCommand.PRODUCER, producer={"topic": "t", "producer_id": 1, "request_id": 1}),
        BaseCommand(
            type=BaseCommand.SUBSCRIBE,
            subscribe={"topic": "t", "subscription": "s", "subType": "Shared", "consumer_id": 1, "request_id": 1},
        ),
        BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": "t", "request_id": 1}),
        BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 1}),
        BaseCommand(
            type=BaseCommand.GET_TOPICS_OF_NAMESPACE,
            getTopicsOfNamespace={"request_id": 1, "namespace": "public/default"},
        ),
        BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 1}),
        send_command(0),
    ],
    ids=lambda command: BaseCommand.Type.Name(command.type),
)
def test_nothing_is_served_before_connect(raw: Raw, command: BaseCommand) -> None:
    client = raw(connected=False)
    client.send(command)
    said = client.closed_within(8)
    assert [answer.type for answer in said] == [BaseCommand.ERROR]


def test_strangers_have_ten_seconds(raw: Raw) -> None:
    """Silent, dripping a CONNECT byte by byte, or sending PINGs: none of it extends the time."""
    frame = encode_frame(connect_command(client_version="x" * 100).SerializeToString())
    started = time.monotonic()
    silent, dripping, pinging, half_open = (raw(connected=False) for _ in range(4))
    dripping.send_bytes(frame[:20])
    half_open.half_close()
    half_open.closed_within(8)
    position, closed = 20, set[int]()
    while len(closed) < 3 and time.monotonic() - started < HANDSHAKE_TIMEOUT_S + 30:
        for number, client in enumerate((silent, dripping, pinging)):
            if number in closed:
                continue
            try:
                if client is dripping:
                    client.send_bytes(frame[position : position + 1])
                    position += 1
                elif client is pinging:
                    client.send(BaseCommand(type=BaseCommand.PING, ping={}))
                while True:
                    client.receive(0.1)
            except TimeoutError:
                continue
            except ClosedByServer:
                closed.add(number)
                assert time.monotonic() - started >= HANDSHAKE_TIMEOUT_S - 0.5
    assert closed == {0, 1, 2}


def test_keep_alive_finds_the_dead_and_spares_the_quiet(start_server: Callable[..., ServerProcess], topic: str) -> None:
    server = start_server(keepAliveIntervalSeconds=KEEP_ALIVE_S)
    with RawClient(server.port, silent=True) as dead, RawClient(server.port) as quiet:
        dead.connect()
        assert (
            dead.producer(topic, producer_name="mine", user_provided_producer_name=True).type
            == BaseCommand.PRODUCER_SUCCESS
        )
        quiet.connect()
        started = time.monotonic()
        said = []
        closed_after_s = 0.0
        while not closed_after_s or time.monotonic() - started < 3 * KEEP_ALIVE_S:
            assert time.monotonic() - started < 60, "the silent one is never ended"
            with pytest.raises(TimeoutError):
                quiet.receive(0.1)  # its PINGs are answered in there
            if not closed_after_s:
                try:
                    said.append(dead.receive(0.1)[0].type)
                except TimeoutError:
                    continue
                except ClosedByServer:
                    closed_after_s = time.monotonic() - started
        assert said == [BaseCommand.PING]
        assert closed_after_s > 2 * KEEP_ALIVE_S - 0.1
        quiet.ping()
        answer = quiet.producer(topic, producer_name="mine", user_provided_producer_name=True)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS, "the dead client's producer name is free again"


def test_a_crowd_of_idle_connections_costs_little(raw: Raw, server: ServerProcess) -> None:
    clients = [raw() for _ in range(300)]
    for client in clients[::30]:
        client.ping()
    for client in clients:
        client.close()
    wait_until(lambda: raw().producer("crowd").type == BaseCommand.PRODUCER_SUCCESS)
