"""The JSON of the WebSocket API and of REST produce, in Pulsar's form, and message ids as clients hand them around."""

from __future__ import annotations

import base64
import binascii
from typing import Final, Literal

import msgspec
from google.protobuf.message import DecodeError

from magnetar.admin.errors import BadRequestError
from magnetar.base.clock import iso_time
from magnetar.broker.errors import MetadataRefusedError
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType, MessageIdData, MessageMetadata, SingleMessageMetadata

FAILED_TO_PRODUCE, FAILED_TO_SUBSCRIBE, NOT_JSON, BAD_PAYLOAD, UNKNOWN = 1, 2, 3, 7, 8
"""Pulsar's `errorCode` of an unsuccessful answer."""

SEND_ERROR: Final = "send-error:{}"


class Outgoing(msgspec.Struct, rename="camel"):
    """A message to be published. `payload` is base64; times are milliseconds."""

    payload: str = ""
    properties: dict[str, str] | None = None
    context: str | None = None
    key: str | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False
    event_time: str | int | None = None
    sequence_id: int | None = None
    deliver_at: int = 0
    deliver_after_ms: int = 0
    encryption_param: str | None = None


class Published(msgspec.Struct, rename="camel", omit_defaults=True):
    """The answer to one message."""

    result: str
    message_id: str | None = None
    context: str | None = None
    error_msg: str | None = None
    error_code: int = 0
    schema_version: int = 0


class EncryptionKey(msgspec.Struct, rename="camel"):
    key_value: str
    metadata: dict[str, str]


class EncryptionContext(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a consumer needs to decrypt the payload itself; bytes are base64."""

    keys: dict[str, EncryptionKey]
    param: str
    algorithm: str | None
    compression_type: str
    uncompressed_message_size: int
    batch_size: int | None = None


class Incoming(msgspec.Struct, rename="camel", omit_defaults=True):
    """A message for a consumer."""

    message_id: str
    payload: str
    properties: dict[str, str]
    publish_time: str
    redelivery_count: int
    event_time: str | None = None
    key: str | None = None
    encryption_context: EncryptionContext | None = None


class Request(msgspec.Struct, rename="camel"):
    """What a consumer or a reader sends. Without a type it acknowledges."""

    type: Literal["", "acknowledge", "negativeAcknowledge", "permit", "unsubscribe", "isEndOfTopic"] | None = None
    message_id: str | None = None
    permit_messages: int | None = None


class EndOfTopic(msgspec.Struct, rename="camel"):
    end_of_topic: bool


def encoded(document: msgspec.Struct) -> str:
    return msgspec.json.encode(document).decode()


def payload_of(text: str) -> bytes:
    """Raises ValueError."""
    return base64.b64decode(text, validate=True)


def id_text(message_id: MessageIdData) -> str:
    return base64.b64encode(message_id.SerializeToString()).decode()


def id_of(text: str | None) -> MessageIdData:
    """Raises MetadataRefusedError."""
    try:
        return MessageIdData.FromString(base64.b64decode(text or "", validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise MetadataRefusedError(f"{(text or '')[:80]!r} is not a message id that this API gave") from None


def number_of(value: str | int | None, name: str) -> int:
    """Raises BadRequestError."""
    if value is None or value == "":
        return 0
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BadRequestError(f"{name} must be a number of milliseconds, not {text[:40]!r}")
    return int(text)


def incoming(
    message_id: MessageIdData,
    metadata: MessageMetadata,
    single: SingleMessageMetadata | None,
    payload: bytes,
    count: int,
) -> Incoming:
    """`count`: how often it was delivered before."""
    about = single if single is not None else metadata
    key = about.partition_key
    properties = {pair.key: pair.value for pair in about.properties}
    return Incoming(
        id_text(message_id),
        base64.b64encode(payload).decode(),
        properties,
        iso_time(metadata.publish_time),
        count,
        iso_time(about.event_time) if about.event_time else None,
        (key.decode("utf-8", "replace") if isinstance(key, bytes) else key) or None,
        _encryption(metadata) if metadata.encryption_keys else None,
    )


def _encryption(metadata: MessageMetadata) -> EncryptionContext:
    def text(value: bytes) -> str:
        return base64.b64encode(value).decode()

    keys = {
        key.key: EncryptionKey(text(key.value), {pair.key: pair.value for pair in key.metadata})
        for key in metadata.encryption_keys
    }
    batched = metadata.HasField("num_messages_in_batch")
    return EncryptionContext(
        keys,
        text(metadata.encryption_param),
        metadata.encryption_algo or None,
        CompressionType.Name(metadata.compression),
        metadata.uncompressed_size,
        metadata.num_messages_in_batch if batched else None,
    )
