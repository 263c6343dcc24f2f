"""Key_Shared: a key belongs to one consumer at a time, and its order holds whoever comes, leaves, dies or nacks."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterable, Iterator

import pulsar
import pytest

from magnetar.hashing.murmur3 import key_slot
from magnetar.testing.server import ServerProcess
from tests.support.messages import (
    RECEIVE_TIMEOUT_MS,
    ends_at_once,
    nothing_arrives,
    patient,
    receive_all,
    send_all,
    shares_of,
    take,
)
from tests.support.raw_client import BaseCommand, RawConnection, message, split
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

KeyShared = pulsar.ConsumerType.KeyShared
KEY_SHARED = 3
KEYS = [f"key-{index}" for index in range(40)]


@pytest.fixture(scope="module", params=["auto-split", "consistent-hashing"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Both ways in which the broker itself spreads keys."""
    consistent = str(request.param == "consistent-hashing").lower()
    process = ServerProcess(
        tmp_path_factory.mktemp("key-shared") / "data", {"subscriptionKeySharedUseConsistentHashing": consistent}
    ).start()
    yield process
    process.close()


class Ledger:
    """What each consumer got: judges order per key and that nothing is lost."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = {}
        self.owners: dict[str, list[str]] = {}

    def add(self, consumer: str, received: pulsar.Message) -> None:
        key = received.partition_key()
        self.by_key.setdefault(key, []).append(int(received.data()))
        owners = self.owners.setdefault(key, [])
        if not owners or owners[-1] != consumer:
            owners.append(consumer)

    def first_deliveries(self, key: str) -> list[int]:
        return list(dict.fromkeys(self.by_key.get(key, [])))


def publish(client: pulsar.Client, topic: str, numbers: Iterable[int], keys: list[str] = KEYS) -> None:
    """Number n goes to key n mod len(keys)."""
    producer = client.create_producer(topic, max_pending_messages=10_000)
    results: list[pulsar.Result] = []
    for number in numbers:
        key = keys[number % len(keys)]
        producer.send_async(b"%d" % number, lambda result, _: results.append(result), partition_key=key)
    producer.flush()
    producer.close()
    assert set(results) == {pulsar.Result.Ok}


def collect(ledger: Ledger, consumers: dict[str, pulsar.Consumer], at_least: int = 0, quiet_ms: int = 200) -> int:
    """Receive and acknowledge from all in turn until nothing comes any more; the ledger shall hold `at_least` so many."""
    total, until_s = 0, time.monotonic() + RECEIVE_TIMEOUT_MS / 1000
    while True:
        count = 0
        for name, consumer in consumers.items():
            while True:
                try:
                    received = consumer.receive(patient(quiet_ms) if not count else 1)
                except pulsar.Timeout:
                    break
                ledger.add(name, received)
                consumer.acknowledge(received)
                count += 1
        held = sum(len(values) for values in ledger.by_key.values())
        if not count and (held >= at_least or time.monotonic() > until_s):
            return total
        total += count


def test_each_key_has_one_consumer_and_its_order(client: pulsar.Client, topic: str) -> None:
    consumers = {
        f"c{index}": client.subscribe(topic, "sub", KeyShared, consumer_name=f"c{index}") for index in range(4)
    }
    publish(client, topic, range(2000))
    ledger = Ledger()
    assert collect(ledger, consumers, at_least=2000) == 2000
    for index, key in enumerate(KEYS):
        assert ledger.by_key[key] == list(range(index, 2000, len(KEYS)))
        assert len(ledger.owners[key]) == 1
    assert len({owners[0] for owners in ledger.owners.values()}) == 4


def test_the_ordering_key_wins_over_the_partition_key(client: pulsar.Client, topic: str) -> None:
    consumers = {
        f"c{index}": client.subscribe(topic, "sub", KeyShared, consumer_name=f"c{index}") for index in range(3)
    }
    producer = client.create_producer(topic)
    for number in range(120):
        producer.send_async(b"%d" % number, None, partition_key=str(number), ordering_key=f"order-{number % 6}")
    producer.flush()
    owners: dict[str, set[str]] = {}
    for name, share in zip(consumers, shares_of(list(consumers.values()), 120), strict=True):
        for received in share:
            owners.setdefault(received.ordering_key(), set()).add(name)
    assert len(owners) == 6
    assert all(len(names) == 1 for names in owners.values())


def test_messages_without_a_key_are_spread(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "sub", KeyShared) for _ in range(3)]
    send_all(client.create_producer(topic), [b"%d" % index for index in range(300)])
    shares = [len(share) for share in shares_of(consumers, 300)]
    assert sum(shares) == 300
    assert min(shares) > 20


def test_order_holds_over_joins_and_leaves(client: pulsar.Client, topic: str) -> None:
    rng = random.Random(7)
    ledger = Ledger()
    consumers = {"c0": client.subscribe(topic, "sub", KeyShared, consumer_name="c0", receiver_queue_size=20)}
    sent = 0
    for step in range(1, 9):
        publish(client, topic, range(sent, sent + 400))
        sent += 400
        for name, consumer in consumers.items():
            for received in take(consumer, rng.randrange(10), ack=False) if step % 2 else []:
                ledger.add(name, received)
                consumer.acknowledge(received)
        if step % 3 and len(consumers) < 4:
            name = f"c{step}"
            consumers[name] = client.subscribe(topic, "sub", KeyShared, consumer_name=name, receiver_queue_size=20)
        elif len(consumers) > 1:
            consumers.pop(rng.choice(sorted(consumers))).close()
    collect(ledger, consumers, at_least=sent)
    for index, key in enumerate(KEYS):
        assert ledger.by_key[key] == list(range(index, sent, len(KEYS))), key


def test_a_moved_key_waits_for_its_old_owner_and_no_other_key_does(server: ServerProcess, topic: str) -> None:
    """The old owner holds one message of every key. A newcomer takes over some: those wait until the old one acknowledges."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", KEY_SHARED, consumer_id=1, consumer_name="old")
        for number, key in enumerate(KEYS):
            raw.publish(message(b"%d" % number, sequence_id=number, partition_key=key), sequence_id=number)
        held = {split(data)[0].partition_key: command for command, data in (raw.message() for _ in KEYS)}
        raw.subscribe(topic, "sub", KEY_SHARED, consumer_id=2, consumer_name="new")
        for number, key in enumerate(KEYS, len(KEYS)):
            raw.publish(message(b"%d" % number, sequence_id=number, partition_key=key), sequence_id=number)
        stay = received_until_quiet(raw)
        assert stay
        assert {consumer_id for consumer_id, _, _ in stay} == {1}
        kept = {key for _, key, _ in stay}
        moved = [key for key in KEYS if key not in kept]
        assert moved
        for key in moved:  # one key after the other is set free
            assert raw.ack(held[key].message.message_id, consumer_id=1) is not None
            command, data = raw.message()
            assert (command.message.consumer_id, split(data)[0].partition_key) == (2, key)
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.1)
        raw.publish(message(b"new", sequence_id=99, partition_key=moved[0]), sequence_id=99)
        assert raw.message()[0].message.consumer_id == 2


def received_until_quiet(raw: RawConnection) -> list[tuple[int, str, bytes]]:
    found = []
    while True:
        try:
            command, data = raw.message(patient(300) / 1000)
        except TimeoutError:
            return found
        metadata, payload = split(data)
        found.append((command.message.consumer_id, metadata.partition_key, payload))


def test_what_a_crashed_owner_held_comes_first_at_its_heirs(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    heirs = {"h0": client.subscribe(topic, "sub", KeyShared, consumer_name="h0")}
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", KEY_SHARED, consumer_name="doomed")
        publish(client, topic, range(800))
        raw.message()
        ledger = Ledger()
        collect(ledger, heirs)
    collect(ledger, heirs, at_least=800)
    for index, key in enumerate(KEYS):
        assert ledger.by_key[key] == list(range(index, 800, len(KEYS))), key


def test_nacked_messages_keep_their_key_in_order(client: pulsar.Client, topic: str) -> None:
    """First deliveries of a key are in order, and each redelivery comes before anything newer of its key is repeated."""
    consumers = {
        f"c{index}": client.subscribe(
            topic, "sub", KeyShared, consumer_name=f"c{index}", negative_ack_redelivery_delay_ms=50
        )
        for index in range(2)
    }
    publish(client, topic, range(200))
    rng = random.Random(5)
    ledger = Ledger()
    acknowledged: set[int] = set()

    def step() -> bool:
        for name, consumer in consumers.items():
            try:
                received = consumer.receive(20)
            except pulsar.Timeout:
                continue
            ledger.add(name, received)
            if rng.random() < 0.2:
                consumer.negative_acknowledge(received)
            else:
                consumer.acknowledge(received)
                acknowledged.add(int(received.data()))
        return len(acknowledged) == 200

    wait_until(step, 60)
    for index, key in enumerate(KEYS):
        assert ledger.first_deliveries(key) == list(range(index, 200, len(KEYS))), key


def test_a_consumer_without_permits_stalls_its_own_keys_alone(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", KEY_SHARED, consumer_id=1, consumer_name="frozen", permits=0)
        raw.subscribe(topic, "sub", KEY_SHARED, consumer_id=2, consumer_name="live", permits=100_000)
        count = 3000
        for number in range(count):
            key = KEYS[number % len(KEYS)]
            raw.publish(message(b"%d" % number, sequence_id=number, partition_key=key), sequence_id=number)
        live = received_until_quiet(raw)
        own_keys = {key for _, key, _ in live}
        assert {consumer_id for consumer_id, _, _ in live} == {2}
        assert 0 < len(own_keys) < len(KEYS)
        for key in own_keys:
            index = KEYS.index(key)
            assert [int(payload) for _, its, payload in live if its == key] == list(range(index, count, len(KEYS)))
        raw.flow(count, consumer_id=1)
        rest = received_until_quiet(raw)
        assert len(live) + len(rest) == count
        assert {key for _, key, _ in rest} == set(KEYS) - own_keys


def test_the_wire_order_of_a_base64_key_is_that_of_its_bytes(server: ServerProcess, topic: str) -> None:
    """A binary key is flagged as base64: it belongs where its bytes belong, next to ordering keys with the same bytes."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        for consumer_id in range(1, 5):
            raw.subscribe(topic, "sub", KEY_SHARED, consumer_id=consumer_id, consumer_name=f"c{consumer_id}")
        for number, key in enumerate((b"alpha", b"beta", b"gamma", b"delta", b"epsilon")):
            encoded = base64.b64encode(key).decode()
            raw.publish(message(b"", partition_key=encoded, partition_key_b64_encoded=True), sequence_id=number)
            raw.publish(message(b"", ordering_key=key), sequence_id=number)
            raw.publish(message(b"", partition_key=key.decode()), sequence_id=number)
            assert len({raw.message()[0].message.consumer_id for _ in range(3)}) == 1


class TestSticky:
    """Consumers name their ranges themselves."""

    def test_keys_go_where_their_hash_falls(self, client: pulsar.Client, topic: str) -> None:
        low, high = (subscribe_sticky(client, topic, [part]) for part in ((0, 32767), (32768, 65535)))
        publish(client, topic, range(400))
        expected_low = [n for n in range(400) if key_slot(KEYS[n % len(KEYS)].encode()) <= 32767]
        assert 0 < len(expected_low) < 400
        assert [int(payload) for payload in receive_all(low, len(expected_low))] == expected_low
        assert len(receive_all(high, 400 - len(expected_low))) == 400 - len(expected_low)

    @pytest.mark.parametrize("ranges", [[(0, 0)], [(65535, 65535)], [(100, 200)], [(90, 110)], [(0, 65535)]], ids=str)
    def test_overlaps_are_refused_at_once(
        self, client: pulsar.Client, topic: str, ranges: list[tuple[int, int]]
    ) -> None:
        first = subscribe_sticky(client, topic, [(0, 100), (200, 65535)])
        with ends_at_once(pulsar.ConsumerAssignError):
            subscribe_sticky(client, topic, ranges)
        subscribe_sticky(client, topic, [(101, 199)])
        first.close()
        subscribe_sticky(client, topic, [(0, 100)])

    def test_hashes_that_nobody_owns_wait_for_their_owner(self, client: pulsar.Client, topic: str) -> None:
        low = subscribe_sticky(client, topic, [(0, 32767)])
        publish(client, topic, range(200))
        expected_low = [n for n in range(200) if key_slot(KEYS[n % len(KEYS)].encode()) <= 32767]
        assert [int(payload) for payload in receive_all(low, len(expected_low))] == expected_low
        assert nothing_arrives(low)
        high = subscribe_sticky(client, topic, [(32768, 65535)])
        assert len(receive_all(high, 200 - len(expected_low))) == 200 - len(expected_low)

    def test_modes_do_not_mix(self, client: pulsar.Client, topic: str) -> None:
        subscribe_sticky(client, topic, [(0, 65535)])
        with ends_at_once(pulsar.ConsumerBusy, pulsar.ConsumerAssignError):
            client.subscribe(topic, "sub", KeyShared)

    @pytest.mark.parametrize("ranges", [[], [(5, 3)], [(0, 65536)], [(-1, 5)], [(0, 10), (5, 20)]], ids=str)
    def test_malformed_ranges_are_refused(
        self, server: ServerProcess, topic: str, ranges: list[tuple[int, int]]
    ) -> None:
        """The official client checks them itself; others may not."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription, subscribe.consumer_id = topic, "sub", 1
        subscribe.subType = KEY_SHARED
        subscribe.keySharedMeta.keySharedMode = 1
        for start, end in ranges:
            subscribe.keySharedMeta.hashRanges.add(start=start, end=end)
        with RawConnection(server.port) as raw:
            subscribe.request_id = raw.next_request_id()
            raw.send(command)
            assert raw.expect(BaseCommand.ERROR, BaseCommand.SUCCESS)[0].error.error == 19  # ConsumerAssignError


def subscribe_sticky(client: pulsar.Client, topic: str, ranges: list[tuple[int, int]]) -> pulsar.Consumer:
    policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, ranges)
    return client.subscribe(topic, "sub", KeyShared, key_shared_policy=policy)


def test_order_over_crashes_of_the_server(start_server: StartServer, connect: Connect, topic: str) -> None:
    """The clients reconnect by themselves; what was acknowledged before a receipt may come again, but never out of order."""
    server = start_server()
    client = connect(server.service_url, operation_timeout_seconds=30)
    consumers = {
        f"c{index}": client.subscribe(topic, "sub", KeyShared, consumer_name=f"c{index}") for index in range(3)
    }
    publish(client, topic, range(2000))
    ledger = Ledger()
    for name, consumer in consumers.items():
        for received in take(consumer, 100, ack=False):
            ledger.add(name, received)
            consumer.acknowledge(received)
    server.restart()

    def all_there() -> bool:
        collect(ledger, consumers, quiet_ms=50)
        return sum(len(ledger.first_deliveries(key)) for key in KEYS) == 2000

    wait_until(all_there, 60)
    for index, key in enumerate(KEYS):
        assert ledger.first_deliveries(key) == list(range(index, 2000, len(KEYS))), key
