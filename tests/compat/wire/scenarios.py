"""What is asked. Each scenario gets its own namespace; the name of its function is the name in the allow-list."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.compat.wire.conversation import Conversation, set_field
from tests.support.raw import ClosedByServer, connect_command, headers_and_payload, send_frame

Scenario = Callable[[Conversation], None]


def handshake(c: Conversation) -> None:
    for version in (0, 5, 12, 21):
        client = c.client(connect=False)
        c.put(client, connect_command(version))
        c.listen(client, f"CONNECT {version}")
    c.ask(client, "PING")
    c.ask(client, "CONNECT", client_version="again", protocol_version=21)
    client = c.client(connect=False)
    c.ask(client, "PING")
    client = c.client(connect=False)
    c.ask(client, "LOOKUP", topic=c.topic())


def names(c: Conversation) -> None:
    client = c.client()
    for topic in (
        c.topic(),
        c.topic(domain="non-persistent"),
        c.topic("t-partition-0"),
        c.topic("t-partition-x"),
        "short",
        "persistent://public/none/t",
        "persistent://nobody/none/t",
        "kafka://public/default/t",
        "persistent://public/t",
        "persistent://public/cluster/default/t",
        "",
        "a//b",
        "persistent://public/default/",
    ):
        for automatic in (None, False):
            c.ask(client, "PARTITIONED_METADATA", topic=topic, metadata_auto_creation_enabled=automatic)
        c.ask(client, "LOOKUP", topic=topic)


def partitioned_names(c: Conversation) -> None:
    c.admin("PUT", f"persistent/{c.namespace}/p/partitions", 3)
    client = c.client()
    for name in ("p", "p-partition-0", "p-partition-2", "p-partition-3", "p-partition-03", "p-partition--1"):
        c.ask(client, "PARTITIONED_METADATA", topic=c.topic(name))
        c.ask(client, "PARTITIONED_METADATA", topic=c.topic(name), metadata_auto_creation_enabled=False)
        c.ask(client, "LOOKUP", topic=c.topic(name))
        c.ask(client, "LOOKUP", topic=c.topic(name), authoritative=True)
    for number, name in enumerate(("p", "p-partition-3", "p-partition-0"), 1):
        c.ask(client, "PRODUCER", topic=c.topic(name), producer_id=number)
        c.ask(client, "SUBSCRIBE", topic=c.topic(name), subscription="s", subType=0, consumer_id=number)


def producers(c: Conversation) -> None:
    client = c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=2, producer_name="my-1")
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-2")
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=3)
    c.ask(client, "PRODUCER", topic="persistent://public/none/t", producer_id=4)
    c.ask(client, "PRODUCER", topic="kafka://public/none/t", producer_id=5)
    c.ask(client, "PRODUCER", topic=c.topic("other"), producer_id=6, initial_subscription_name="init")
    c.ask(client, "PRODUCER", topic=c.topic("n", "non-persistent"), producer_id=7)
    c.ask(client, "CLOSE_PRODUCER", producer_id=1)
    c.ask(client, "CLOSE_PRODUCER", producer_id=1)
    c.ask(client, "CLOSE_PRODUCER", producer_id=99)


def access_modes(c: Conversation) -> None:
    one, two = c.client(), c.client()
    c.ask(one, "PRODUCER", topic=c.topic(), producer_id=1, producer_access_mode=1, producer_name="my-1")
    c.ask(two, "PRODUCER", topic=c.topic(), producer_id=1, producer_access_mode=0, producer_name="my-2")
    c.ask(two, "PRODUCER", topic=c.topic(), producer_id=2, producer_access_mode=1, producer_name="my-3")
    c.ask(two, "PRODUCER", topic=c.topic(), producer_id=3, producer_access_mode=2, producer_name="my-4")
    c.ask(one, "CLOSE_PRODUCER", producer_id=1)
    c.listen(two, "the waiting one")
    c.ask(one, "PRODUCER", topic=c.topic(), producer_id=4, producer_access_mode=3, producer_name="my-5")
    c.listen(two, "the fenced one")
    c.send(two, b"late", producer_id=3)


def sending(c: Conversation) -> None:
    client = c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    c.send(client, b"one")
    c.send(client, b"two", sequence_id=1, partition_key="k")
    c.ask(client, "SEND", headers_and_payload(b"x", 2)[:-1] + b"y", producer_id=1, sequence_id=2)
    c.send(client, b"three", sequence_id=2)
    c.ask(
        client,
        "SEND",
        headers_and_payload(b"b", 3, num_messages_in_batch=2),
        producer_id=1,
        sequence_id=3,
        num_messages=2,
        highest_sequence_id=4,
    )
    c.send(client, b"unknown producer", producer_id=9)
    client = c.client()
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=1, consumer_id=1, initialPosition=1)
    c.ask(client, "FLOW", consumer_id=1, messagePermits=2)
    c.ask(client, "FLOW", consumer_id=1, messagePermits=10)
    c.ask(client, "FLOW", consumer_id=7, messagePermits=10)


def subscribing(c: Conversation) -> None:
    one, two = c.client(), c.client()
    c.ask(
        one, "SUBSCRIBE", topic=c.topic("none"), subscription="s", subType=0, consumer_id=9, force_topic_creation=False
    )
    c.ask(one, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1, consumer_name="my-1")
    c.ask(two, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1, consumer_name="my-2")
    c.ask(two, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=1, consumer_id=1, consumer_name="my-2")
    c.ask(one, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1, consumer_name="my-1")
    c.ask(one, "SUBSCRIBE", topic=c.topic(), subscription="", subType=0, consumer_id=3)
    c.ask(one, "SUBSCRIBE", topic=c.topic(), subscription="r", subType=0, consumer_id=4, durable=False)
    c.ask(
        one,
        "SUBSCRIBE",
        topic=c.topic(),
        subscription="r2",
        subType=0,
        consumer_id=5,
        durable=False,
        start_message_id={"ledgerId": 2**64 - 1, "entryId": 2**64 - 1},
    )
    c.ask(one, "UNSUBSCRIBE", consumer_id=1)
    c.ask(one, "UNSUBSCRIBE", consumer_id=1)
    c.ask(one, "CLOSE_CONSUMER", consumer_id=77)
    c.ask(one, "SUBSCRIBE", topic="persistent://public/none/t", subscription="s", subType=0, consumer_id=6)
    c.ask(one, "SUBSCRIBE", topic="kafka://public/none/t", subscription="s", subType=0, consumer_id=6)
    c.ask(one, "SUBSCRIBE", topic=c.topic("n", "non-persistent"), subscription="s", subType=0, consumer_id=8)


def failover(c: Conversation) -> None:
    """Who is active in the end: Pulsar waits a second before it says so, and says it again at every change."""
    clients = {"my-a": c.client(), "my-b": c.client()}
    active: dict[str, bool] = {}
    for name, client in clients.items():
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        fields = {"topic": c.topic(), "subscription": "f", "subType": 2, "consumer_id": 1, "request_id": 1}
        for field, value in {**fields, "consumer_name": name}.items():
            set_field(command.subscribe, field, value)
        c.put(client, command)
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            for each, other in clients.items():
                with suppress(TimeoutError):
                    answer = other.receive(0.05)[0]
                    if answer.type == BaseCommand.ACTIVE_CONSUMER_CHANGE:
                        active[each] = answer.active_consumer_change.is_active
        c.log.append((f"{name} has subscribed", [dict(sorted(active.items()))]))


def key_shared(c: Conversation) -> None:
    one, two = c.client(), c.client()
    meta = {"keySharedMode": 1, "hashRanges": [{"start": 0, "end": 32767}]}
    c.ask(one, "SUBSCRIBE", topic=c.topic(), subscription="k", subType=3, consumer_id=1, keySharedMeta=meta)
    c.ask(two, "SUBSCRIBE", topic=c.topic(), subscription="k", subType=3, consumer_id=1, keySharedMeta=meta)
    c.ask(
        two,
        "SUBSCRIBE",
        topic=c.topic(),
        subscription="k",
        subType=3,
        consumer_id=2,
        keySharedMeta={"keySharedMode": 0},
    )
    c.ask(
        two,
        "SUBSCRIBE",
        topic=c.topic(),
        subscription="k",
        subType=3,
        consumer_id=3,
        keySharedMeta={"keySharedMode": 1, "hashRanges": [{"start": 40000, "end": 65536}]},
    )
    c.ask(
        two,
        "SUBSCRIBE",
        topic=c.topic(),
        subscription="k",
        subType=3,
        consumer_id=4,
        keySharedMeta={"keySharedMode": 1},
    )
    c.ask(two, "SUBSCRIBE", topic=c.topic(), subscription="k", subType=1, consumer_id=5)


def acknowledging(c: Conversation) -> None:
    client = c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    sent = [c.send(client, b"m%d" % number, sequence_id=number)[0].send_receipt.message_id for number in range(4)]
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=1, consumer_id=1, initialPosition=1)
    c.ask(client, "FLOW", consumer_id=1, messagePermits=10)

    def at(number: int) -> list[dict[str, int]]:
        return [{"ledgerId": sent[number].ledgerId, "entryId": sent[number].entryId}]

    c.log.append(("ACK", []))
    for fields in (
        {"ack_type": 0, "message_id": at(0)},
        {"ack_type": 0, "message_id": at(0)},
        {"ack_type": 1, "message_id": at(1)},
        {"ack_type": 0, "message_id": [{"ledgerId": 999_999, "entryId": 0}]},
        {"ack_type": 0, "message_id": []},
    ):
        c.put(client, _acknowledgement(1, 50, fields))
        c.listen(client, f"ACK {fields['ack_type']}", 1.0)
    c.put(client, _acknowledgement(9, 51, {"ack_type": 0, "message_id": at(2)}))
    c.listen(client, "ACK of an unknown consumer", 1.0)
    c.ask(client, "REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    c.ask(client, "GET_LAST_MESSAGE_ID", consumer_id=1)
    c.ask(client, "GET_LAST_MESSAGE_ID", consumer_id=9)

    c.ask(client, "SEEK", consumer_id=9, message_publish_time=1)
    c.ask(client, "SEEK", consumer_id=1, message_publish_time=1)
    c.listen(client, "after the seek", 1.0)


def seeking_nowhere(c: Conversation) -> None:
    client = c.client()
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=1, consumer_id=1, initialPosition=1)
    c.ask(client, "SEEK", consumer_id=1)


def _acknowledgement(consumer_id: int, request_id: int, fields: dict[str, Any]) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.request_id = request_id
    for name, value in fields.items():
        set_field(command.ack, name, value)
    return command


def last_message(c: Conversation) -> None:
    client = c.client()
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1)
    c.ask(client, "GET_LAST_MESSAGE_ID", consumer_id=1)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    c.send(client, b"x")
    c.ask(client, "GET_LAST_MESSAGE_ID", consumer_id=1)


def topic_lists(c: Conversation) -> None:
    client = c.client()
    for name in ("a", "b"):
        c.admin("PUT", f"persistent/{c.namespace}/{name}")
    c.admin("PUT", f"persistent/{c.namespace}/p/partitions", 2)
    for mode in (0, 1, 2):
        c.ask(client, "GET_TOPICS_OF_NAMESPACE", namespace=c.namespace, mode=mode)
    c.ask(
        client,
        "GET_TOPICS_OF_NAMESPACE",
        namespace=c.namespace,
        mode=0,
        topics_pattern=f"persistent://{c.namespace}/a.*",
    )
    c.ask(client, "GET_TOPICS_OF_NAMESPACE", namespace=c.namespace, mode=0, topics_hash="0")
    c.ask(client, "GET_TOPICS_OF_NAMESPACE", namespace="public/none", mode=0)
    c.ask(client, "GET_TOPICS_OF_NAMESPACE", namespace="nobody/none", mode=0)
    c.ask(client, "GET_TOPICS_OF_NAMESPACE", namespace="nonsense", mode=0)
    c.ask(
        client, "WATCH_TOPIC_LIST", watcher_id=1, namespace=c.namespace, topics_pattern=f"persistent://{c.namespace}/.*"
    )
    c.ask(client, "WATCH_TOPIC_LIST_CLOSE", watcher_id=1)


def schemas(c: Conversation) -> None:
    client = c.client()
    text = {"name": "", "type": 1, "schema_data": b""}
    none = {"name": "", "type": 0, "schema_data": b""}
    c.ask(client, "GET_SCHEMA", topic=c.topic())
    c.ask(client, "GET_OR_CREATE_SCHEMA", topic=c.topic(), schema=text)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1", schema=text)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=2, producer_name="my-2", schema={**text, "type": 7})
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=3, producer_name="my-3", schema=none)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=4, producer_name="my-4")
    c.ask(client, "GET_SCHEMA", topic=c.topic())
    c.ask(client, "GET_SCHEMA", topic=c.topic(), schema_version=b"\0\0\0\0\0\0\0\0")
    c.ask(client, "GET_SCHEMA", topic=c.topic(), schema_version=b"\0\0\0\0\0\0\0\7")
    c.ask(client, "GET_OR_CREATE_SCHEMA", topic=c.topic(), schema=text)
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1, schema={**text, "type": 7})
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s2", subType=0, consumer_id=2, schema=text)
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s3", subType=0, consumer_id=3, schema=none)


def bytes_schemas(c: Conversation) -> None:
    """Type NONE (0), as the Go client sends BYTES: a version like any other."""
    client = c.client()
    none = {"name": "", "type": 0, "schema_data": b""}
    text = {"name": "", "type": 1, "schema_data": b""}
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1", schema=none)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=2, producer_name="my-2", schema=text)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=3, producer_name="my-3", schema=none)
    c.ask(client, "GET_SCHEMA", topic=c.topic())
    c.ask(client, "GET_SCHEMA", topic=c.topic(), schema_version=b"\0\0\0\0\0\0\0\0")
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1, schema=none)
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s2", subType=0, consumer_id=2, schema=text)
    c.ask(client, "SUBSCRIBE", topic=c.topic("u"), subscription="s", subType=0, consumer_id=3, schema=none)
    c.ask(client, "GET_SCHEMA", topic=c.topic("u"))
    c.ask(client, "PRODUCER", topic=c.topic("u"), producer_id=4, producer_name="my-4", schema=text)
    c.admin("GET", f"schemas/{c.namespace}/t/schema", record=True)
    c.admin("GET", f"schemas/{c.namespace}/u/schema", record=True)


def deleted_schemas(c: Conversation) -> None:
    client = c.client()
    text = {"name": "", "type": 1, "schema_data": b""}
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1", schema=text)
    c.ask(client, "CLOSE_PRODUCER", producer_id=1)
    path = f"schemas/{c.namespace}/t"
    c.admin("DELETE", f"{path}/schema", record=True)
    c.ask(client, "GET_SCHEMA", topic=c.topic())
    c.ask(client, "GET_SCHEMA", topic=c.topic(), schema_version=b"\0\0\0\0\0\0\0\0")
    c.ask(client, "GET_SCHEMA", topic=c.topic(), schema_version=b"\0\0\0\0\0\0\0\1")
    c.admin("GET", f"{path}/schema", record=True)
    c.admin("GET", f"{path}/schema/0", record=True)
    c.admin("GET", f"{path}/schemas", record=True)
    c.admin("DELETE", f"{path}/schema", record=True)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=2, producer_name="my-2", schema={**text, "type": 7})
    c.admin("GET", f"{path}/schemas", record=True)


def transactions(c: Conversation) -> None:
    client = c.client()
    assigned = "persistent://pulsar/system/transaction_coordinator_assign"
    c.ask(client, "PARTITIONED_METADATA", topic=assigned)
    c.ask(client, "LOOKUP", topic=f"{assigned}-partition-0")
    c.ask(client, "TC_CLIENT_CONNECT_REQUEST", tc_id=0)
    c.ask(client, "TC_CLIENT_CONNECT_REQUEST", tc_id=9999)
    c.ask(client, "NEW_TXN", tc_id=9999)
    c.ask(client, "ADD_PARTITION_TO_TXN", txnid_least_bits=2**40, txnid_most_bits=0, partitions=[c.topic()])
    c.ask(client, "ADD_SUBSCRIPTION_TO_TXN", txnid_least_bits=2**40, txnid_most_bits=0)
    c.ask(client, "END_TXN", txnid_least_bits=2**40, txnid_most_bits=0, txn_action=0)
    c.ask(client, "END_TXN_ON_PARTITION", txnid_least_bits=2**40, txnid_most_bits=0, topic=c.topic(), txn_action=0)


def termination(c: Conversation) -> None:
    client, reader = c.client(), c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    c.send(client, b"x")
    c.ask(reader, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1, initialPosition=1)
    c.ask(reader, "FLOW", consumer_id=1, messagePermits=10)
    c.admin("POST", f"persistent/{c.namespace}/t/terminate")
    c.listen(client, "the producer", 1.0)
    c.send(client, b"y", sequence_id=1)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=2, producer_name="my-2")
    c.listen(reader, "the consumer", 1.0)
    c.ask(reader, "GET_LAST_MESSAGE_ID", consumer_id=1)
    c.ask(reader, "SUBSCRIBE", topic=c.topic(), subscription="s2", subType=0, consumer_id=2, initialPosition=1)
    c.ask(reader, "FLOW", consumer_id=2, messagePermits=10)


def termination_while_sending(c: Conversation) -> None:
    """The kinds of what a producer is told, each row of equal ones once: receipts, then the notice."""
    client = c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    ended = threading.Timer(0.3, c.admin, ("POST", f"persistent/{c.namespace}/t/terminate"))
    ended.start()
    kinds: list[str] = []
    number, until = 0, time.monotonic() + 1.0
    with suppress(ClosedByServer, TimeoutError):
        while time.monotonic() < until:
            for _ in range(20):
                client.send_bytes(send_frame(b"x", number))
                number += 1
            with suppress(TimeoutError):
                while True:
                    kinds.append(_kind(client.receive(0.002)[0]))
    ended.join()
    with suppress(TimeoutError):
        while True:
            kinds.append(_kind(client.receive(1.0)[0]))
    told = [
        kind for kind in kinds if not kind.startswith("SEND_ERROR")
    ]  # whether there is one left to answer is chance
    row = [kind for place, kind in enumerate(told) if place == 0 or told[place - 1] != kind]
    c.log.append(("SEND all the time", row))


def _kind(command: BaseCommand) -> str:
    error = f" {ServerError.Name(command.send_error.error)}" if command.type == BaseCommand.SEND_ERROR else ""
    return BaseCommand.Type.Name(command.type) + error


def deletion(c: Conversation) -> None:
    client, reader = c.client(), c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    c.ask(reader, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1)
    c.admin("DELETE", f"persistent/{c.namespace}/t", record=True)
    c.admin("DELETE", f"persistent/{c.namespace}/t?force=true")
    c.listen(client, "the producer", 1.0)
    c.listen(reader, "the consumer", 1.0)


def unloading(c: Conversation) -> None:
    client, reader = c.client(), c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    c.ask(reader, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1)
    c.admin("PUT", f"persistent/{c.namespace}/t/unload")
    c.listen(client, "the producer", 1.0)
    c.listen(reader, "the consumer", 1.0)
    c.send(client, b"late", sequence_id=1)


def forced_subscription_deletion(c: Conversation) -> None:
    reader = c.client()
    c.ask(reader, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=0, consumer_id=1)
    c.admin("DELETE", f"persistent/{c.namespace}/t/subscription/s", record=True)
    c.admin("DELETE", f"persistent/{c.namespace}/t/subscription/s?force=true")
    c.listen(reader, "the consumer", 1.0)


def encryption_required(c: Conversation) -> None:
    client = c.client()
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=1, producer_name="my-1")
    c.admin("POST", f"namespaces/{c.namespace}/encryptionRequired", True)
    c.listen(client, "the producer", 1.0)
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=2, producer_name="my-2")
    c.ask(client, "PRODUCER", topic=c.topic(), producer_id=3, producer_name="my-3", encrypted=True)
    c.send(client, b"plain", producer_id=3)


def limits(c: Conversation) -> None:
    client = c.client()
    c.admin("PUT", f"persistent/{c.namespace}/t")
    for policy in ("maxProducersPerTopic", "maxConsumersPerTopic", "maxSubscriptionsPerTopic"):
        c.admin("POST", f"namespaces/{c.namespace}/{policy}", 1)
    time.sleep(1)
    for number in (1, 2):
        c.ask(client, "PRODUCER", topic=c.topic(), producer_id=number, producer_name=f"my-{number}")
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=1, consumer_id=1)
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s", subType=1, consumer_id=2)
    c.ask(client, "SUBSCRIBE", topic=c.topic(), subscription="s2", subType=1, consumer_id=3)


SCENARIOS: tuple[Scenario, ...] = tuple(
    value
    for name, value in list(globals().items())
    if inspect.isfunction(value)
    and value.__module__ == __name__
    and not name.startswith("_")
    and list(inspect.signature(value).parameters) == ["c"]
)
