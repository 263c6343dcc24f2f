"""What the value of a metadata node means, for people: by its path, with Pulsar's and BookKeeper's own names. Pure.

Text is what their shells print; JSON has the same names and plain numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from magnetar.base.errors import InvalidArgumentError, MagnetarError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.managed_ledger.stored_value import plain_value
from magnetar.metadata import paths
from magnetar.wire.bookkeeper import DataFormats_pb2 as bookkeeper
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from magnetar.wire.pulsar.SchemaStorage_pb2 import SchemaLocator

HEX_BYTES_PER_LINE: Final = 16


@dataclass(frozen=True, slots=True)
class Meaning:
    """`kind`: what the value is, in one word; `text`: as it is printed; `value`: as JSON."""

    kind: str
    text: str
    value: Any


def meaning_of(path: str, value: bytes) -> Meaning:
    """A value that is not what its path promises is shown as what it looks like: damage must be visible."""
    try:
        found = _by_path(path, value)
    except (MagnetarError, DecodeError, text_format.ParseError, UnicodeDecodeError, ValueError):
        found = None
    return found if found is not None else _by_looks(value)


def _by_path(path: str, value: bytes) -> Meaning | None:
    parts = path.strip("/").split("/")
    if path.startswith(paths.AVAILABLE_BOOKIES_PATH + "/"):
        return _binary("BookieServiceInfo", bookkeeper.BookieServiceInfoFormat, value) if value else None
    if path.startswith(paths.COOKIES_PATH + "/"):
        return _cookie(value)
    if path.startswith(paths.UNDERREPLICATION_PATH + "/"):
        return _underreplication(parts, value)
    if path.startswith(paths.LEDGERS_ROOT + "/"):
        return _ledger(path, value)
    if path.startswith(paths.MANAGED_LEDGERS_PATH + "/") and len(parts) > 5 and parts[3] == "segment":
        del parts[4]  # the topic that the segment belongs to
    if path.startswith(paths.MANAGED_LEDGERS_PATH + "/") and len(parts) == 5:
        return _binary("ManagedLedgerInfo", ManagedLedgerInfo, plain_value(value, path))
    if path.startswith(paths.MANAGED_LEDGERS_PATH + "/") and len(parts) == 6:
        return _binary("ManagedCursorInfo", ManagedCursorInfo, plain_value(value, path))
    if path.startswith(paths.SCHEMAS_PATH + "/") and len(parts) == 4:
        return _binary("SchemaLocator", SchemaLocator, value)
    return None


def _by_looks(value: bytes) -> Meaning:
    if not value:
        return Meaning("empty", "", None)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return Meaning("bytes", hex_dump(value), value.hex())
    if not all(letter.isprintable() or letter in "\n\t\r" for letter in text):
        return Meaning("bytes", hex_dump(value), value.hex())
    if text[0] in '{["':
        try:
            return Meaning("JSON", text, json.loads(text))
        except ValueError:
            return Meaning("text", text, text)
    return Meaning("text", text, text)


# ---- BookKeeper


def _ledger(path: str, value: bytes) -> Meaning | None:
    try:
        paths.ledger_id_of_path(path)
    except InvalidArgumentError:
        return None
    metadata = LedgerMetadata.from_bytes(value)
    return Meaning("LedgerMetadata", _ledger_text(metadata), ledger_json(metadata))


def _ledger_text(metadata: LedgerMetadata) -> str:
    lines = [
        f"ensembleSize: {metadata.ensemble_size}",
        f"quorumSize: {metadata.write_quorum}",
        f"ackQuorumSize: {metadata.ack_quorum}",
        f"lastEntryId: {metadata.last_entry_id}",
        f"state: {metadata.state.name}",
    ]
    for segment in metadata.segments:
        members = [f'  ensembleMember: "{member}"' for member in segment.ensemble]
        lines += ["segment {", *members, f"  firstEntryId: {segment.first_entry_id}", "}"]
    lines += [f"length: {metadata.length}", f"digestType: {metadata.digest_type.name}"]
    if metadata.ctime_ms >= 0:
        lines.append(f"ctime: {metadata.ctime_ms}")
    for key, data in metadata.custom_metadata.items():
        text = json.dumps(data.decode(errors="backslashreplace"))
        lines += ["customMetadata {", f'  key: "{key}"', f"  value: {text}", "}"]
    return "\n".join(lines)


def ledger_json(metadata: LedgerMetadata) -> dict[str, Any]:
    """Names as in the text."""
    return {
        "ensembleSize": metadata.ensemble_size,
        "quorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "lastEntryId": metadata.last_entry_id,
        "state": metadata.state.name,
        "segment": [
            {"ensembleMember": list(segment.ensemble), "firstEntryId": segment.first_entry_id}
            for segment in metadata.segments
        ],
        "length": metadata.length,
        "digestType": metadata.digest_type.name,
        "ctime": metadata.ctime_ms,
        "customMetadata": {key: data.decode(errors="replace") for key, data in metadata.custom_metadata.items()},
        "formatVersion": metadata.format_version,
    }


def _cookie(value: bytes) -> Meaning:
    text = value.decode()
    version, _, body = text.partition("\n")
    message = text_format.Parse(body, bookkeeper.CookieFormat())
    return Meaning("Cookie", text.rstrip("\n"), {"version": int(version), **_plain(message)})


_UNDERREPLICATION: Final[tuple[tuple[str, str, Callable[[], Message]], ...]] = (
    (r"LAYOUT", "LedgerRereplicationLayout", bookkeeper.LedgerRereplicationLayoutFormat),
    (r"ledgers/.*/urL\d+", "UnderreplicatedLedger", bookkeeper.UnderreplicatedLedgerFormat),
    (r"locks/urL\d+", "LockData", bookkeeper.LockDataFormat),
    (r"auditorelection/V_-?\d+", "AuditorVote", bookkeeper.AuditorVoteFormat),
    (r"checkallledgersctime", "CheckAllLedgers", bookkeeper.CheckAllLedgersFormat),
    (r"placementpolicycheckctime", "PlacementPolicyCheck", bookkeeper.PlacementPolicyCheckFormat),
    (r"replicascheckctime", "ReplicasCheck", bookkeeper.ReplicasCheckFormat),
)


def _underreplication(parts: list[str], value: bytes) -> Meaning | None:
    rest = "/".join(parts[2:])
    for pattern, kind, message in _UNDERREPLICATION:
        if value and re.fullmatch(pattern, rest):
            return _shown(kind, text_format.Parse(value.decode(), message()))
    return None


# ---- Protobuf


def _binary(kind: str, message: Callable[[], Message], value: bytes) -> Meaning:
    """Raises DecodeError, also when required fields are missing."""
    parsed = message()
    parsed.ParseFromString(value)
    return _shown(kind, parsed)


def _shown(kind: str, message: Message) -> Meaning:
    return Meaning(kind, text_format.MessageToString(message).rstrip("\n"), _plain(message))


def _plain(message: Message) -> dict[str, Any]:
    """With the field names of the .proto, and numbers as numbers (protobuf's own JSON quotes the long ones)."""
    plain = MessageToDict(message, preserving_proto_field_name=True)
    return {name: _numbers(value, message.DESCRIPTOR.fields_by_name[name]) for name, value in plain.items()}


def _numbers(value: Any, field: Any) -> Any:
    if isinstance(value, list):
        return [_number(item, field) for item in value]
    return _number(value, field)


def _number(value: Any, field: Any) -> Any:
    if isinstance(value, str) and field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        return int(value)
    if isinstance(value, dict) and field.message_type is not None and not field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name
        return {name: _numbers(item, inner[name]) for name, item in value.items()}
    return value


def hex_dump(value: bytes) -> str:
    """Offset, bytes and what of them can be printed, sixteen to a line."""
    lines = []
    for start in range(0, len(value), HEX_BYTES_PER_LINE):
        piece = value[start : start + HEX_BYTES_PER_LINE]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:08x}  {piece.hex(' '):<{HEX_BYTES_PER_LINE * 3 - 1}}  {printable}")
    return "\n".join(lines)
