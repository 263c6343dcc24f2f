"""The packed entry against vectors recorded from Apache BookKeeper, and against damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, ReturnCode
from magnetar.bookkeeper.entry_format import (
    Digest,
    DigestType,
    master_key,
    pack_entry,
    pack_lac,
    peek_ids,
    unpack_entry,
    unpack_lac,
)
from magnetar.bookkeeper.errors import (
    BookieRequestError,
    DigestMismatchError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    error_for,
)

HEAD = "000000000000000700000000000000030000000000000002000000000000000b"
HELLO = b"hello".hex()


def test_master_keys() -> None:
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert master_key(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"


@pytest.mark.parametrize(
    ("digest_type", "digest"),
    [
        (DigestType.CRC32C, "cfc6a4f8"),
        (DigestType.CRC32, "00000000d3101ee9"),
        (DigestType.HMAC, "f2e56c20df3a5d4e9083dc788a3d1d753244b757"),
        (DigestType.DUMMY, ""),
    ],
)
def test_recorded_entries(digest_type: DigestType, digest: str) -> None:
    packed = pack_entry(7, 3, 2, 11, b"hello", Digest(digest_type, b"secret"))
    assert packed.hex() == HEAD + digest + HELLO
    assert unpack_entry(packed, Digest(digest_type, b"secret"), 7, 3) == (3, 2, 11, b"hello")
    assert unpack_entry(packed, Digest(digest_type, b"secret"), 7, None).entry_id == 3
    assert peek_ids(packed) == (7, 3, 2)


def test_recorded_explicit_lac() -> None:
    digest = Digest(DigestType.CRC32C, b"secret")
    body = bytes.fromhex("000000000000000700000000000000039640a704")
    assert pack_lac(7, 3, digest) == body
    assert unpack_lac(body, digest, 7) == 3
    for wrong in (body[:-1], body + b"\0", body[:8] + b"\1" + body[9:]):
        with pytest.raises(DigestMismatchError):
            unpack_lac(wrong, digest, 7)
    with pytest.raises(DigestMismatchError):
        unpack_lac(body, digest, 8)


@given(
    digest_type=st.sampled_from([DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC]),
    payload=st.binary(max_size=50),
    data=st.data(),
)
def test_every_flip_is_noticed(digest_type: DigestType, payload: bytes, data: st.DataObject) -> None:
    digest = Digest(digest_type, b"p")
    packed = pack_entry(1, 2, 1, 50, payload, digest)
    bit = data.draw(st.integers(0, len(packed) * 8 - 1))
    damaged = bytearray(packed)
    damaged[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(DigestMismatchError):
        unpack_entry(bytes(damaged), digest, 1, 2)


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(1, 3), (2, 2)])
def test_another_entry_is_not_this_one(ledger_id: int, entry_id: int) -> None:
    digest = Digest(DigestType.CRC32C)
    with pytest.raises(DigestMismatchError, match="answered with 1:2"):
        unpack_entry(pack_entry(1, 2, 1, 0, b"", digest), digest, ledger_id, entry_id)
    with pytest.raises(DigestMismatchError, match="not a packed entry"):
        unpack_entry(b"\0" * 35, digest, 0, 0)


def test_only_two_codes_deny() -> None:
    assert {ReturnCode.NO_LEDGER, ReturnCode.NO_ENTRY} == EXPLICIT_NEGATIVES
    kinds = {code: type(error_for(code, 1, 2)) for code in ReturnCode if code is not ReturnCode.OK}
    assert [code for code, kind in kinds.items() if kind in (NoSuchEntryError, NoSuchLedgerError)] == [
        ReturnCode.NO_LEDGER,
        ReturnCode.NO_ENTRY,
    ]
    assert kinds[ReturnCode.FENCED] is LedgerFencedError
    assert kinds[ReturnCode.IO_ERROR] is BookieRequestError
    assert isinstance(error_for(9999, 1), BookieRequestError)
