"""Transactions of roles: who may open them, how many, for how long, and that nobody uses another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.security.conftest import Secured, grant, start
from tests.support.raw_client import message
from tests.support.raw_transactions import RawTransactions, TransactionRefused
from tests.support.tokens import token
from tests.support.waiting import wait_until

TOPIC = "persistent://t/ns/one"
PER_ROLE, PER_COORDINATOR = 20, 50
HOUR_MS = 3_600_000

Dial = Callable[[str], RawTransactions]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    server = start(
        tmp_path_factory.mktemp("limited"),
        maxActiveTransactionsPerRole=PER_ROLE,
        maxActiveTransactionsPerCoordinator=PER_COORDINATOR,
        maxTransactionTimeoutInSeconds=3600,
    )
    grant(server)
    server.admin("POST", "namespaces/t/ns/permissions/rival", ["produce", "consume"])
    yield server
    log = server.process.log()
    server.process.close()
    assert "Traceback" not in log


@pytest.fixture
def dial(limited: Secured) -> Iterator[Dial]:
    """`dial(role)`: another connection."""
    opened: list[RawTransactions] = []

    def open_one(role: str) -> RawTransactions:
        opened.append(RawTransactions(limited.process.port, token=token(role)))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


def refusal(call: Callable[[], object]) -> int:
    with pytest.raises(TransactionRefused) as refused:
        call()
    return refused.value.code


def test_a_role_without_a_grant_opens_none(dial: Dial) -> None:
    assert refusal(lambda: dial("stranger").begin()) == ServerError.AuthorizationError
    for role in ("producer", "consumer", "topic-role", "tenant-admin", "root"):
        client = dial(role)
        client.abort(client.begin())


def test_a_new_grant_holds_at_once(limited: Secured, dial: Dial) -> None:
    """However short a time ago somebody without one asked."""
    client = dial("newcomer")
    assert refusal(client.begin) == ServerError.AuthorizationError
    limited.admin("POST", "persistent/t/ns/two/permissions/newcomer", ["consume"])
    client.abort(client.begin())


@pytest.mark.parametrize("ttl_ms", [2**62, 2**63 - 1, HOUR_MS + 1])
def test_a_timeout_beyond_the_longest_is_refused(dial: Dial, ttl_ms: int) -> None:
    client = dial("producer")
    assert refusal(lambda: client.begin(ttl_ms)) == ServerError.NotAllowedError
    client.abort(client.begin(HOUR_MS))


def test_a_flood_of_one_role_leaves_room_for_others(limited: Secured, dial: Dial) -> None:
    flood, other = dial("rival"), dial("producer")
    opened = [flood.begin(HOUR_MS, coordinator=3) for _ in range(PER_ROLE)]
    for _ in range(100):
        assert refusal(lambda: flood.begin(coordinator=3)) == ServerError.TooManyRequests
    other.commit(other.begin(coordinator=3))
    flood.abort(opened.pop())
    opened.append(flood.begin(coordinator=3))
    assert refusal(lambda: flood.begin(coordinator=3)) == ServerError.TooManyRequests
    limited.process.restart()
    flood = dial("rival")
    assert refusal(lambda: flood.begin(coordinator=3)) == ServerError.TooManyRequests
    for txn in opened:
        flood.abort(txn)
    flood.abort(flood.begin(coordinator=3))


def test_a_timeout_frees_the_bound(dial: Dial) -> None:
    client = dial("consumer")
    for _ in range(PER_ROLE):
        client.begin(500, coordinator=4)

    def opens() -> bool:
        try:
            client.abort(client.begin(coordinator=4))
        except TransactionRefused as refused:
            if refused.code != ServerError.TooManyRequests:
                raise
            return False
        return True

    wait_until(opens, 60, "the transactions timed out")


def test_the_transaction_of_another_role_takes_nothing(dial: Dial) -> None:
    """Messages, acknowledgements, topics, subscriptions, an end: from a role that may do all of that in its own."""
    owner, rival, superuser = dial("topic-role"), dial("rival"), dial("root")
    assert owner.producer(TOPIC).type == BaseCommand.PRODUCER_SUCCESS
    owner.subscribe(TOPIC, "sub")
    owner.publish(message(b"before"), sequence_id=0)
    owner.receipt()
    position = owner.message()[0].message.message_id
    txn = owner.begin()
    owner.add_partitions(txn, TOPIC)
    owner.add_subscription(txn, TOPIC, "sub")

    rival.producer(TOPIC)
    rival.subscribe(TOPIC, "sub", permits=0)
    refused = rival.publish_in(txn, b"slipped in")
    assert refused.type == BaseCommand.SEND_ERROR
    assert refused.send_error.error == ServerError.NotAllowedError
    assert "another role" in refused.send_error.message
    assert refusal(lambda: rival.ack_in(txn, position)) == ServerError.TransactionNotFound
    assert refusal(lambda: rival.add_partitions(txn, TOPIC)) == ServerError.AuthorizationError
    assert refusal(lambda: rival.add_subscription(txn, TOPIC, "sub")) == ServerError.AuthorizationError
    assert refusal(lambda: rival.commit(txn)) == ServerError.AuthorizationError
    assert refusal(lambda: rival.abort(txn)) == ServerError.AuthorizationError

    superuser.producer(TOPIC)
    assert superuser.publish_in(txn, b"root's").type == BaseCommand.SEND_RECEIPT
    assert owner.publish_in(txn, b"mine", sequence_id=1).type == BaseCommand.SEND_RECEIPT
    owner.ack_in(txn, position)
    owner.commit(txn)
    reader = dial("root")
    reader.subscribe(TOPIC, "all", permits=10)
    assert [reader.payload() for _ in range(3)] == [b"before", b"root's", b"mine"]
    assert reader.silent(BaseCommand.MESSAGE, for_s=0.2)


def test_nobody_elses_producer_comes_in_between(dial: Dial) -> None:
    """After what was refused, the same connection goes on."""
    owner, rival = dial("topic-role"), dial("rival")
    txn = owner.begin()
    owner.add_partitions(txn, TOPIC)
    rival.producer(TOPIC)
    assert rival.publish_in(txn, b"slipped in").type == BaseCommand.SEND_ERROR
    rival.publish(message(b"plain"), sequence_id=1)
    assert rival.receipt().type == BaseCommand.SEND_RECEIPT
    owner.abort(txn)


def test_a_transaction_is_shown_to_whom_it_belongs(limited: Secured, dial: Dial) -> None:
    """As the Go client asks for it; to others it is not there."""
    most, least = dial("producer").begin()
    path = f"/admin/v3/transactions/transactionMetadata/{most}/{least}"
    assert limited.http("GET", path, "producer").json()["owner"] == "producer"
    assert limited.http("GET", path, "root").status_code == 200
    assert limited.http("GET", path, "rival").status_code == 404
    assert limited.http("GET", path, "stranger").status_code == 403
