"""Messages of transactions: unseen until the commit, in order with all others, never seen after an abort."""

from __future__ import annotations

import pulsar
import pytest

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe
from tests.integration.admin.conftest import Api
from tests.support.raw_client import message
from tests.support.raw_transactions import RawTransactions, Txn
from tests.support.waiting import wait_until


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


KINDS = [
    CommandSubscribe.Exclusive,
    CommandSubscribe.Shared,
    CommandSubscribe.Failover,
    CommandSubscribe.Key_Shared,
]


def begin(raw: RawTransactions, *topics: str, ttl_ms: int = 60_000) -> Txn:
    txn = raw.begin(ttl_ms)
    raw.add_partitions(txn, *topics)
    return txn


def publish(raw: RawTransactions, payload: bytes, sequence_id: int, producer_id: int = 1) -> None:
    raw.publish(message(payload, sequence_id=sequence_id), producer_id=producer_id, sequence_id=sequence_id)
    assert raw.receipt().type == BaseCommand.SEND_RECEIPT


@pytest.mark.parametrize("kind", KINDS)
def test_committed_messages_come_in_the_order_of_the_log(raw: RawTransactions, topic: str, kind: int) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", kind)
    publish(raw, b"before", 0)
    assert raw.payload() == b"before"
    txn = begin(raw, topic)
    assert raw.publish_in(txn, b"inside", sequence_id=1).type == BaseCommand.SEND_RECEIPT
    publish(raw, b"behind", 2)
    assert raw.no_message()
    raw.commit(txn)
    assert [raw.payload(), raw.payload()] == [b"inside", b"behind"]
    publish(raw, b"after", 3)
    assert raw.payload() == b"after"


@pytest.mark.parametrize("kind", KINDS)
def test_aborted_messages_never_come(raw: RawTransactions, topic: str, kind: int) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", kind, earliest=True)
    txn, other = begin(raw, topic), begin(raw, topic)
    raw.publish_in(txn, b"aborted", sequence_id=0)
    raw.publish_in(other, b"committed", sequence_id=1)
    raw.publish_in(txn, b"aborted", sequence_id=2)
    publish(raw, b"plain", 3)
    raw.commit(other)
    assert raw.no_message(), "everything behind the first entry of an open transaction waits"
    raw.abort(txn)
    assert [raw.payload(), raw.payload()] == [b"committed", b"plain"]
    assert raw.no_message()
    late = f"late-{kind}"
    raw.subscribe(topic, late, kind, consumer_id=2, permits=2)  # permits for what is there: hidden entries cost none
    assert [raw.payload(), raw.payload()] == [b"committed", b"plain"]


def test_a_batch_and_the_form_of_the_go_client(raw: RawTransactions, topic: str) -> None:
    """The Go client names the transaction in the command alone; it is stored with the message all the same."""
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Exclusive)
    aborted, committed = begin(raw, topic), begin(raw, topic)
    raw.publish_in(aborted, b"no", sequence_id=0, in_metadata=False)
    raw.publish_batch_in(committed, [b"one", b"two"], sequence_id=1)
    raw.publish_in(committed, b"three", sequence_id=2, in_metadata=False)
    raw.abort(aborted)
    raw.commit(committed)
    command, data = raw.message()
    assert b"one" in data
    assert b"two" in data
    assert command.message.message_id.entryId == 1
    assert raw.payload() == b"three"


def test_one_transaction_over_three_topics(raw: RawTransactions, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for number, name in enumerate(topics):
        raw.producer(name, number)
        raw.subscribe(name, "s", CommandSubscribe.Exclusive, consumer_id=number)
    for commit in (False, True):
        txn = begin(raw, *topics)
        for number in range(3):
            raw.publish_in(txn, b"%d" % commit, producer_id=number, sequence_id=int(commit))
        assert raw.no_message()
        (raw.commit if commit else raw.abort)(txn)
    assert [raw.payload() for _ in topics] == [b"1"] * 3
    assert raw.no_message()


def test_readers_know_the_last_message_that_they_may_see(
    raw: RawTransactions, client: pulsar.Client, topic: str
) -> None:
    """A marker, an aborted or an open message as the last one would leave has_message_available true for ever."""
    raw.producer(topic)
    publish(raw, b"seen", 0)
    aborted = begin(raw, topic)
    raw.publish_in(aborted, b"aborted", sequence_id=1)
    raw.abort(aborted)
    still_open = begin(raw, topic)
    raw.publish_in(still_open, b"open", sequence_id=2)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(30_000).data() == b"seen"
    assert not reader.has_message_available()
    raw.commit(still_open)
    assert reader.has_message_available()
    assert reader.read_next(30_000).data() == b"open"
    assert not reader.has_message_available()


def test_the_official_client_consumes_what_was_committed(
    raw: RawTransactions, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    raw.producer(topic)
    for number in range(20):
        txn = begin(raw, topic)
        raw.publish_in(txn, b"%d" % number, sequence_id=number)
        (raw.abort if number % 2 else raw.commit)(txn)
    received = [consumer.receive(30_000) for _ in range(10)]
    assert [each.data() for each in received] == [b"%d" % number for number in range(0, 20, 2)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)


def test_markers_and_what_is_hidden_are_no_backlog(raw: RawTransactions, api: Api, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Exclusive, permits=0)

    def backlog() -> int:
        return int(api.get(f"{path_of(topic)}/stats")["subscriptions"]["s"]["msgBacklog"])

    aborted, committed = begin(raw, topic), begin(raw, topic)
    for number in range(5):
        raw.publish_in(aborted, b"no", sequence_id=2 * number)
        raw.publish_in(committed, b"yes", sequence_id=2 * number + 1)
    assert backlog() == 0
    raw.commit(committed)
    assert backlog() == 5
    raw.abort(aborted)
    assert backlog() == 5
    stats = api.get(f"{path_of(topic)}/stats")
    assert (stats["ongoingTxnCount"], stats["abortedTxnCount"], stats["committedTxnCount"]) == (0, 1, 1)


def test_compaction_stops_before_open_messages_and_drops_aborted_ones(
    raw: RawTransactions, api: Api, client: pulsar.Client, topic: str
) -> None:
    raw.producer(topic)
    sequence = iter(range(100))

    def keyed(payload: bytes, txn: Txn | None = None) -> None:
        number = next(sequence)
        named = {} if txn is None else {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
        raw.publish(message(payload, sequence_id=number, partition_key="k", **named), sequence_id=number, **named)
        assert raw.receipt().type == BaseCommand.SEND_RECEIPT

    keyed(b"first")
    aborted = begin(raw, topic)
    keyed(b"aborted", aborted)
    raw.abort(aborted)
    still_open = begin(raw, topic)
    keyed(b"open", still_open)
    api.put(f"{path_of(topic)}/compaction")
    wait_until(lambda: api.get(f"{path_of(topic)}/compaction")["status"] == "SUCCESS")
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(30_000).data() == b"first"
    raw.commit(still_open)
    assert reader.read_next(30_000).data() == b"open"


def test_skipping_and_clearing_leave_open_messages(raw: RawTransactions, api: Api, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s", CommandSubscribe.Exclusive, permits=0)
    txn = begin(raw, topic)
    raw.publish_in(txn, b"open", sequence_id=0)
    api.post(f"{path_of(topic)}/subscription/s/skip_all")
    raw.commit(txn)
    raw.flow(10)
    assert raw.payload() == b"open"


def test_a_topic_with_an_open_transaction_is_not_terminated(raw: RawTransactions, api: Api, topic: str) -> None:
    raw.producer(topic)
    txn = begin(raw, topic)
    raw.publish_in(txn, b"open", sequence_id=0)
    api.post(f"{path_of(topic)}/terminate", status=412)
    raw.commit(txn)
    api.post(f"{path_of(topic)}/terminate", status=200)


def test_a_topic_with_an_open_transaction_is_not_migrated(raw: RawTransactions, api: Api, topic: str) -> None:
    """What had begun is taken back: the topic is a classic one as before, and can be migrated once the transaction has ended."""
    route = f"{path_of(topic).replace('persistent', 'scalable', 1)}/migrate?force=true"
    raw.producer(topic)
    txn = begin(raw, topic)
    raw.publish_in(txn, b"open", sequence_id=0)
    api.post(route, status=412)
    raw.publish_in(txn, b"again", sequence_id=1)
    raw.commit(txn)
    api.post(route)
    api.post(route, status=409)


def test_forged_transaction_ids_and_markers_are_refused(raw: RawTransactions, topic: str) -> None:
    """What names a transaction in its metadata must name the same in its frame; clients write no markers into one."""
    raw.producer(topic)
    txn = begin(raw, topic)
    data = message(b"x", txnid_most_bits=txn[0], txnid_least_bits=txn[1])
    raw.publish(data)
    assert raw.receipt().type == BaseCommand.SEND_ERROR
    data = message(b"", txnid_most_bits=txn[0], txnid_least_bits=txn[1], marker_type=22)
    raw.publish(data, txnid_most_bits=txn[0], txnid_least_bits=txn[1])
    assert raw.receipt().type == BaseCommand.SEND_ERROR
