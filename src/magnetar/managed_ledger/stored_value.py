"""Values of managed-ledger znodes as bytes: bare protobuf, or Pulsar's compressed form (u16 0x4778, i32 length, metadata, payload).

Written bare, read in both forms. Pure.
"""

from __future__ import annotations

import zlib
from typing import Final

from magnetar.base.errors import ManagedLedgerError

_MAGIC: Final = b"\x47\x78"
_COMPRESSION_NAMES: Final = {0: "NONE", 1: "LZ4", 2: "ZLIB", 3: "ZSTD", 4: "SNAPPY"}
UNCOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A value that unpacks to more is refused."""


class StoredValueError(ManagedLedgerError):
    """A stored value cannot be decoded. Nothing was changed."""

    slug = "stored-value"


def plain_value(value: bytes, path: str) -> bytes:
    """The bare protobuf bytes of a znode's value. `path` is for the error's text."""
    if not value.startswith(_MAGIC):
        return value
    length = int.from_bytes(value[2:6], "big")
    metadata, payload = value[6 : 6 + length], value[6 + length :]
    kind = (
        metadata[1] if len(metadata) >= 2 and metadata[0] == 0x08 else -1
    )  # compressionType is field 1, a one-byte varint
    if kind == 0:
        return payload
    if kind == 2:
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(payload, UNCOMPRESSED_BYTES_MAX)
        except zlib.error as error:
            raise StoredValueError(f"{path}: damaged ZLIB value ({error})") from error
        if unpacker.eof:
            return plain
        raise StoredValueError(f"{path}: ZLIB value is cut short or larger than {UNCOMPRESSED_BYTES_MAX} bytes")
    name = _COMPRESSION_NAMES.get(kind, str(kind))
    raise StoredValueError(
        f"{path} is compressed with {name}; let the broker that wrote it store it with"
        " managedLedgerInfoCompressionType=NONE and managedCursorInfoCompressionType=NONE first"
    )
