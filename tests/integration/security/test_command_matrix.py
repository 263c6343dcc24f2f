"""Every command of the live list, as every role, by raw frames: the official clients look topics up first and would hide a gap."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.auth.decide import Access
from magnetar.broker.auth.table import COMMANDS
from magnetar.broker.connection.routes import ROUTES
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.security.conftest import ROLES, Secured, error_code
from tests.integration.security.test_route_matrix import ALLOWED

TOPIC = "persistent://t/ns/one"

REQUESTS: dict[str, dict[str, Any]] = {
    "PARTITIONED_METADATA": {"partitionMetadata": {"topic": TOPIC, "request_id": 1}},
    "LOOKUP": {"lookupTopic": {"topic": TOPIC, "request_id": 1}},
    "GET_TOPICS_OF_NAMESPACE": {"getTopicsOfNamespace": {"namespace": "t/ns", "request_id": 1}},
    "PRODUCER": {"producer": {"topic": TOPIC, "producer_id": 9, "request_id": 1}},
    "SUBSCRIBE": {
        "subscribe": {"topic": TOPIC, "subscription": "s", "subType": "Shared", "consumer_id": 9, "request_id": 1}
    },
    "GET_SCHEMA": {"getSchema": {"topic": TOPIC, "request_id": 1}},
    "GET_OR_CREATE_SCHEMA": {
        "getOrCreateSchema": {
            "topic": TOPIC,
            "request_id": 1,
            "schema": {"name": "s", "schema_data": b"", "type": "String", "properties": []},
        }
    },
    "SCALABLE_TOPIC_LOOKUP": {"scalableTopicLookup": {"topic": "topic://t/ns/one", "session_id": 1}},
    "SCALABLE_TOPIC_SUBSCRIBE": {
        "scalableTopicSubscribe": {
            "topic": "topic://t/ns/one",
            "subscription": "s",
            "consumer_name": "c",
            "consumer_id": 9,
            "request_id": 1,
        }
    },
    "WATCH_SCALABLE_TOPICS": {"watchScalableTopics": {"namespace": "t/ns", "watch_id": 1}},
    "TC_CLIENT_CONNECT_REQUEST": {"tcClientConnectRequest": {"tc_id": 0, "request_id": 1}},
    "WATCH_TC_ASSIGNMENTS": {"watchTcAssignments": {"watch_id": 1}},
    "NEW_TXN": {"newTxn": {"request_id": 1}},
    "ADD_PARTITION_TO_TXN": {"addPartitionToTxn": {"partitions": [TOPIC], "txnid_least_bits": 1, "request_id": 1}},
    "ADD_SUBSCRIPTION_TO_TXN": {
        "addSubscriptionToTxn": {
            "subscription": [{"topic": TOPIC, "subscription": "s"}],
            "txnid_least_bits": 1,
            "request_id": 1,
        }
    },
    "END_TXN": {"endTxn": {"txnid_least_bits": 10**9, "txn_action": "ABORT", "request_id": 1}},
    "END_TXN_ON_PARTITION": {"endTxnOnPartition": {"topic": TOPIC, "txn_action": "ABORT", "request_id": 1}},
    "END_TXN_ON_SUBSCRIPTION": {
        "endTxnOnSubscription": {
            "subscription": {"topic": TOPIC, "subscription": "s"},
            "txn_action": "ABORT",
            "request_id": 1,
        }
    },
}
"""What stands on its own."""

OF_A_CONSUMER = {
    "UNSUBSCRIBE": {"unsubscribe": {"consumer_id": 9, "request_id": 2}},
    "SEEK": {"seek": {"consumer_id": 9, "request_id": 2, "message_publish_time": 1}},
    "GET_LAST_MESSAGE_ID": {"getLastMessageId": {"consumer_id": 9, "request_id": 2}},
    "CONSUMER_STATS": {"consumerStats": {"consumer_id": 9, "request_id": 2}},
}
"""What needs a consumer: asked after the right to consume was taken away."""

UNGUARDED = (Access.OPEN, Access.OWN)


def test_the_lists_are_complete() -> None:
    guarded = {name for name, access in COMMANDS.items() if access not in UNGUARDED}
    assert guarded == {*REQUESTS, *OF_A_CONSUMER}
    assert {BaseCommand.Type.Value(name) for name in COMMANDS} == set(ROUTES)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", REQUESTS)
def test_command(secured: Secured, name: str, role: str) -> None:
    with secured.raw(role) as client:
        client.send(BaseCommand(type=BaseCommand.Type.Value(name), **REQUESTS[name]))
        answer = client.receive()[0]
    assert (error_code(answer) == ServerError.AuthorizationError) == (role not in ALLOWED[COMMANDS[name]]), answer


@pytest.mark.parametrize("name", OF_A_CONSUMER)
def test_a_right_that_is_taken_away(secured: Secured, name: str) -> None:
    path = "persistent/t/ns/one/permissions/leaver"
    secured.admin("POST", path, ["consume"])
    with secured.raw("leaver") as client:
        assert client.subscribe(TOPIC, f"sub-{name}", consumer_id=9).type == BaseCommand.SUCCESS
        secured.admin("DELETE", path)
        client.send(BaseCommand(type=BaseCommand.Type.Value(name), **OF_A_CONSUMER[name]))
        assert error_code(client.receive()[0]) == ServerError.AuthorizationError


def test_an_initial_subscription_takes_the_right_to_consume(secured: Secured) -> None:
    with secured.raw("producer") as client:
        refused = client.producer(TOPIC, 1, initial_subscription_name="dlq-sub")
        assert refused.error.error == ServerError.AuthorizationError
    with secured.raw("topic-role") as client:
        assert client.producer(TOPIC, 1, initial_subscription_name="dlq-sub").type == BaseCommand.PRODUCER_SUCCESS
    assert "dlq-sub" in secured.http("GET", "/admin/v2/persistent/t/ns/one/subscriptions").json()


def test_a_transaction_is_its_owners(secured: Secured) -> None:
    """Numbers are easy to guess. Nobody else adds to a transaction or ends it, but a superuser may."""
    opened = BaseCommand(type=BaseCommand.NEW_TXN, newTxn={"request_id": 1, "txn_ttl_millis": 60_000})
    with secured.raw("tenant-admin") as owner, secured.raw("stranger") as stranger, secured.raw("root") as root:
        owner.send(opened)
        number = owner.receive()[0].newTxnResponse.txnid_least_bits
        end = {"txnid_least_bits": number, "txn_action": "ABORT", "request_id": 2}
        stranger.send(BaseCommand(type=BaseCommand.END_TXN, endTxn=end))
        assert error_code(stranger.receive()[0]) == ServerError.AuthorizationError
        root.send(BaseCommand(type=BaseCommand.END_TXN, endTxn=end))
        answer = root.receive()[0]
        assert error_code(answer) is None, answer
        owner.send(BaseCommand(type=BaseCommand.END_TXN, endTxn=end))
        assert error_code(owner.receive()[0]) == ServerError.TransactionNotFound


def test_own_commands_reach_only_what_the_connection_has_opened(secured: Secured) -> None:
    """SEND, FLOW, ACK... name ids of this connection: those of another one are unknown."""
    with secured.raw("tenant-admin") as owner, secured.raw("stranger") as stranger:
        assert owner.producer(TOPIC, 5).type == BaseCommand.PRODUCER_SUCCESS
        assert owner.subscribe(TOPIC, "owned", consumer_id=5).type == BaseCommand.SUCCESS
        stranger.flow(10, 5)
        stranger.send(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer={"consumer_id": 5, "request_id": 3}))
        stranger.expect(BaseCommand.SUCCESS)
        owner.flow(10, 5)
        assert owner.publish(b"mine", producer_id=5).type == BaseCommand.SEND_RECEIPT
        assert owner.message()[0].message.consumer_id == 5
        stranger.no_message()
        with pytest.raises(AssertionError):
            assert stranger.publish(b"not mine", producer_id=5).type == BaseCommand.SEND_RECEIPT


def test_a_command_that_nobody_knows_ends_the_connection(secured: Secured) -> None:
    with secured.raw("root") as client:
        client.send(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST))
        (said,) = client.closed_within(8)
        assert said.error.error == ServerError.UnknownError or said.error.message
