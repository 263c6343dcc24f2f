"""Producers, consumers and readers by WebSocket, through a client library that knows nothing of this server; and messages by REST."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pulsar
import pytest
import requests
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from magnetar.testing.server import ServerProcess
from tests.support.messages import receive_all, send_all
from tests.support.waiting import wait_until

Open = Callable[..., ClientConnection]
WAIT_S = 10.0


@pytest.fixture
def path(topic: str) -> str:
    return topic.replace("://", "/")


@pytest.fixture
def opened(server: ServerProcess) -> Iterator[Open]:
    """`opened("producer", PATH, option=value)`; all of them are closed afterwards."""
    with ExitStack() as stack:

        def start(kind: str, path: str, /, **query: object) -> ClientConnection:
            url = requests.Request("GET", f"{server.http_url}/ws/v2/{kind}/{path}", params=query).prepare().url
            assert url is not None
            return stack.enter_context(connect(url.replace("http", "ws", 1), max_size=None, proxy=None))

        yield start


def text_of(payload: bytes, **fields: object) -> str:
    return json.dumps({"payload": base64.b64encode(payload).decode(), **fields})


def receive(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(WAIT_S))
    return found


def send(socket: ClientConnection, payload: bytes, **fields: object) -> dict[str, Any]:
    socket.send(text_of(payload, **fields))
    return receive(socket)


def payload_of(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["payload"])


def ack(socket: ClientConnection, message: dict[str, Any], **fields: object) -> None:
    socket.send(json.dumps({"messageId": message["messageId"], **fields}))


def take(socket: ClientConnection, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    found = []
    for _ in range(count):
        message = receive(socket)
        ack(socket, message)
        found.append(payload_of(message))
    return found


def nothing_comes(socket: ClientConnection, for_s: float = 0.3) -> bool:
    try:
        socket.recv(for_s)
    except TimeoutError:
        return True
    return False


def status_of(open_it: Callable[[], object]) -> int:
    with pytest.raises(InvalidStatus) as refused:
        open_it()
    return refused.value.response.status_code


def closed_with(socket: ClientConnection) -> tuple[int, str]:
    """The code and reason with which the server closes; what comes before is passed over."""
    try:
        for _ in socket:
            continue
    except ConnectionClosed:
        pass  # iterating ends by itself after 1000 and 1001 only
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


# ---- Producing


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batching", ["false", "true"])
def test_the_official_client_reads_what_a_page_sends(
    opened: Open, client: pulsar.Client, topic: str, path: str, batching: str, compression: str
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = opened(
        "producer",
        path,
        batchingEnabled=batching,
        compressionType=compression,
        producerName="page",
        batchingMaxMessages=3,
    )
    for number in range(8):
        producer.send(
            text_of(b"%d" % number * 100, key="k", properties={"n": str(number)}, context=f"c{number}", eventTime="77")
        )
    answers = [receive(producer) for _ in range(8)]
    assert [(answer["result"], answer["context"]) for answer in answers] == [("ok", f"c{n}") for n in range(8)]
    assert len({answer["messageId"] for answer in answers}) == 8
    for number in range(8):
        message = consumer.receive(30_000)
        assert message.data() == b"%d" % number * 100
        assert (message.partition_key(), message.properties(), message.event_timestamp()) == (
            "k",
            {"n": str(number)},
            77,
        )
        assert message.producer_name() == "page"


def test_what_is_no_message_is_answered_as_such(opened: Open, path: str) -> None:
    """And the producer goes on."""
    producer = opened("producer", path)
    for text, code in (
        ("nonsense", 3),
        ("[]", 3),
        ('{"payload": 7}', 3),
        ('{"payload": "%%%"}', 7),
        ('{"payload": "", "deliverAt": -1}', 1),
        ('{"payload": "", "eventTime": "soon"}', 1),
        ('{"payload": "", "encryptionParam": "AAAA"}', 1),
    ):
        producer.send(text)
        answer = receive(producer)
        assert (answer["result"], answer["errorCode"]) == (f"send-error:{code}", code), text
        assert answer["errorMsg"]
    assert send(producer, b"x", context="after")["result"] == "ok"


def test_delayed_messages(opened: Open, path: str) -> None:
    consumer = opened("consumer", f"{path}/sub", subscriptionType="Shared")
    producer = opened("producer", path)
    before = time.time()
    send(producer, b"later", deliverAfterMs=700)
    send(producer, b"now")
    assert take(consumer, 2) == [b"now", b"later"]
    assert time.time() - before >= 0.7


def test_deduplication_goes_by_the_producers_own_numbers(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], path: str, topic: str
) -> None:
    server = start_server(brokerDeduplicationEnabled="true")
    consumer = connect(server.service_url).subscribe(topic, "sub")
    base = f"{server.http_url.replace('http', 'ws', 1)}/ws/v2/producer/{path}?producerName=p"
    for _ in range(2):
        with connect_socket(base) as producer:
            assert [send(producer, b"%d" % n, sequenceId=n)["result"] for n in range(3)] == ["ok"] * 3
    assert receive_all(consumer, 3) == [b"0", b"1", b"2"]


def connect_socket(url: str, **options: Any) -> ClientConnection:
    return connect(url, max_size=None, proxy=None, **options)


# ---- Consuming


def test_a_page_reads_what_the_official_client_sends(
    opened: Open, client: pulsar.Client, topic: str, path: str
) -> None:
    """Single, batched, compressed and chunked."""
    consumer = opened("consumer", f"{path}/sub")
    single = client.create_producer(topic, compression_type=pulsar.CompressionType.ZSTD)
    single.send(b"single", properties={"a": "b"}, partition_key="k", event_timestamp=5)
    batched = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=20, compression_type=pulsar.CompressionType.LZ4
    )
    send_all(batched, [b"%d" % number for number in range(5)])
    chunked = client.create_producer(topic, chunking_enabled=True)
    large = bytes(range(256)) * 24_000
    chunked.send(large)
    message = receive(consumer)
    assert payload_of(message) == b"single"
    assert (message["properties"], message["key"], message["redeliveryCount"]) == ({"a": "b"}, "k", 0)
    assert message["eventTime"] == "1970-01-01T00:00:00.005Z"
    assert message["publishTime"].endswith("Z")
    ack(consumer, message)
    assert take(consumer, 5) == [b"%d" % number for number in range(5)]
    assert take(consumer, 1) == [large]


def test_acknowledged_is_acknowledged(opened: Open, client: pulsar.Client, topic: str, path: str) -> None:
    """Also a part of a batch, and by an id that another connection was given."""
    first = opened("consumer", f"{path}/sub", subscriptionType="Shared")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    send_all(producer, [b"%d" % number for number in range(6)])
    messages = [receive(first) for _ in range(6)]
    for number in (0, 3):
        ack(first, messages[number])
    first.send(json.dumps({"type": "isEndOfTopic"}))  # the answer follows what was acknowledged before
    assert receive(first) == {"endOfTopic": False}
    first.close()
    second = opened("consumer", f"{path}/sub", subscriptionType="Shared")
    ack(second, messages[5])
    again = [receive(second) for _ in range(4)]
    assert [payload_of(message) for message in again] == [b"1", b"2", b"4", b"5"]
    for message in again:
        ack(second, message)
    assert nothing_comes(second)


def test_negative_acknowledgements_and_the_time_to_acknowledge(opened: Open, path: str) -> None:
    consumer = opened("consumer", f"{path}/nack", subscriptionType="Shared", negativeAckRedeliveryDelay=50)
    timed = opened("consumer", f"{path}/late", subscriptionType="Shared", ackTimeoutMillis=1000)
    producer = opened("producer", path)
    send(producer, b"x")
    ack(consumer, receive(consumer), type="negativeAcknowledge")
    again = receive(consumer)
    assert (payload_of(again), again["redeliveryCount"]) == (b"x", 1)
    receive(timed)
    assert take(timed, 1) == [b"x"]


def test_what_fails_too_often_goes_to_the_dead_letter_topic(opened: Open, path: str) -> None:
    dead = opened("consumer", f"{path}-sub-DLQ/sub")
    options = {"subscriptionType": "Shared", "negativeAckRedeliveryDelay": 10, "maxRedeliverCount": 2}
    consumer = opened("consumer", f"{path}/sub", **options)
    producer = opened("producer", path)
    send(producer, b"poison", properties={"a": "b"}, key="k")
    for count in range(3):
        message = receive(consumer)
        assert message["redeliveryCount"] == count
        ack(consumer, message, type="negativeAcknowledge")
    buried = receive(dead)
    assert (payload_of(buried), buried["key"], buried["properties"]["a"]) == (b"poison", "k", "b")
    assert buried["properties"]["ORIGIN_MESSAGE_ID"] == message["messageId"]
    assert send(producer, b"good")["result"] == "ok"
    assert take(consumer, 1) == [b"good"]


def test_no_more_than_the_queue_is_sent(opened: Open, client: pulsar.Client, topic: str, path: str) -> None:
    consumer = opened("consumer", f"{path}/sub", receiverQueueSize=5)
    send_all(client.create_producer(topic), [b"%d" % number for number in range(12)])
    first = [receive(consumer) for _ in range(5)]
    assert nothing_comes(consumer)
    for message in first[:2]:
        ack(consumer, message)
    assert [payload_of(receive(consumer)) for _ in range(2)] == [b"5", b"6"]
    assert nothing_comes(consumer)


def test_pull_mode(opened: Open, client: pulsar.Client, topic: str, path: str) -> None:
    """Nothing comes that was not asked for, also out of a batch."""
    consumer = opened("consumer", f"{path}/sub", pullMode="true")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    send_all(producer, [b"%d" % number for number in range(10)])
    assert nothing_comes(consumer)
    sent = 0
    for count in (1, 3, 6):
        consumer.send(json.dumps({"type": "permit", "permitMessages": count}))
        assert take(consumer, count) == [b"%d" % number for number in range(sent, sent + count)]
        sent += count
        assert nothing_comes(consumer, 0.1)


def test_subscription_types(opened: Open, client: pulsar.Client, topic: str, path: str) -> None:
    """Beside consumers of the official client, on the same subscription."""
    page = opened("consumer", f"{path}/sub", subscriptionType="Key_Shared", consumerName="page")
    other = client.subscribe(topic, "sub", pulsar.ConsumerType.KeyShared)
    producer = opened("producer", path)
    for number in range(40):
        send(producer, b"%d" % number, key=f"key{number}")
    mine = []
    while not nothing_comes_or(page, mine):
        pass
    theirs = receive_all(other, 40 - len(mine))
    assert 0 < len(mine) < 40
    assert sorted([*mine, *theirs]) == sorted(b"%d" % number for number in range(40))


def nothing_comes_or(socket: ClientConnection, found: list[bytes]) -> bool:
    try:
        message = json.loads(socket.recv(0.5))
    except TimeoutError:
        return True
    found.append(payload_of(message))
    ack(socket, message)
    return False


def test_partitioned_topics(server: ServerProcess, opened: Open, path: str) -> None:
    requests.put(f"{server.http_url}/admin/v2/{path}/partitions", json=3, timeout=60).raise_for_status()
    consumer = opened("consumer", f"{path}/sub", subscriptionType="Failover")
    producer = opened("producer", path)
    answers = [send(producer, b"%d" % number, key=f"key{number % 4}") for number in range(20)]
    assert all(answer["result"] == "ok" for answer in answers)
    received = take(consumer, 20)
    assert sorted(received) == sorted(b"%d" % number for number in range(20))
    for key in range(4):
        of_key = [number for number in map(int, received) if number % 4 == key]
        assert of_key == sorted(of_key), "a key stays in its partition"
    reader = opened("reader", path, messageId="earliest")
    assert sorted(take(reader, 20)) == sorted(received)


def test_readers(opened: Open, client: pulsar.Client, topic: str, path: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    send_all(producer, [b"%d" % number for number in range(6)])
    reader = opened("reader", path, messageId="earliest", receiverQueueSize=2)
    messages = []
    for _ in range(6):
        messages.append(receive(reader))
        ack(reader, messages[-1])
    assert [payload_of(message) for message in messages] == [b"%d" % number for number in range(6)]
    middle = opened("reader", path, messageId=messages[2]["messageId"])
    assert take(middle, 3) == [b"3", b"4", b"5"]
    latest = opened("reader", path)
    producer.send(b"new")
    assert take(latest, 1) == [b"new"]


def test_the_end_of_a_topic(server: ServerProcess, opened: Open, path: str) -> None:
    """Messages under way are answered as failed, and nobody hangs."""
    consumer, producer = opened("consumer", f"{path}/sub"), opened("producer", path)
    send(producer, b"last")
    requests.post(f"{server.http_url}/admin/v2/{path}/terminate", timeout=60).raise_for_status()
    code, reason = closed_with(producer)
    assert code == 1012
    assert "connect again" in reason
    assert status_of(lambda: opened("producer", path)) == 405
    assert take(consumer, 1) == [b"last"]

    def ended() -> bool:
        consumer.send(json.dumps({"type": "isEndOfTopic"}))
        return bool(receive(consumer)["endOfTopic"])

    wait_until(ended, WAIT_S)


def test_unload_and_delete_close_with_a_reason(server: ServerProcess, opened: Open, path: str) -> None:
    sockets = [opened("consumer", f"{path}/sub"), opened("producer", path), opened("reader", path)]
    requests.put(f"{server.http_url}/admin/v2/{path}/unload", timeout=60).raise_for_status()
    assert [closed_with(socket)[0] for socket in sockets] == [1012] * 3
    assert send(opened("producer", path), b"x")["result"] == "ok"
    assert take(opened("consumer", f"{path}/sub"), 1) == [b"x"]


def test_unsubscribe(server: ServerProcess, opened: Open, path: str) -> None:
    consumer = opened("consumer", f"{path}/sub")
    consumer.send(json.dumps({"type": "unsubscribe"}))
    assert closed_with(consumer) == (1000, "unsubscribed")
    assert requests.get(f"{server.http_url}/admin/v2/{path}/subscriptions", timeout=60).json() == []


def test_requests_that_are_none_close_the_consumer(opened: Open, path: str) -> None:
    for text in ("nonsense", '{"messageId": "AAAA"}', '{"type": "dance"}', '{"type": "permit", "permitMessages": 5}'):
        consumer = opened("consumer", f"{path}/sub")
        consumer.send(text)
        code, reason = closed_with(consumer)
        assert code == 1008
        assert reason


# ---- The upgrade


@pytest.mark.parametrize(
    ("kind", "end", "query", "status"),
    [
        ("producer", "", {"compressionType": "best"}, 400),
        ("producer", "", {"batchingMaxMessages": "many"}, 400),
        ("producer", "", {"encryptionKeys": "k"}, 400),
        ("consumer", "/sub", {"subscriptionType": "Best"}, 400),
        ("consumer", "/sub", {"deadLetterTopic": "t"}, 400),
        ("consumer", "/pulsar.dedup", {}, 405),
        ("reader", "", {"messageId": "nowhere"}, 500),
    ],
)
def test_what_is_refused_before_the_upgrade(
    opened: Open, path: str, kind: str, end: str, query: dict[str, str], status: int
) -> None:
    found = status_of(lambda: opened(kind, path + end, **query))
    assert found == status or (status == 500 and 400 <= found < 500)


def test_a_refusal_says_what_it_is_for(server: ServerProcess, opened: Open, path: str) -> None:
    opened("consumer", f"{path}/sub")
    assert status_of(lambda: opened("consumer", f"{path}/sub")) == 409, "exclusive, and taken"
    opened("producer", path, producerName="me")
    assert status_of(lambda: opened("producer", path, producerName="me")) == 409
    assert status_of(lambda: opened("producer", "persistent/nobody/nothing/t")) == 404
    answer = requests.get(f"{server.http_url}/ws/v2/producer/{path}", timeout=60)
    assert answer.status_code == 426
    assert "ws://" in answer.json()["reason"]


# ---- REST


def test_messages_by_rest(server: ServerProcess, client: pulsar.Client, topic: str, path: str) -> None:
    consumer = client.subscribe(topic, "sub")
    messages = [
        {"payload": base64.b64encode(b"%d" % n).decode(), "key": "k", "properties": {"a": "b"}, "eventTime": 3}
        for n in range(5)
    ]
    url = f"{server.http_url}/topics/{path}"
    answer = requests.post(url, json={"producerName": "rest", "messages": messages}, timeout=60)
    assert answer.status_code == 200, answer.text
    results = answer.json()["messagePublishResults"]
    assert [result["result"] for result in results] == ["ok"] * 5
    for n in range(5):
        message = consumer.receive(30_000)
        assert (message.data(), message.partition_key(), message.event_timestamp()) == (b"%d" % n, "k", 3)
    mixed = [{"payload": "%%"}, messages[0]]
    results = requests.post(url, json={"messages": mixed}, timeout=60).json()["messagePublishResults"]
    assert [result["result"] for result in results] == ["send-error:7", "ok"]
    for body, status in (({}, 400), ({"messages": []}, 400), ({"messages": messages, "valueSchema": "{}"}, 400)):
        assert requests.post(url, json=body, timeout=60).status_code == status


def test_messages_by_rest_to_one_partition(server: ServerProcess, client: pulsar.Client, topic: str, path: str) -> None:
    requests.put(f"{server.http_url}/admin/v2/{path}/partitions", json=3, timeout=60).raise_for_status()
    consumer = client.subscribe(f"{topic}-partition-2", "sub")
    body = {"messages": [{"payload": "eA=="}]}
    url = f"{server.http_url}/topics/{path}/partitions"
    assert requests.post(f"{url}/2", json=body, timeout=60).status_code == 200
    assert receive_all(consumer, 1) == [b"x"]
    assert requests.post(f"{url}/9", json=body, timeout=60).status_code == 404
