"""Packed entries, keys and LAC bodies byte for byte as Apache BookKeeper's client writes them (password `secret`)."""

from __future__ import annotations

import pytest

from magnetar.bookkeeper.entry_format import (
    Digest,
    DigestType,
    master_key,
    pack_entry,
    pack_lac,
    unpack_entry,
    unpack_lac,
)

HEAD = "000000000000000700000000000000030000000000000002000000000000000b"
HELLO = "68656c6c6f"
ENTRIES = {
    DigestType.CRC32C: HEAD + "cfc6a4f8" + HELLO,
    DigestType.CRC32: HEAD + "00000000d3101ee9" + HELLO,
    DigestType.HMAC: HEAD + "f2e56c20df3a5d4e9083dc788a3d1d753244b757" + HELLO,
    DigestType.DUMMY: HEAD + HELLO,
}


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_entries_of_every_digest(digest_type: DigestType) -> None:
    digest = Digest(digest_type, b"secret")
    packed = pack_entry(7, 3, 2, 11, b"hello", digest)
    assert packed.hex() == ENTRIES[digest_type]
    assert unpack_entry(packed, digest, 7, 3) == (3, 2, 11, b"hello")


def test_master_keys() -> None:
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert master_key(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"


def test_the_body_of_an_explicit_lac() -> None:
    digest = Digest(DigestType.CRC32C, b"secret")
    body = pack_lac(7, 3, digest)
    assert body.hex() == "000000000000000700000000000000039640a704"
    assert unpack_lac(body, digest, 7) == 3
