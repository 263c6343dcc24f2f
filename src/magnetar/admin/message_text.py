"""Messages as text: batches unpacked, payloads decoded by the schema that they name."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.admin.call import Call
from magnetar.admin.documents.topics import NewMessage, ShownMessage
from magnetar.admin.errors import BadRequestError
from magnetar.base.printable import as_text
from magnetar.broker.schemas.types import Schema, SchemaId, SchemaType
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.pulsar.batches import is_batch, unpack
from magnetar.wire.pulsar.compression import PayloadError, decompress
from magnetar.wire.pulsar.headers import parse_metadata, payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata

TEXT_CHARS_MAX: Final = 4_096
"""Characters of a payload that are shown; the rest is left out, and the message says so."""

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A batch or payload that stands for more is not unpacked."""

LINE_CHARS_MAX: Final = 100
"""Longer JSON is laid out over several lines."""

PROPERTIES_MAX: Final = 100
"""Properties of a message that are shown."""


class Unpacked(NamedTuple):
    """One message of an entry. `batch_index` is -1 outside of a batch; `problem` says why there is no payload."""

    metadata: MessageMetadata
    single: SingleMessageMetadata | None
    payload: bytes
    batch_index: int = -1
    problem: str = ""

    @property
    def _own(self) -> MessageMetadata | SingleMessageMetadata:
        return self.metadata if self.single is None else self.single

    @property
    def key(self) -> str:
        return as_text(self._own.partition_key)

    @property
    def properties(self) -> dict[str, str]:
        pairs = list(self._own.properties)[:PROPERTIES_MAX]
        return {as_text(pair.key): as_text(pair.value) for pair in pairs}


async def unpacked(call: Call, entry: Entry) -> list[Unpacked]:
    """An entry's messages; none of a marker. What cannot be unpacked is one message with its problem."""
    try:
        metadata, payload = parse_metadata(entry.data), payload_of(entry.data)
    except (ValueError, DecodeError):
        return []
    if metadata.HasField("marker_type"):
        return []
    if metadata.encryption_keys:
        return [Unpacked(metadata, None, b"", problem="encrypted: only its consumers have the key")]
    try:
        async with call.admin.unpacking:
            if is_batch(metadata):
                found = await asyncio.to_thread(unpack, metadata, payload, UNPACKED_BYTES_MAX)
                return [
                    Unpacked(metadata, single, data, index)
                    for index, (single, data) in enumerate(found)
                    if not single.compacted_out
                ]
            if metadata.compression != CompressionType.NONE and metadata.num_chunks_from_msg <= 1:
                size = metadata.uncompressed_size
                payload = await asyncio.to_thread(decompress, metadata.compression, payload, size, UNPACKED_BYTES_MAX)
    except PayloadError as error:
        return [Unpacked(metadata, None, b"", problem=str(error))]
    problem = "a chunk of a larger message" if metadata.num_chunks_from_msg > 1 else ""
    return [Unpacked(metadata, None, payload, problem=problem)]


class MessageText:
    """Remembers the schemas that one request needs."""

    def __init__(self, call: Call) -> None:
        self._registry = call.broker.schemas.registry
        self._schema_id = SchemaId.of(call.topic)
        self._known: dict[bytes, Schema | None] = {}

    async def shown(self, entry: Entry, message: Unpacked) -> ShownMessage:
        metadata, payload = message.metadata, message.payload
        schema = await self._schema(metadata.schema_version)
        encoding, text = ("none", message.problem) if message.problem else decoded(payload, schema)
        own = message.single if message.single is not None else metadata
        return ShownMessage(
            ledger_id=entry.ledger_id,
            entry_id=entry.entry_id,
            batch_index=message.batch_index,
            publish_time=metadata.publish_time,
            event_time=own.event_time,
            deliver_at_time=metadata.deliver_at_time,
            producer_name=as_text(metadata.producer_name),
            sequence_id=own.sequence_id,
            key=message.key if own.HasField("partition_key") else None,
            ordering_key=bytes(own.ordering_key).decode("utf-8", "backslashreplace") or None,
            properties=message.properties,
            size=len(payload),
            replicated_from=as_text(metadata.replicated_from) or None,
            transaction=f"({metadata.txnid_most_bits},{metadata.txnid_least_bits})"
            if metadata.txnid_least_bits
            else None,
            schema_version=int.from_bytes(metadata.schema_version, "big")
            if len(metadata.schema_version) == 8
            else None,
            encoding=encoding,
            text=text[:TEXT_CHARS_MAX],
            truncated=len(text) > TEXT_CHARS_MAX,
        )

    async def _schema(self, version: bytes) -> Schema | None:
        if len(version) != 8:
            return None
        if version not in self._known:
            stored = await self._registry.version(self._schema_id, int.from_bytes(version, "big"))
            self._known[bytes(version)] = None if stored is None else stored.schema
        return self._known[bytes(version)]

    async def encoded(self, message: NewMessage) -> tuple[bytes, bytes]:
        """A text as the topic's latest schema says, with that schema's version; as it stands otherwise. Raises BadRequestError."""
        if not message.by_schema:
            return message.payload.encode(), b""
        stored = await self._registry.latest(self._schema_id)
        if stored is None:
            raise BadRequestError("the topic has no schema; publish the text as it stands (bySchema false)")
        return encoded(message.payload, stored.schema), stored.version.to_bytes(8, "big")


# ---- Payloads

_NUMBERS: Final[Mapping[SchemaType, str]] = {
    SchemaType.INT8: ">b",
    SchemaType.INT16: ">h",
    SchemaType.INT32: ">i",
    SchemaType.INT64: ">q",
    SchemaType.FLOAT: ">f",
    SchemaType.DOUBLE: ">d",
}
"""As Pulsar's schemas write them, in struct's terms."""


def decoded(payload: bytes, schema: Schema | None) -> tuple[str, str]:
    """(how it was decoded, text). What is not what its schema says is shown as bytes are: as UTF-8 if it is, else in hexadecimal."""
    if schema is not None:
        try:
            if schema.type is SchemaType.AVRO:
                return "AVRO", _pretty(_from_avro(payload, schema))
            if schema.type in _NUMBERS:
                return schema.type.name, repr(struct.unpack(_NUMBERS[schema.type], payload)[0])
            if schema.type is SchemaType.BOOLEAN and len(payload) == 1:
                return "BOOLEAN", str(payload != b"\0").lower()
        except Exception:
            return "hex", payload[: TEXT_CHARS_MAX + 1].hex()  # whatever bytes do to a decoder, the page is shown
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "hex", payload[: TEXT_CHARS_MAX + 1].hex()
    return _as_json(text) or ("STRING" if schema is not None and schema.type is SchemaType.STRING else "text", text)


def _as_json(text: str) -> tuple[str, str] | None:
    """Objects and lists, laid out; what is long stays as it is."""
    if not text.lstrip().startswith(("{", "[")) or len(text) > TEXT_CHARS_MAX:
        return None
    try:
        return "JSON", _pretty(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _pretty(value: Any) -> str:
    """On one line where it fits there."""
    line = json.dumps(value, ensure_ascii=False, default=_not_json)
    return line if len(line) <= LINE_CHARS_MAX else json.dumps(value, indent=2, ensure_ascii=False, default=_not_json)


def _not_json(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _avro() -> Any:
    """Raises BadRequestError where the package is not installed."""
    try:
        import fastavro
    except ImportError:
        raise BadRequestError("AVRO needs the package fastavro at the server: pip install 'magnetar[spark]'") from None
    return fastavro


def _from_avro(payload: bytes, schema: Schema) -> Any:
    fastavro = _avro()
    return fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(json.loads(schema.data)))


def encoded(text: str, schema: Schema) -> bytes:
    """Raises BadRequestError for a text that is not of the schema."""
    if schema.type is SchemaType.STRING:
        return text.encode()
    if schema.type not in (SchemaType.JSON, SchemaType.AVRO):
        raise BadRequestError(f"a {schema.type.name} cannot be written by hand; AVRO, JSON and STRING can")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRequestError(f"the payload is not JSON: {error}") from None
    if schema.type is SchemaType.JSON:
        return json.dumps(value).encode()
    return _to_avro(value, schema)


def _to_avro(value: Any, schema: Schema) -> bytes:
    fastavro, written = _avro(), io.BytesIO()
    write: Callable[..., None] = fastavro.schemaless_writer
    try:
        write(written, fastavro.parse_schema(json.loads(schema.data)), value)
    except Exception as error:  # of many kinds, all of which mean that the value does not fit
        raise BadRequestError(f"the payload is not what the schema says: {error}") from None
    return written.getvalue()
