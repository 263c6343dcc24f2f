"""Answers that a comparison with Apache Pulsar 4.2 found to differ (tools/wire_differences.py): what clients rely on in each of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import requests

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.support.answers import checked
from tests.support.raw import RawClient, connect_command, send_frame
from tests.support.types import StartServer


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawClient]:
    with RawClient(server.port) as client:
        client.connect()
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"persistent://public/default/{request.node.name}"


def ask(client: RawClient, kind: int, field: str, **fields: Any) -> BaseCommand:
    command = BaseCommand(type=kind)  # type: ignore[arg-type]  # the stubs want the enum's own type
    body = getattr(command, field)
    body.SetInParent()
    body.request_id = client.request_id()
    for name, value in fields.items():
        setattr(body, name, value)
    client.send(command)
    return client.answer_to(body.request_id)


def admin(server: ServerProcess, method: str, topic: str, path: str, **options: Any) -> None:
    url = f"{server.http_url}/admin/v2/{topic.replace('://', '/')}/{path}"
    requests.request(method, url, timeout=60, **options).raise_for_status()


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_partitioned_topic_is_not_a_topic_itself(server: ServerProcess, raw: RawClient, domain: str) -> None:
    """Messages in it would be in none of its partitions, and nobody would ever consume them."""
    topic = f"{domain}://public/default/whole"
    admin(server, "PUT", topic, "partitions", json=2)
    for answer in (raw.producer(topic), raw.subscribe(topic)):
        assert answer.type == BaseCommand.ERROR
        assert answer.error.error == ServerError.NotAllowedError
        assert "partitioned metadata" in answer.error.message
    assert raw.producer(f"{topic}-partition-0").type == BaseCommand.PRODUCER_SUCCESS
    beyond = ask(raw, BaseCommand.PARTITIONED_METADATA, "partitionMetadata", topic=f"{topic}-partition-2")
    assert beyond.partitionMetadataResponse.error == ServerError.TopicNotFound


@pytest.mark.parametrize(
    ("version", "code"), [("raw", ServerError.InvalidTopicName), ("Pulsar-CPP-v3", ServerError.TopicNotFound)]
)
def test_an_invalid_name_is_told_as_such(server: ServerProcess, version: str, code: int) -> None:
    """The C++ client alone would retry it until its time-out."""
    with RawClient(server.port) as client:
        command = connect_command()
        command.connect.client_version = version
        client.send(command)
        client.expect(BaseCommand.CONNECTED)
        for topic in ("kafka://public/default/t", "a//b"):
            looked_up = ask(client, BaseCommand.LOOKUP, "lookupTopic", topic=topic)
            assert looked_up.lookupTopicResponse.error == code
            partitions = ask(client, BaseCommand.PARTITIONED_METADATA, "partitionMetadata", topic=topic)
            assert partitions.partitionMetadataResponse.error == code


def test_clients_of_a_standalone_server_stay_at_the_address_they_used(raw: RawClient, topic: str) -> None:
    """It may be another than the advertised one: a container's mapped port."""
    answer = ask(raw, BaseCommand.LOOKUP, "lookupTopic", topic=topic).lookupTopicResponse
    assert answer.proxy_through_service_url


def test_a_seek_to_nowhere_moves_nothing(raw: RawClient, topic: str) -> None:
    raw.producer(topic)
    raw.publish(b"x")
    raw.subscribe(topic)
    answer = ask(raw, BaseCommand.SEEK, "seek", consumer_id=1)
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error == ServerError.MetadataError
    raw.flow(1)
    raw.message()


def test_unsubscribing_is_answered_once(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic)
    assert ask(raw, BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=1).type == BaseCommand.SUCCESS
    raw.ping()


def fence(server: ServerProcess, topic: str) -> None:
    with RawClient(server.port) as other:
        other.connect()
        assert other.producer(topic, producer_access_mode=EXCLUSIVE_WITH_FENCING).type == BaseCommand.PRODUCER_SUCCESS


EXCLUSIVE, EXCLUSIVE_WITH_FENCING = 1, 3
CLOSINGS = {
    "terminate": lambda server, topic: admin(server, "POST", topic, "terminate"),
    "unload": lambda server, topic: admin(server, "PUT", topic, "unload"),
    "delete": lambda server, topic: admin(server, "DELETE", topic, "?force=true"),
    "fence": fence,
}


@pytest.mark.parametrize("closing", CLOSINGS)
def test_a_producer_learns_that_it_is_closed_before_its_messages_fail(
    server: ServerProcess, raw: RawClient, topic: str, closing: str
) -> None:
    """The Go client forgets a producer at the error TopicTerminated, and would not look at a notice that comes later."""
    for attempt in range(3):
        name = f"{topic}-{attempt}"
        opened = raw.producer(name, producer_id=attempt, producer_access_mode=EXCLUSIVE if closing == "fence" else 0)
        assert opened.type == BaseCommand.PRODUCER_SUCCESS
        ended = threading.Timer(0.1, CLOSINGS[closing], (server, name))
        ended.start()
        said: list[BaseCommand] = []
        number = 0
        while BaseCommand.CLOSE_PRODUCER not in [command.type for command in said] and number < 50_000:
            for _ in range(50):
                raw.send_bytes(send_frame(b"x", number, attempt))
                number += 1
            with suppress(TimeoutError):
                while True:
                    said.append(raw.receive(0.002)[0])
        ended.join()
        kinds = [command.type for command in said]
        assert BaseCommand.SEND_ERROR not in kinds[: kinds.index(BaseCommand.CLOSE_PRODUCER)]
        of_all = [command.send_receipt for command in said if command.type == BaseCommand.SEND_RECEIPT]
        receipts = [
            receipt.sequence_id for receipt in of_all if receipt.producer_id == attempt
        ]  # the one before has some left
        assert receipts == list(range(len(receipts)))
        raw.ping()
        again = raw.producer(name, producer_id=attempt)
        told = again.error.error if again.type == BaseCommand.ERROR else None
        if closing == "terminate":
            assert told == ServerError.TopicTerminatedError
        elif closing == "fence":
            assert told in (None, ServerError.ProducerBusy)  # whether the other one has left is chance
        else:
            assert told is None


@pytest.mark.parametrize(
    ("closing", "notice"),
    [
        ("terminate", BaseCommand.REACHED_END_OF_TOPIC),
        ("unload", BaseCommand.CLOSE_CONSUMER),
        ("delete", BaseCommand.CLOSE_CONSUMER),
    ],
)
def test_a_consumer_learns_that_its_topic_ends(
    server: ServerProcess, raw: RawClient, topic: str, closing: str, notice: int
) -> None:
    raw.subscribe(topic)
    raw.flow(10)
    CLOSINGS[closing](server, topic)
    raw.until(notice)
    raw.ping()


QUOTA_POLICIES = {
    "producer_request_hold": ServerError.ProducerBlockedQuotaExceededError,
    "producer_exception": ServerError.ProducerBlockedQuotaExceededException,
}


@pytest.mark.parametrize("policy", QUOTA_POLICIES)
def test_a_backlog_quota_is_told_in_the_order_of_pulsar(start_server: StartServer, topic: str, policy: str) -> None:
    """Who comes is refused by what holds now, not when the quota was last checked; who is there is told to close, and no message fails."""
    server = start_server(backlogQuotaCheckIntervalInSeconds=3600)  # checked when the test asks for it
    with RawClient(server.port) as raw:
        raw.connect()
        meet_the_quota(server, raw, topic, policy)


def meet_the_quota(server: ServerProcess, raw: RawClient, topic: str, policy: str) -> None:
    raw.subscribe(topic)
    raw.producer(topic)
    quota = {"limitSize": 10_000, "limitTime": -1, "policy": policy}
    admin(server, "POST", topic, "backlogQuota?backlogQuotaType=destination_storage", json=quota)
    for number in range(20):
        raw.send_bytes(send_frame(b"x" * 1000, number, 1))
    assert [raw.expect(BaseCommand.SEND_RECEIPT).send_receipt.sequence_id for _ in range(20)] == list(range(20))
    refused = raw.producer(topic, producer_id=2)
    assert (refused.type, refused.error.error) == (BaseCommand.ERROR, QUOTA_POLICIES[policy])

    requests.get(f"{server.http_url}/admin/v2/brokers/backlog-quota-check", timeout=60).raise_for_status()
    assert raw.expect(BaseCommand.CLOSE_PRODUCER).close_producer.producer_id == 1
    raw.send_bytes(send_frame(b"late", 20, 1))  # sent before the notice arrived: the client sends it again
    again = raw.producer(topic)
    assert (again.type, again.error.error) == (BaseCommand.ERROR, QUOTA_POLICIES[policy])
    assert "backlog quota exceeded" in again.error.message

    admin(server, "POST", topic, "subscription/sub/skip_all")
    raw.send(BaseCommand(type=BaseCommand.PING, ping={}))
    assert raw.expect(BaseCommand.PONG), "the late message has no answer at all"
    assert raw.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
    raw.send_bytes(send_frame(b"again", 20, 1))
    assert raw.expect(BaseCommand.SEND_RECEIPT).send_receipt.sequence_id == 20


def test_an_answer_with_a_text_that_says_nothing_is_noticed() -> None:
    """Each frame that a raw client receives, in whichever test, is looked at like this: pulsar-rs took such a field for an address."""
    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    answer.lookupTopicResponse.request_id = 1
    assert checked(answer) is answer
    answer.lookupTopicResponse.brokerServiceUrlTls = ""
    with pytest.raises(AssertionError, match="brokerServiceUrlTls; leave it out"):
        checked(answer)
