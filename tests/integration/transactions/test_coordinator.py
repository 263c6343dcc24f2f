"""The coordinator as clients find it, its answers, its timeouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from magnetar.admin.client import AdminClient
from magnetar.base.limits import COORDINATOR_WATCHES_PER_CONNECTION_MAX
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError
from tests.support.raw_client import message
from tests.support.raw_transactions import RawTransactions, TransactionRefused
from tests.support.waiting import wait_until

ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"


def test_clients_find_sixteen_coordinators(raw: RawTransactions) -> None:
    assert raw.partitions(ASSIGN).partitionMetadataResponse.partitions == 16
    answer = raw.lookup(f"{ASSIGN}-partition-3").lookupTopicResponse
    assert answer.response == CommandLookupTopicResponse.Connect
    raw.connect_coordinator(15)
    with pytest.raises(TransactionRefused) as refused:
        raw.connect_coordinator(16)
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound


def test_clients_of_pulsar_5_are_told_the_coordinators_and_each_change(
    start_server: Callable[..., ServerProcess], dial: Callable[[ServerProcess], RawTransactions]
) -> None:
    server = start_server()
    raw = dial(server)
    assert raw.connected.feature_flags.supports_tc_metadata_discovery

    def told() -> tuple[int, int, list[int], set[str]]:
        update = raw.expect(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)[0].watchTcAssignmentsUpdate
        found = update.snapshot
        numbers, urls = (
            [each.tc_id for each in found.assignments],
            {each.broker_service_url for each in found.assignments},
        )
        return update.watch_id, found.parallelism, numbers, urls

    raw.send(BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS, watchTcAssignments={"watch_id": 7}))
    assert told() == (7, 16, list(range(16)), {server.service_url})
    with AdminClient(server.http_url) as admin:
        admin.transactions.scale(18)
    assert told() == (7, 18, list(range(18)), {server.service_url})
    raw.connect_coordinator(17)
    raw.send(BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE, watchTcAssignmentsClose={"watch_id": 7}))
    raw.commit(raw.begin(coordinator=17))


def test_a_connection_watches_the_coordinators_few_times(
    start_server: Callable[..., ServerProcess], dial: Callable[[ServerProcess], RawTransactions]
) -> None:
    raw = dial(start_server())
    for number in range(COORDINATOR_WATCHES_PER_CONNECTION_MAX + 1):
        raw.send(BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS, watchTcAssignments={"watch_id": number}))
    answers = [
        raw.expect(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)[0].watchTcAssignmentsUpdate
        for _ in range(COORDINATOR_WATCHES_PER_CONNECTION_MAX + 1)
    ]
    (refused,) = [each for each in answers if not each.HasField("snapshot")]
    assert refused.error == ServerError.NotAllowedError
    assert "close one of them first" in refused.message
    closed = next(each.watch_id for each in answers if each.watch_id != refused.watch_id)
    raw.send(BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE, watchTcAssignmentsClose={"watch_id": closed}))
    raw.send(BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS, watchTcAssignments={"watch_id": 100}))
    assert raw.expect(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)[0].watchTcAssignmentsUpdate.HasField("snapshot")


def test_numbers_belong_to_their_coordinator_and_grow(raw: RawTransactions) -> None:
    first, second = raw.begin(coordinator=5), raw.begin(coordinator=5)
    assert first[0] == second[0] == 5
    assert 0 < first[1] < second[1]


def test_an_ended_transaction_is_not_found(raw: RawTransactions) -> None:
    """The Go client's tests hold this: the second end is answered with TransactionNotFound."""
    for end in (raw.commit, raw.abort):
        txn = raw.begin()
        end(txn)
        with pytest.raises(TransactionRefused) as refused:
            end(txn)
        assert refused.value.code == ServerError.TransactionNotFound


def test_requests_about_unknown_transactions_are_refused(raw: RawTransactions, topic: str) -> None:
    for request in (
        lambda: raw.add_partitions((0, 10**9), topic),
        lambda: raw.add_subscription((0, 10**9), topic, "s"),
        lambda: raw.commit((0, 10**9)),
    ):
        with pytest.raises(TransactionRefused) as refused:
            request()
        assert refused.value.code == ServerError.TransactionNotFound
    with pytest.raises(TransactionRefused) as refused:
        raw.commit((99, 1))
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound


def test_a_missing_topic_or_subscription_is_refused_before_anything_is_sent(raw: RawTransactions, topic: str) -> None:
    txn = raw.begin()
    with pytest.raises(TransactionRefused) as refused:
        raw.add_partitions(txn, topic)
    assert refused.value.code == ServerError.TopicNotFound
    raw.producer(topic)
    with pytest.raises(TransactionRefused) as refused:
        raw.add_subscription(txn, topic, "nobody")
    assert refused.value.code == ServerError.SubscriptionNotFound
    raw.commit(txn)


def test_a_message_of_a_transaction_that_has_not_named_its_topic_is_refused(raw: RawTransactions, topic: str) -> None:
    """Nobody would ever end it there, and the topic would stand still."""
    raw.producer(topic)
    txn = raw.begin()
    answer = raw.publish_in(txn, b"x")
    assert answer.type == BaseCommand.SEND_ERROR
    assert answer.send_error.error == ServerError.NotAllowedError
    raw.commit(txn)
    answer = raw.publish_in(txn, b"x", sequence_id=1)
    assert answer.type == BaseCommand.SEND_ERROR


def test_open_transactions_are_bounded(
    start_server: Callable[..., ServerProcess], dial: Callable[[ServerProcess], RawTransactions]
) -> None:
    raw = dial(start_server(maxActiveTransactionsPerCoordinator=2))
    first, _ = raw.begin(), raw.begin()
    with pytest.raises(TransactionRefused) as refused:
        raw.begin()
    assert refused.value.code == ServerError.TooManyRequests
    raw.abort(first)
    raw.begin()


def test_a_transaction_times_out_and_is_aborted(raw: RawTransactions, topic: str) -> None:
    raw.producer(topic)
    raw.subscribe(topic, "s")
    txn = raw.begin(ttl_ms=2000)
    raw.add_partitions(txn, topic)
    raw.publish_in(txn, b"lost")
    raw.publish(message(b"behind", sequence_id=1), sequence_id=1)
    raw.receipt()
    assert raw.payload() == b"behind"  # not before the abort, and without what it hid
    wait_until(lambda: _is_gone(raw, txn))


@pytest.mark.parametrize("name", ["pulsar/system/__transaction_log_0", "public/default/t-s__transaction_pending_ack"])
def test_the_logs_are_no_topics(raw: RawTransactions, name: str) -> None:
    raw.begin()
    answer = raw.producer(f"persistent://{name}")
    assert answer.error.error == ServerError.NotAllowedError
    assert (
        raw.subscribe(f"persistent://{name}", "s", force_topic_creation=True).error.error == ServerError.NotAllowedError
    )


def test_switched_off_they_are_refused_at_once(
    start_server: Callable[..., ServerProcess], dial: Callable[[ServerProcess], RawTransactions]
) -> None:
    """In the words and the form that clients look for, at the topic where they look for coordinators."""
    raw = dial(start_server(transactionCoordinatorEnabled=False))
    assert raw.partitions(ASSIGN).partitionMetadataResponse.partitions == 16
    connect = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_REQUEST)
    connect.tcClientConnectRequest.request_id, connect.tcClientConnectRequest.tc_id = 1, 0
    begin = BaseCommand(type=BaseCommand.NEW_TXN)
    begin.newTxn.request_id = 2
    for number, command in enumerate((connect, begin), 1):
        raw.send(command)
        answer = raw.expect(BaseCommand.ERROR)[0].error
        assert (answer.request_id, answer.error) == (number, ServerError.NotAllowedError)
        assert answer.message.startswith("Transactions are not enabled")
        assert "transactionCoordinatorEnabled" in answer.message
    assert not raw.connected.feature_flags.supports_tc_metadata_discovery
    raw.send(BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS, watchTcAssignments={"watch_id": 7}))
    refused = raw.expect(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)[0].watchTcAssignmentsUpdate
    assert (refused.watch_id, refused.error) == (7, ServerError.NotAllowedError)
    assert not refused.HasField("snapshot")


def _is_gone(raw: RawTransactions, txn: tuple[int, int]) -> bool:
    try:
        raw.commit(txn)
    except TransactionRefused as refused:
        return refused.code == ServerError.TransactionNotFound
    return False
