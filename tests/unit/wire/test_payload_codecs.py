"""Every codec there and back, and what a hostile payload may not make the server do."""

from __future__ import annotations

import tracemalloc

import pytest

from magnetar.wire.pulsar import batches
from magnetar.wire.pulsar.compression import PayloadError, compress, decompress
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata

CODECS = [CompressionType.LZ4, CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.SNAPPY]
CAP = 1024 * 1024


@pytest.fixture(params=CODECS, ids=CompressionType.Name)
def codec(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.mark.parametrize("data", [b"x", b"espresso" * 1000, bytes(range(256)) * 64, bytes(CAP)])
def test_there_and_back(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data), CAP) == data


def test_a_wrong_size_is_refused(codec: int) -> None:
    packed = compress(codec, b"espresso" * 100)
    for size in (0, 1, 799, 801, 100_000):
        with pytest.raises(PayloadError):
            decompress(codec, packed, size, CAP)


def test_damage_is_refused(codec: int) -> None:
    packed = compress(codec, bytes(range(256)) * 8)
    for damaged in (b"", packed[:-3], b"\xff" * len(packed), b"\x00" * 40):
        with pytest.raises(PayloadError):
            decompress(codec, damaged, 2048, CAP)


def test_bombs_are_refused_before_memory_is_taken(codec: int) -> None:
    bomb = compress(codec, bytes(64 * CAP))
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match="at most"):
            decompress(codec, bomb, 64 * CAP, CAP)
        with pytest.raises(PayloadError):
            decompress(codec, bomb, CAP, CAP)  # says less than it holds
        with pytest.raises(PayloadError, match="cannot unpack"):
            decompress(codec, b"tiny", CAP, CAP)  # says more than anything of its size could hold
        assert tracemalloc.get_traced_memory()[1] < 4 * CAP
    finally:
        tracemalloc.stop()


def test_unknown_codecs() -> None:
    with pytest.raises(PayloadError, match="unknown"):
        decompress(9, b"x", 1, CAP)
    with pytest.raises(PayloadError, match="unknown"):
        compress(9, b"x")


def batch(*values: bytes) -> bytes:
    return batches.join((SingleMessageMetadata(payload_size=len(value)), value) for value in values)


def test_batches_there_and_back(codec: int) -> None:
    plain = batch(b"one", b"", b"three")
    metadata = MessageMetadata(num_messages_in_batch=3, compression=codec, uncompressed_size=len(plain))
    assert [value for _, value in batches.unpack(metadata, compress(codec, plain), CAP)] == [b"one", b"", b"three"]


@pytest.mark.parametrize("count", [-1, 0, 3, 2**31 - 1])
def test_batches_with_another_count_are_refused(count: int) -> None:
    with pytest.raises(PayloadError):
        batches.split(batch(b"one", b"two"), count)


def test_batches_whose_sizes_lie_are_refused() -> None:
    plain = batch(b"one", b"two")
    for damaged in (plain[:-1], b"\xff" * 4 + plain[4:], b"\x7f\xff\xff\xff", b"\x00\x00\x00\x01\x08" + plain):
        with pytest.raises(PayloadError):
            batches.split(damaged, 2)
    negative = SingleMessageMetadata(payload_size=-4)
    with pytest.raises(PayloadError):
        batches.split(batches.join([(negative, b""), (negative, b"")]), 2)
