"""Commands from client to server, as ready frames; SEND as its front part, for an entry that follows as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from magnetar.wire.pulsar.PulsarApi_pb2 import CHECKPOINT, STREAM, BaseCommand, CommandAck

PROTOCOL_VERSION = 21

LAST_SEQUENCE_METADATA = "magnetar.last-sequence"
"""Key in a PRODUCER's metadata. Of a terminated topic it asks for the last sequence id of that producer name, instead of a producer, which
would be refused. An addition of magnetar's: other brokers refuse it as any PRODUCER, so Spark's connector takes that as not known."""

MANAGED_METADATA = "__pulsar.v5.managed"
"""Key in the metadata of PRODUCER and SUBSCRIBE to a partition, with the value `true`: the client follows the layout of a scalable topic
(PIP-475)."""

_SEND_COMMAND = BaseCommand(type=BaseCommand.SEND)
_SEND = _SEND_COMMAND.send


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """A schema as the protocol carries it: `type` is the protocol's number."""

    type: int
    data: bytes
    properties: Mapping[str, str]


def connect(client_version: str, auth_method: str, auth_data: bytes, proxy_to: str = "") -> BaseCommand:
    """`proxy_to`: the broker that a proxy shall connect to, host:port."""
    command = BaseCommand(type=BaseCommand.CONNECT)
    request = command.connect
    request.client_version = client_version
    request.protocol_version = PROTOCOL_VERSION
    request.feature_flags.supports_auth_refresh = True
    request.feature_flags.supports_repl_dedup_by_lid_and_eid = True
    if auth_method:
        request.auth_method_name = auth_method
        request.auth_data = auth_data
    if proxy_to:
        request.proxy_to_broker_url = proxy_to
    return command


def auth_response(client_version: str, auth_method: str, auth_data: bytes) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    command.authResponse.client_version = client_version
    command.authResponse.protocol_version = PROTOCOL_VERSION
    command.authResponse.response.auth_method_name = auth_method
    command.authResponse.response.auth_data = auth_data
    return command


def lookup(topic: str, request_id: int, authoritative: bool) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic = topic
    command.lookupTopic.request_id = request_id
    command.lookupTopic.authoritative = authoritative
    return command


def partition_metadata(topic: str, request_id: int, create: bool) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic = topic
    command.partitionMetadata.request_id = request_id
    command.partitionMetadata.metadata_auto_creation_enabled = create
    return command


def producer(topic: str, producer_id: int, request_id: int, name: str, properties: Mapping[str, str]) -> BaseCommand:
    """`name` empty: the server gives one."""
    command = BaseCommand(type=BaseCommand.PRODUCER)
    request = command.producer
    request.topic = topic
    request.producer_id = producer_id
    request.request_id = request_id
    if name:
        request.producer_name = name
        request.user_provided_producer_name = True
    for key, value in properties.items():
        request.metadata.add(key=key, value=value)
    return command


def close_producer(producer_id: int, request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = request_id
    return command


def close_consumer(consumer_id: int, request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = request_id
    return command


def unsubscribe(consumer_id: int, request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id = consumer_id
    command.unsubscribe.request_id = request_id
    return command


def flow(consumer_id: int, permits: int) -> BaseCommand:
    """So many messages more may be sent to the consumer."""
    command = BaseCommand(type=BaseCommand.FLOW)
    command.flow.consumer_id = consumer_id
    command.flow.messagePermits = permits
    return command


def acknowledge(
    consumer_id: int, request_id: int | None, ids: Iterable[tuple[int, int]], cumulative: bool
) -> BaseCommand:
    """`ids`: ledger and entry of each; one if `cumulative`. Answered by ACK_RESPONSE once it is stored, if it has a request id."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    if request_id is not None:
        command.ack.request_id = request_id
    command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
    for ledger_id, entry_id in ids:
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    return command


def redeliver(consumer_id: int, ids: Iterable[tuple[int, int]]) -> BaseCommand:
    """Ledger and entry of what shall be delivered once more."""
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = consumer_id
    for ledger_id, entry_id in ids:
        command.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
    return command


def scalable_lookup(topic: str, session_id: int, create: bool) -> BaseCommand:
    """The layout of a topic, now and whenever it changes (PIP-466)."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP)
    command.scalableTopicLookup.topic = topic
    command.scalableTopicLookup.session_id = session_id
    command.scalableTopicLookup.create_if_missing = create
    return command


def scalable_close(session_id: int) -> BaseCommand:
    """The layout is not followed any more; without an answer."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE)
    command.scalableTopicClose.session_id = session_id
    return command


def scalable_subscribe(
    topic: str, subscription: str, consumer_name: str, consumer_id: int, request_id: int, checkpoint: bool
) -> BaseCommand:
    """Take part in a subscription at the topic's controller, which assigns segments."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    request = command.scalableTopicSubscribe
    request.topic = topic
    request.subscription = subscription
    request.consumer_name = consumer_name
    request.consumer_id = consumer_id
    request.request_id = request_id
    request.consumer_type = CHECKPOINT if checkpoint else STREAM
    return command


def scalable_unsubscribe(consumer_id: int, request_id: int) -> BaseCommand:
    """The consumer leaves, and its segments go to others at once."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE)
    command.scalableTopicUnsubscribe.consumer_id = consumer_id
    command.scalableTopicUnsubscribe.request_id = request_id
    return command


def get_or_create_schema(topic: str, request_id: int, schema: SchemaDefinition) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
    request = command.getOrCreateSchema
    request.topic = topic
    request.request_id = request_id
    request.schema.name = ""
    request.schema.type = schema.type  # type: ignore[assignment]  # the stubs want the enum's own type, the wire an int
    request.schema.schema_data = schema.data
    for key, value in schema.properties.items():
        request.schema.properties.add(key=key, value=value)
    return command


def send_header(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int,
    num_messages: int,
    is_chunk: bool,
    marker: bool,
    data_bytes: int,
) -> bytes:
    """A SEND frame up to its headers and payload of `data_bytes`, which the caller sends right behind it.

    `highest_sequence_id` is 0 but for a batch whose producer gave it. The command object is reused: nothing is awaited in between.
    """
    _SEND.Clear()
    _SEND.producer_id = producer_id
    _SEND.sequence_id = sequence_id
    _SEND.num_messages = num_messages
    if highest_sequence_id:
        _SEND.highest_sequence_id = highest_sequence_id
    if is_chunk:
        _SEND.is_chunk = True
    if marker:
        _SEND.marker = True
    command = _SEND_COMMAND.SerializeToString()
    size = len(command)
    return (size + 4 + data_bytes).to_bytes(4, "big") + size.to_bytes(4, "big") + command
