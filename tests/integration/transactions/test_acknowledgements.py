"""Acknowledgements within transactions: held until the end, one transaction for a message, delivered again after an abort."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe, MessageIdData, ServerError
from tests.integration.admin.conftest import Api
from tests.integration.transactions.test_messages import KINDS, path_of, publish
from tests.support.raw_client import batch, message, split
from tests.support.raw_transactions import RawTransactions, TransactionRefused, Txn

Dial = Callable[[ServerProcess], RawTransactions]
SHARING = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)


def begin(raw: RawTransactions, topic: str, *subscriptions: str) -> Txn:
    txn = raw.begin()
    for subscription in subscriptions:
        raw.add_subscription(txn, topic, subscription)
    return txn


def take(raw: RawTransactions, count: int) -> list[tuple[MessageIdData, bytes]]:
    taken = []
    for _ in range(count):
        command, data = raw.message()
        taken.append((command.message.message_id, split(data)[1]))
    return taken


def backlog(api: Api, topic: str, subscription: str = "s") -> int:
    return int(api.get(f"{path_of(topic)}/stats")["subscriptions"][subscription]["msgBacklog"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_acknowledges(raw: RawTransactions, api: Api, topic: str, kind: int) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", kind)
    for number in range(3):
        publish(raw, b"%d" % number, number)
    ids = [each for each, _ in take(raw, 3)]
    txn = begin(raw, topic, "s")
    raw.ack_in(txn, *ids[:2])
    assert backlog(api, topic) == 3
    raw.close_consumer()
    raw.subscribe(topic, "s", kind)
    assert take(raw, 1)[0][1] == b"2", "what an open transaction has acknowledged is not delivered again"
    raw.commit(txn)
    assert backlog(api, topic) == 1
    raw.close_consumer()
    raw.subscribe(topic, "s", kind)
    assert take(raw, 1)[0][1] == b"2"
    assert raw.no_message()


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_delivers_again(raw: RawTransactions, topic: str, kind: int) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", kind)
    for number in range(4):
        publish(raw, b"%d" % number, number)
    ids = [each for each, _ in take(raw, 4)]
    raw.ack(ids[3])
    txn = begin(raw, topic, "s")
    raw.ack_in(txn, ids[0], ids[2])
    raw.abort(txn)
    again = sorted(payload for _, payload in take(raw, 2 if kind in SHARING else 3))
    # Exclusive and Failover go back to the first unacknowledged message, as with any redelivery
    assert again == ([b"0", b"2"] if kind in SHARING else [b"0", b"1", b"2"])
    assert raw.no_message()


def test_an_abort_before_the_messages_were_read_again_delivers_them_once(raw: RawTransactions, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Shared)
    for number in range(3):
        publish(raw, b"%d" % number, number)
    ids = [each for each, _ in take(raw, 3)]
    txn = begin(raw, topic, "s")
    raw.ack_in(txn, ids[1])
    raw.close_consumer()
    raw.subscribe(topic, "s", CommandSubscribe.Shared, permits=0)
    raw.abort(txn)
    raw.flow(10)
    assert sorted(payload for _, payload in take(raw, 3)) == [b"0", b"1", b"2"]
    assert raw.no_message()


def test_two_transactions_cannot_acknowledge_one_message(raw: RawTransactions, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Shared)
    publish(raw, b"x", 0)
    publish(raw, b"y", 1)
    (first, _), (second, _) = take(raw, 2)
    one, two = begin(raw, topic, "s"), begin(raw, topic, "s")
    raw.ack_in(one, first)
    raw.ack_in(one, first)  # a repetition is none
    with pytest.raises(TransactionRefused) as refused:
        raw.ack_in(two, second, first)
    assert refused.value.code == ServerError.TransactionConflict
    raw.ack_in(two, second)  # nothing of the refused one has stayed
    raw.commit(one)
    with pytest.raises(TransactionRefused) as refused:
        raw.ack_in(two, first)
    assert refused.value.code == ServerError.TransactionConflict
    raw.commit(two)


def test_cumulative_acknowledgements_are_one_transactions(raw: RawTransactions, api: Api, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Exclusive)
    for number in range(5):
        publish(raw, b"%d" % number, number)
    ids = [each for each, _ in take(raw, 5)]
    one, two = begin(raw, topic, "s"), begin(raw, topic, "s")
    raw.ack_in(one, ids[1], cumulative=True)
    raw.ack_in(one, ids[2], cumulative=True)
    for refused_ack in ({"cumulative": True}, {}):
        with pytest.raises(TransactionRefused) as refused:
            raw.ack_in(two, ids[1], **refused_ack)
        assert refused.value.code == ServerError.TransactionConflict
    raw.ack_in(two, ids[4])
    raw.commit(one)
    assert backlog(api, topic) == 2
    raw.commit(two)
    assert backlog(api, topic) == 1
    three = begin(raw, topic, "s")
    with pytest.raises(TransactionRefused):
        raw.ack_in(three, ids[2], cumulative=True)
    raw.ack_in(three, ids[3], cumulative=True)
    raw.commit(three)
    assert backlog(api, topic) == 0


def test_an_abort_after_the_subscription_became_a_shared_one(raw: RawTransactions, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Exclusive)
    for number in range(4):
        publish(raw, b"%d" % number, number)
    ids = [each for each, _ in take(raw, 4)]
    txn = begin(raw, topic, "s")
    raw.ack_in(txn, ids[2], cumulative=True)
    raw.close_consumer()
    raw.subscribe(topic, "s", CommandSubscribe.Shared)
    assert take(raw, 1)[0][1] == b"3"
    assert raw.no_message()
    raw.abort(txn)
    assert sorted(payload for _, payload in take(raw, 3)) == [b"0", b"1", b"2"]
    assert raw.no_message()


@pytest.mark.parametrize("kind", SHARING)
def test_messages_of_a_batch_count_for_themselves(raw: RawTransactions, api: Api, topic: str, kind: int) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", kind)
    payloads = [b"a", b"b", b"c"]
    raw.publish(message(batch(payloads), num_messages_in_batch=3), num_messages=3)
    raw.receipt()
    identifier = raw.message()[0].message.message_id
    one, two = begin(raw, topic, "s"), begin(raw, topic, "s")
    raw.ack_in(one, identifier, ack_set=[0b110], batch_size=3)
    raw.ack_in(two, identifier, ack_set=[0b101], batch_size=3)
    with pytest.raises(TransactionRefused) as refused:
        raw.ack_in(two, identifier, ack_set=[0b100], batch_size=3)
    assert refused.value.code == ServerError.TransactionConflict
    raw.ack_in(one, identifier, ack_set=[0b011], batch_size=3)
    assert raw.no_message()
    raw.abort(two)
    command, _ = raw.message()
    assert list(command.message.ack_set) == [0b010], "the other transaction still holds the others"
    raw.commit(one)
    raw.ack(identifier, ack_sets=[[0b101]])
    assert backlog(api, topic) == 0


def test_two_subscriptions_and_a_topic_in_one_transaction(raw: RawTransactions, api: Api, topic: str) -> None:
    source, target = f"{topic}-source", f"{topic}-target"
    raw.producer(source, 1)
    raw.producer(target, 2)
    raw.subscribe(source, "s", CommandSubscribe.Exclusive, consumer_id=1)
    raw.subscribe(source, "t", CommandSubscribe.Shared, consumer_id=2)
    raw.subscribe(target, "s", CommandSubscribe.Exclusive, consumer_id=3)
    publish(raw, b"in", 0)
    got = {}
    for _ in range(2):
        command, _ = raw.message()
        got[command.message.consumer_id] = command.message.message_id
    txn = begin(raw, source, "s", "t")
    raw.add_partitions(txn, target)
    raw.ack_in(txn, got[1], consumer_id=1)
    raw.ack_in(txn, got[2], consumer_id=2)
    raw.publish_in(txn, b"out", producer_id=2)
    raw.commit(txn)
    assert raw.payload() == b"out"
    assert [backlog(api, source, "s"), backlog(api, source, "t")] == [0, 0]


def test_what_has_not_been_named_is_not_acknowledged(raw: RawTransactions, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Shared)
    publish(raw, b"x", 0)
    identifier = raw.message()[0].message.message_id
    txn = raw.begin()
    with pytest.raises(TransactionRefused) as refused:
        raw.ack_in(txn, identifier)
    assert refused.value.code == ServerError.TransactionNotFound
    raw.add_subscription(txn, topic, "s")
    with pytest.raises(TransactionRefused) as refused:
        raw.ack_in(txn, identifier, cumulative=True)
    assert refused.value.code == ServerError.NotAllowedError
    raw.ack_in(txn, identifier)
    raw.commit(txn)


def test_a_deleted_subscription_or_topic_does_not_hold_up_a_commit(raw: RawTransactions, api: Api, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Shared)
    publish(raw, b"x", 0)
    identifier = raw.message()[0].message.message_id
    txn = begin(raw, topic, "s")
    raw.add_partitions(txn, topic)
    raw.ack_in(txn, identifier)
    raw.close_consumer()
    api.call("DELETE", f"{path_of(topic)}/subscription/s", status=204)
    api.call("DELETE", f"{path_of(topic)}?force=true", status=204)
    raw.commit(txn)
    listed = api.get("persistent/public/default")
    assert not [name for name in listed if topic in name], "the log of pending acknowledgements went with it"
    assert raw.expect(BaseCommand.CLOSE_PRODUCER)
