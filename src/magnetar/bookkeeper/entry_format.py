"""The packed entry: what a client sends to a bookie and gets back (BookKeeper proto/checksum). Pure.

Layout, big-endian: `ledger id i64 | entry id i64 | LAC i64 | length i64 | digest | payload`. `length` counts the payload bytes of
the whole ledger up to and including this entry. The digest covers the 32 bytes before it and the payload after it. A packed
LAC (explicit LAC) is `ledger id i64 | LAC i64 | digest over these 16 bytes`.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from magnetar.base.checksum import crc32c, crc32c_extend
from magnetar.bookkeeper.errors import DigestMismatchError
from magnetar.wire.pulsar.kernel import kernel

METADATA_BYTES: Final = 32
"""Bytes before the digest."""

ENTRY_BYTES_MIN: Final = 24
"""Bytes a bookie insists on: it reads the LAC at offset 16."""

MASTER_KEY_BYTES: Final = 20

_METADATA = Struct(">qqqq")
_LAC = Struct(">qq")
_IDS = Struct(">qqq")
_U32 = Struct(">I")
_U64 = Struct(">Q")

_pack_metadata = _METADATA.pack
_pack_u32 = _U32.pack
_unpack_metadata = _METADATA.unpack_from
_unpack_ids = _IDS.unpack_from

_pack_with_crc32c: Final[Callable[[int, int, int, int, list[bytes]], tuple[list[bytes], int]] | None] = (
    kernel and kernel.pack_run
)

DigestFunction = Callable[[bytes, bytes], bytes]
"""`digest(head, payload)` -> the digest's bytes."""


class DigestType(IntEnum):
    """The numbers of the ledger metadata's enum."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


def master_key(password: bytes) -> bytes:
    """The 20-byte key that a bookie compares: SHA-1 of "ledger" and the password."""
    return hashlib.sha1(b"ledger" + password).digest()


class Digest:
    """How the entries of one ledger are protected: `size_bytes`, and `compute(head, payload)` -> bytes of that size."""

    __slots__ = ("compute", "payload_offset", "size_bytes", "type")

    def __init__(self, digest_type: DigestType, password: bytes = b"") -> None:
        self.type = digest_type
        self.compute: DigestFunction
        if digest_type is DigestType.CRC32C:
            self.size_bytes, self.compute = 4, _digest_crc32c
        elif digest_type is DigestType.CRC32:
            self.size_bytes, self.compute = 8, _digest_crc32
        elif digest_type is DigestType.HMAC:
            self.size_bytes, self.compute = 20, _digest_hmac(hashlib.sha1(b"mac" + password).digest())
        else:
            self.size_bytes, self.compute = 0, _digest_nothing
        self.payload_offset = METADATA_BYTES + self.size_bytes


class UnpackedEntry(NamedTuple):
    """A packed entry whose digest and ids have been checked."""

    entry_id: int
    lac: int
    length: int
    payload: bytes


def pack_entry(ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes, digest: Digest) -> bytes:
    """The bytes a bookie stores. `length`: the ledger's payload bytes including this one's."""
    head = _pack_metadata(ledger_id, entry_id, lac, length)
    return b"".join((head, digest.compute(head, payload), payload))


def pack_run(
    ledger_id: int, first_entry_id: int, lac: int, length: int, payloads: list[bytes], digest: Digest
) -> tuple[list[bytes], int]:
    """Entries with consecutive ids, and the ledger's length with them. `length`: without them."""
    if _pack_with_crc32c is not None and digest.type is DigestType.CRC32C:
        return _pack_with_crc32c(ledger_id, first_entry_id, lac, length, payloads)
    return pack_run_in_python(ledger_id, first_entry_id, lac, length, payloads, digest)


def pack_run_in_python(
    ledger_id: int, first_entry_id: int, lac: int, length: int, payloads: list[bytes], digest: Digest
) -> tuple[list[bytes], int]:
    """See `pack_run`."""
    packed = []
    compute = None if digest.type is DigestType.CRC32C else digest.compute
    for entry_id, payload in enumerate(payloads, first_entry_id):
        length += len(payload)
        head = _pack_metadata(ledger_id, entry_id, lac, length)
        if compute is None:
            packed.append(b"".join((head, _pack_u32(crc32c_extend(crc32c(head), payload)), payload)))
        else:
            packed.append(b"".join((head, compute(head, payload), payload)))
    return packed, length


def unpack_entry(packed: bytes, digest: Digest, ledger_id: int, entry_id: int | None) -> UnpackedEntry:
    """Check digest and ids and take the entry apart. `entry_id` None: any (the answer to a read of the last entry).

    Raises DigestMismatchError when the bytes are too short, damaged, or those of another entry.
    """
    offset = digest.payload_offset
    if len(packed) < offset:
        raise DigestMismatchError(f"ledger {ledger_id} entry {entry_id}: {len(packed)} bytes are not a packed entry")
    found_ledger, found_entry, lac, length = _unpack_metadata(packed)
    payload = packed[offset:]
    if digest.compute(packed[:METADATA_BYTES], payload) != packed[METADATA_BYTES:offset]:
        raise DigestMismatchError(f"ledger {ledger_id} entry {entry_id}: the digest does not match")
    if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
        raise DigestMismatchError(
            f"ledger {ledger_id} entry {entry_id}: the bookie answered with {found_ledger}:{found_entry}"
        )
    return UnpackedEntry(found_entry, lac, length, payload)


def unpack_run(packed: list[bytes], digest: Digest, ledger_id: int, first_entry_id: int) -> list[UnpackedEntry]:
    """Entries with consecutive ids, each checked like `unpack_entry`: those before the first one that is damaged.

    Raises DigestMismatchError when that is the first of all.
    """
    entries: list[UnpackedEntry] = []
    if digest.type is DigestType.CRC32C:
        offset = digest.payload_offset
        for entry_id, data in enumerate(packed, first_entry_id):
            if len(data) < offset:
                break
            found_ledger, found_entry, lac, length = _unpack_metadata(data)
            payload = data[offset:]
            crc = crc32c_extend(crc32c(data[:METADATA_BYTES]), payload)
            if found_entry != entry_id or found_ledger != ledger_id or data[METADATA_BYTES:offset] != _pack_u32(crc):
                break
            entries.append(UnpackedEntry(entry_id, lac, length, payload))
    if len(entries) < len(packed):  # of another digest, or the one that says what is wrong
        try:
            for entry_id, data in enumerate(packed[len(entries) :], first_entry_id + len(entries)):
                entries.append(unpack_entry(data, digest, ledger_id, entry_id))
        except DigestMismatchError:
            if not entries:
                raise
    return entries


def peek_ids(packed: bytes) -> tuple[int, int, int]:
    """(ledger id, entry id, LAC) of at least 24 bytes, unchecked."""
    ledger_id, entry_id, lac = _IDS.unpack_from(packed)
    return ledger_id, entry_id, lac


def highest_lac_in_python(
    ledger_id: int, entry_ids: Sequence[int], entries: list[bytes], entry_bytes_max: int
) -> int | None:
    """The highest LAC that packed entries carry, at least -1; None when one is not the entry of its id, or is too short or too long."""
    highest = -1
    try:
        for entry_id, entry in zip(entry_ids, entries, strict=True):
            found_ledger, found_entry, lac = _unpack_ids(entry)
            if found_ledger != ledger_id or found_entry != entry_id or len(entry) > entry_bytes_max:
                return None
            if lac > highest:
                highest = lac
    except struct_error:
        return None
    return highest


highest_lac: Callable[[int, Sequence[int], list[bytes], int], int | None] = (
    kernel.highest_lac if kernel else highest_lac_in_python
)


def pack_lac(ledger_id: int, lac: int, digest: Digest) -> bytes:
    """The body of an explicit LAC."""
    head = _LAC.pack(ledger_id, lac)
    return head + digest.compute(head, b"")


def unpack_lac(body: bytes, digest: Digest, ledger_id: int) -> int:
    """The LAC of an explicit LAC's body. Raises DigestMismatchError when it is damaged or another ledger's."""
    if len(body) != _LAC.size + digest.size_bytes:
        raise DigestMismatchError(f"ledger {ledger_id}: {len(body)} bytes are not a packed LAC")
    found_ledger, lac = _LAC.unpack_from(body)
    if digest.compute(body[: _LAC.size], b"") != body[_LAC.size :]:
        raise DigestMismatchError(f"ledger {ledger_id}: the digest of the explicit LAC does not match")
    if found_ledger != ledger_id:
        raise DigestMismatchError(f"ledger {ledger_id}: the explicit LAC is that of ledger {found_ledger}")
    return int(lac)


def _digest_crc32c(head: bytes, payload: bytes) -> bytes:
    return _U32.pack(crc32c_extend(crc32c(head), payload))


def _digest_crc32(head: bytes, payload: bytes) -> bytes:
    return _U64.pack(zlib.crc32(payload, zlib.crc32(head)))


def _digest_hmac(key: bytes) -> DigestFunction:
    def compute(head: bytes, payload: bytes) -> bytes:
        return hmac.digest(key, head + payload, "sha1")

    return compute


def _digest_nothing(head: bytes, payload: bytes) -> bytes:
    return b""
