"""Admin calls that create, unload, delete and grow a topic at the same moment at which clients ask for it: no request stays without an
answer, and none is refused because of the other one where both can be had."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import requests

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.support.raw import RawClient

ROUNDS = 12
RETRIED = {
    ServerError.ServiceNotReady,
    ServerError.MetadataError,
    ServerError.TopicNotFound,
    ServerError.PersistenceError,
}
"""Errors with which a client asks again, or the topic is gone."""


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def together(client: RawClient, topic: str) -> dict[int, BaseCommand]:
    """Every request that a client makes of a topic, sent at once; the answers by request id."""
    kinds = (
        ("PARTITIONED_METADATA", "partitionMetadata"),
        ("LOOKUP", "lookupTopic"),
        ("SUBSCRIBE", "subscribe"),
        ("PRODUCER", "producer"),
        ("GET_SCHEMA", "getSchema"),
    )
    frames, asked = [], {}
    for kind, field in kinds:
        command = BaseCommand(type=BaseCommand.Type.Value(kind))
        body = getattr(command, field)
        body.topic, body.request_id = topic, client.request_id()
        if kind == "SUBSCRIBE":
            body.subscription, body.subType, body.consumer_id = "sub", CommandSubscribe.Shared, body.request_id
        elif kind == "PRODUCER":
            body.producer_id = body.request_id
        asked[body.request_id] = kind
        frames.append(encode_frame(command.SerializeToString(), b""))
    client.send_bytes(b"".join(frames))
    answers: dict[int, BaseCommand] = {}
    while len(answers) < len(asked):
        command = client.receive()[0]
        request_id = request_of(command)
        if request_id in asked and not (
            command.type == BaseCommand.PRODUCER_SUCCESS and not command.producer_success.producer_ready
        ):
            assert request_id not in answers, f"{asked[request_id]} is answered twice"
            answers[request_id] = command
    return answers


def request_of(command: BaseCommand) -> int:
    """Of an answer; -1 of a notice."""
    body = next(message for _, message in command.ListFields() if hasattr(message, "DESCRIPTOR"))
    return int(getattr(body, "request_id", -1))


def code_of(answer: BaseCommand) -> int | None:
    """The error of an answer, None of a success."""
    body = next(message for _, message in answer.ListFields() if hasattr(message, "DESCRIPTOR"))
    for field in ("error", "error_code"):
        if field in body.DESCRIPTOR.fields_by_name and body.HasField(field):
            return int(getattr(body, field))
    return None


def call(server: ServerProcess, method: str, topic: str, path: str = "", body: object = None) -> int:
    url = f"{server.http_url}/admin/v2/{topic.replace('://', '/')}{path}"
    return requests.request(method, url, json=body, timeout=60).status_code


def test_a_topic_that_is_created_by_an_admin_and_by_clients(server: ServerProcess, threads: ThreadPoolExecutor) -> None:
    for number in range(ROUNDS):
        topic = f"persistent://public/default/created-{number}"
        with RawClient(server.port) as one, RawClient(server.port) as two:
            one.connect()
            two.connect()
            created = threads.submit(call, server, "PUT", topic)
            asked = [threads.submit(together, client, topic) for client in (one, two)]
            for answers in (each.result() for each in asked):
                refused = {a.type: code_of(a) for a in answers.values() if a.type != BaseCommand.GET_SCHEMA_RESPONSE}
                assert set(refused.values()) == {None}, refused
            assert created.result() in (204, 409)


def test_a_topic_that_becomes_partitioned_while_clients_ask_for_it(
    server: ServerProcess, threads: ThreadPoolExecutor
) -> None:
    """Either it was a topic first, or it is partitioned: never both."""
    for number in range(ROUNDS):
        topic = f"persistent://public/default/parted-{number}"
        with RawClient(server.port) as client:
            client.connect()
            created = threads.submit(call, server, "PUT", topic, "/partitions", 3)
            answers = together(client, topic)
            codes = {answer.type: code_of(answer) for answer in answers.values()}
            assert created.result() in (204, 409)
            if created.result() == 409:
                assert set(codes.values()) <= {None, ServerError.TopicNotFound}
            else:
                again = client.producer(topic, 99)
                assert again.error.error == ServerError.NotAllowedError, again


@pytest.mark.parametrize("change", ["unload", "delete", "both"])
def test_a_topic_that_goes_away_while_clients_ask_for_it(
    server: ServerProcess, threads: ThreadPoolExecutor, change: str
) -> None:
    topic = f"persistent://public/default/going-{change}"
    call(server, "PUT", topic)
    for _ in range(ROUNDS):
        with RawClient(server.port) as one, RawClient(server.port) as two:
            one.connect()
            two.connect()
            changes: list[Future[int]] = []
            if change != "delete":
                changes.append(threads.submit(call, server, "PUT", topic, "/unload"))
            if change != "unload":
                changes.append(threads.submit(call, server, "DELETE", topic, "?force=true"))
            asked = [threads.submit(together, client, topic) for client in (one, two)]
            for answers in (each.result() for each in asked):
                assert {code_of(answer) for answer in answers.values()} <= {None, *RETRIED}, answers
            assert all(each.result() < 500 for each in changes)
            answers = together(one, topic)  # and afterwards it is there as ever
            assert {code_of(a) for a in answers.values() if a.type != BaseCommand.GET_SCHEMA_RESPONSE} == {None}, (
                answers
            )
