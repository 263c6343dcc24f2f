"""Producer access modes (PIP-68): Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing; the topic epoch."""

from __future__ import annotations

import threading

import pulsar

from magnetar.testing.server import ServerProcess
from tests.support.messages import ends_at_once, receive_all
from tests.support.raw_client import BaseCommand, RawConnection, message
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

Mode = pulsar.ProducerAccessMode
EXCLUSIVE, WAIT_FOR_EXCLUSIVE, WITH_FENCING = 1, 2, 3
PRODUCER_BUSY, PRODUCER_FENCED = 16, 25


def test_an_exclusive_producer_keeps_others_out(client: pulsar.Client, topic: str) -> None:
    holder = client.create_producer(topic, access_mode=Mode.Exclusive)
    with ends_at_once(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    with ends_at_once(pulsar.ProducerBusy):
        client.create_producer(topic)
    assert holder.send(b"still mine").entry_id() == 0
    holder.close()
    client.create_producer(topic).send(b"free")


def test_exclusive_access_is_refused_while_others_produce(client: pulsar.Client, topic: str) -> None:
    shared = client.create_producer(topic)
    with ends_at_once(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    shared.send(b"x")


def test_fencing_throws_the_holder_out_for_good(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    first = client.create_producer(topic, producer_name="first", access_mode=Mode.Exclusive)
    first.send(b"first")
    second = client.create_producer(topic, producer_name="second", access_mode=Mode.ExclusiveWithFencing)
    second.send(b"second")
    with ends_at_once(pulsar.ProducerFenced, pulsar.AlreadyClosed):
        first.send(b"too late")
    second.send(b"third")
    assert receive_all(consumer, 3) == [b"first", b"second", b"third"]


def test_waiting_producers_get_access_in_the_order_in_which_they_came(server: ServerProcess, topic: str) -> None:
    """PRODUCER_SUCCESS comes twice: not ready at once, ready when it is the producer's turn, with the same request id."""
    with RawConnection(server.port) as holder, RawConnection(server.port) as queue:
        holder.producer(topic, producer_access_mode=EXCLUSIVE)
        waiting = [queue.producer(topic, number, producer_access_mode=WAIT_FOR_EXCLUSIVE) for number in (1, 2)]
        assert [answer.producer_success.producer_ready for answer in waiting] == [False, False]
        assert queue.silent(BaseCommand.PRODUCER_SUCCESS, for_s=0.1)
        assert holder.producer(topic, 2).error.error == PRODUCER_BUSY
        holder.close()
        first = queue.expect(BaseCommand.PRODUCER_SUCCESS)[0].producer_success
        assert (first.request_id, first.producer_ready) == (waiting[0].producer_success.request_id, True)
        assert queue.silent(BaseCommand.PRODUCER_SUCCESS, for_s=0.1)
        queue.publish(message(b"one"), producer_id=1)
        assert queue.receipt().send_receipt.message_id.entryId == 0
        close_producer(queue, 1)
        second = queue.expect(BaseCommand.PRODUCER_SUCCESS)[0].producer_success
        assert (second.request_id, second.producer_ready) == (waiting[1].producer_success.request_id, True)
        assert second.topic_epoch > first.topic_epoch


def test_a_waiting_official_producer_starts_when_the_holder_leaves(client: pulsar.Client, topic: str) -> None:
    holder = client.create_producer(topic, access_mode=Mode.Exclusive)
    created: list[pulsar.Producer] = []
    thread = threading.Thread(
        target=lambda: created.append(client.create_producer(topic, access_mode=Mode.WaitForExclusive)), daemon=True
    )
    thread.start()
    assert holder.send(b"holder").entry_id() == 0
    assert not created
    holder.close()
    wait_until(lambda: created)
    assert created[0].send(b"successor").entry_id() == 1
    thread.join(5)


def test_a_waiting_producer_that_gives_up_leaves_the_queue(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as holder, RawConnection(server.port) as queue:
        holder.producer(topic, producer_access_mode=EXCLUSIVE)
        queue.producer(topic, 1, producer_access_mode=WAIT_FOR_EXCLUSIVE)
        close_producer(queue, 1)
        with RawConnection(server.port) as gone:
            gone.producer(topic, 1, producer_access_mode=WAIT_FOR_EXCLUSIVE)
        last = queue.producer(topic, 2, producer_access_mode=WAIT_FOR_EXCLUSIVE).producer_success
        assert not last.producer_ready
        holder.close()
        ready = queue.expect(BaseCommand.PRODUCER_SUCCESS)[0].producer_success
        assert (ready.request_id, ready.producer_ready) == (last.request_id, True)


def test_fencing_also_throws_out_those_who_wait(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as holder, RawConnection(server.port) as queue, RawConnection(server.port) as raw:
        holder.producer(topic, producer_access_mode=EXCLUSIVE)
        queue.producer(topic, producer_access_mode=WAIT_FOR_EXCLUSIVE)
        assert raw.producer(topic, producer_access_mode=WITH_FENCING).producer_success.producer_ready
        for thrown_out in (holder, queue):
            assert thrown_out.expect(BaseCommand.CLOSE_PRODUCER)[0].close_producer.producer_id == 1


def test_the_topic_epoch_grows_with_each_exclusive_producer_and_survives_a_crash(
    start_server: StartServer, topic: str
) -> None:
    """An old holder that comes back with its epoch must not get in, even after the broker forgot everything else."""
    server = start_server()
    epochs = []
    for _ in range(3):
        with RawConnection(server.port) as raw:
            epochs.append(raw.producer(topic, producer_access_mode=WITH_FENCING).producer_success.topic_epoch)
    assert epochs[0] < epochs[1] < epochs[2]
    server.restart()
    with RawConnection(server.port) as raw:
        stale = raw.producer(topic, producer_access_mode=EXCLUSIVE, topic_epoch=epochs[1])
        assert stale.error.error == PRODUCER_FENCED
        same = raw.producer(topic, producer_access_mode=EXCLUSIVE, topic_epoch=epochs[2])
        assert same.producer_success.topic_epoch == epochs[2]
    with RawConnection(server.port) as raw:
        newcomer = raw.producer(topic, producer_access_mode=WITH_FENCING).producer_success
        assert newcomer.topic_epoch > epochs[2]


def test_an_exclusive_producer_comes_back_after_a_crash_of_the_server(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    server = start_server()
    producer = connect(server.service_url, operation_timeout_seconds=20).create_producer(
        topic, access_mode=Mode.Exclusive
    )
    producer.send(b"before")
    server.restart()
    assert producer.send(b"after").entry_id() >= 0
    with ends_at_once(pulsar.ProducerBusy):
        connect(server.service_url).create_producer(topic)


def close_producer(raw: RawConnection, producer_id: int) -> None:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = raw.next_request_id()
    raw.send(command)
    raw.expect(BaseCommand.SUCCESS)
