"""Version 3 of the bookie protocol: Apache's bytes, and the tables between it and our codes."""

from __future__ import annotations

from magnetar.bookkeeper.codes import CODE_OF_STATUS, STATUS_OF_CODE, ReturnCode
from magnetar.bookkeeper.entry_format import Digest, DigestType, master_key, pack_entry
from magnetar.wire.bookkeeper import BookkeeperProtocol_pb2 as pb
from magnetar.wire.bookkeeper.frames import encode_frame

KEY = master_key(b"secret")
ENTRY = pack_entry(7, 3, 2, 11, b"hello", Digest(DigestType.CRC32C, b"secret"))


def test_the_add_frame() -> None:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txnId=1)
    add = pb.AddRequest(ledgerId=7, entryId=3, masterKey=KEY, body=ENTRY)
    frame = encode_frame(pb.Request(header=header, addRequest=add).SerializeToString())
    assert frame.hex() == (
        "000000500a06080310021801aa0645080710031a14e793cbc379107648537183605cd361d3bb789a39222900000000000000070000000000"
        "0000030000000000000002000000000000000bcfc6a4f868656c6c6f"
    )


def test_every_code_has_its_status_and_back() -> None:
    assert set(STATUS_OF_CODE) == {int(code) for code in ReturnCode}
    assert {CODE_OF_STATUS[status] for status in pb.StatusCode.values()} == set(STATUS_OF_CODE)
    assert {code: pb.StatusCode.Name(status) for code, status in STATUS_OF_CODE.items()} == {
        0: "EOK",
        1: "ENOLEDGER",
        2: "ENOENTRY",
        100: "EBADREQ",
        101: "EIO",
        102: "EUA",
        103: "EBADVERSION",
        104: "EFENCED",
        105: "EREADONLY",
        106: "ETOOMANYREQUESTS",
        107: "EUNKNOWNLEDGERSTATE",
    }


def test_numbers_of_operations_and_messages() -> None:
    assert dict(pb.OperationType.items()) == {
        "READ_ENTRY": 1,
        "ADD_ENTRY": 2,
        "RANGE_READ_ENTRY": 3,
        "RANGE_ADD_ENTRY": 4,
        "AUTH": 5,
        "WRITE_LAC": 6,
        "READ_LAC": 7,
        "GET_BOOKIE_INFO": 8,
        "START_TLS": 9,
        "FORCE_LEDGER": 10,
        "GET_LIST_OF_ENTRIES_OF_LEDGER": 11,
        "BATCH_READ_ENTRY": 12,
    }
    for message in (pb.Request, pb.Response):
        numbers = [field.number for field in message.DESCRIPTOR.fields if 100 <= field.number < 200]
        assert sorted(numbers) == list(range(100, 109))
