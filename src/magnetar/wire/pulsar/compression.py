"""The codecs of message payloads, bounded: LZ4 blocks, ZLIB, ZSTD frames, raw Snappy, as Pulsar's clients write them.

The output's size is what the message declares; a declaration beyond the caller's cap, or beyond what its codec could make of so
few bytes, is refused before anything is allocated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from magnetar.base.errors import MagnetarError
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType

_RATIO_MAX: Final[dict[int, int]] = {
    CompressionType.LZ4: 256,
    CompressionType.ZLIB: 1040,
    CompressionType.ZSTD: 40_000,
    CompressionType.SNAPPY: 32,
}
"""Output bytes for each input byte that no valid input exceeds, whatever its length; rounded up from what the formats allow.

LZ4: each byte that lengthens a match adds 255 at most. DEFLATE: two bits at least for a match of 258, so 1,032. Zstandard: a block
yields at most 128 KiB and takes at least 4 bytes (the one that repeats a byte), so 32,768. Snappy: three bytes copy at most 64."""


class PayloadError(MagnetarError):
    """A payload is not what its metadata says: damaged, of an unknown codec, or larger than may be unpacked."""

    slug = "payload"


def unpacked_bytes_max(codec: int, size_bytes: int) -> int:
    """Bytes that `size_bytes` of a payload can stand for. A payload that is not compressed stands for itself."""
    return size_bytes * _RATIO_MAX.get(codec, 1)


def compress(codec: int, data: bytes) -> bytes:
    """`data` in the codec with this number of `CompressionType`. Raises PayloadError for an unknown one."""
    if codec == CompressionType.NONE:
        return data
    if codec == CompressionType.LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if codec == CompressionType.ZLIB:
        return zlib.compress(data)
    if codec == CompressionType.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    if codec == CompressionType.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    raise PayloadError(f"compression {codec} is unknown here")


def decompress(codec: int, data: bytes, size_bytes: int, cap_bytes: int) -> bytes:
    """The `size_bytes` that `data` stands for. Raises PayloadError when it does not, or when they are more than `cap_bytes`."""
    if codec == CompressionType.NONE:
        return data
    unpack = _UNPACK.get(codec)
    if unpack is None:
        raise PayloadError(f"compression {codec} is unknown here")
    if size_bytes > cap_bytes:
        raise PayloadError(f"the payload unpacks to {size_bytes} bytes, at most {cap_bytes} are")
    if size_bytes > unpacked_bytes_max(codec, len(data)):
        raise PayloadError(f"{len(data)} bytes cannot unpack to {size_bytes}")
    try:
        unpacked = unpack(data, size_bytes)
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise PayloadError(f"the payload cannot be unpacked: {error}") from None
    if len(unpacked) != size_bytes:
        raise PayloadError(f"the payload unpacks to {len(unpacked)} bytes instead of {size_bytes}")
    return unpacked


def _into(function: Callable[[bytes, bytearray], int], data: bytes, size_bytes: int) -> bytes:
    """The buffer has the declared size, so nothing is written beyond it."""
    buffer = bytearray(size_bytes)
    return bytes(buffer[: function(data, buffer)])


def _zlib(data: bytes, size_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, size_bytes + 1)  # one more than declared is enough to see that it is wrong
    if not stream.eof:
        raise ValueError("it ends elsewhere than declared")
    return unpacked


_UNPACK: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    CompressionType.LZ4: lambda data, size: _into(cramjam.lz4.decompress_block_into, data, size),
    CompressionType.ZLIB: _zlib,
    CompressionType.ZSTD: lambda data, size: _into(cramjam.zstd.decompress_into, data, size),
    CompressionType.SNAPPY: lambda data, size: _into(cramjam.snappy.decompress_raw_into, data, size),
}
