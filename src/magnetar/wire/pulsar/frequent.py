"""SEND and SEND_RECEIPT by offset: the commands of which there is one for each message have few fields.

Readers answer None for whatever is not in the form that clients write (fields in ascending order, none unknown, numbers of up to 63
bits): protobuf reads that. Writers answer what protobuf would write. `tests/property/wire` holds both against protobuf.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.wire.pulsar.commands import send_receipt

_SEND: Final = b"\x08\x06\x32"
"""Type SEND, and the tag of its part."""

_LAST_SHIFT: Final = 56
"""Of the ninth byte of a number."""


class SendHead(NamedTuple):
    """What the command of a SEND says: without a transaction. `highest_sequence_id` is 0 for a single message."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    is_chunk: bool


def read_send(command: bytes) -> SendHead | None:
    """The command of a SEND frame."""
    size = len(command)
    try:
        if command[:3] != _SEND or command[3] + 4 != size or command[3] > 127 or command[4] != 0x08:
            return None
        producer_id, at = command[5], 6
        if producer_id > 127:
            producer_id, at = _varint(command, 5)
        if command[at] != 0x10:
            return None
        sequence_id, shift = command[at + 1], 0
        at += 2
        while sequence_id >> shift > 127:  # the last byte goes on
            if shift == _LAST_SHIFT:
                return None
            shift += 7
            sequence_id += command[at] - 1 << shift
            at += 1
        highest = is_chunk = 0
        if at < size and command[at] == 0x18:  # num_messages: the metadata says how many there are
            at += 2
            if command[at - 1] > 127:
                _, at = _varint(command, at - 1)
        if at < size and command[at] == 0x30:
            highest, at = _varint(command, at + 1)
        if at < size and command[at] == 0x38:
            is_chunk, at = _varint(command, at + 1)
    except (IndexError, OverflowError):
        return None
    return SendHead(producer_id, sequence_id, highest, bool(is_chunk)) if at == size else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at an offset, and the offset behind it. Raises IndexError where the data ends, OverflowError above 63 bits."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        if shift == _LAST_SHIFT:
            raise OverflowError
        shift += 7


# ---- Receipts

_ENDS: Final = bytes(range(0x80))
_GOES_ON: Final = bytes(range(0x80, 0x100))
"""The lowest byte of a number, by its value: of one that is complete with it, and of one that goes on."""

_BEFORE_SEQUENCE_ID: Final = 8 + 4 + 1 + 1
"""Sizes of the frame, the command's head, and the tags of producer and sequence id; the producer id lies in between."""

_BEHIND_ENTRY_ID: Final = 2
"""The highest sequence id, which is 0."""


def send_receipts(
    producer_id: int, sequence_ids: list[int], highest_sequence_ids: list[int], ledger_id: int, entry_id: int
) -> bytes:
    """The SEND_RECEIPT frames of consecutive entries from `entry_id` on.

    Sequence ids mostly follow each other as well: then neighbours differ in the lowest bytes of two numbers, and only these are written.
    """
    count, first = len(sequence_ids), sequence_ids[0]
    if count == 1:
        return send_receipt(producer_id, first, highest_sequence_ids[0], ledger_id, entry_id)
    if any(highest_sequence_ids) or sequence_ids != list(range(first, first + count)):
        numbers = zip(sequence_ids, highest_sequence_ids, range(entry_id, entry_id + count), strict=True)
        return b"".join(send_receipt(producer_id, one, highest, ledger_id, at) for one, highest, at in numbers)
    frames = []
    done = 0
    while done < count:
        sequence_id, entry = first + done, entry_id + done
        alike = min(count - done, 128 - (sequence_id & 127), 128 - (entry & 127))
        frame = send_receipt(producer_id, sequence_id, 0, ledger_id, entry)
        if alike > 1:
            size = len(frame)
            lines = bytearray(frame * alike)
            lines[_BEFORE_SEQUENCE_ID + _bytes_of(producer_id) :: size] = _low_bytes(sequence_id, alike)
            lines[size - _BEHIND_ENTRY_ID - _bytes_of(entry) :: size] = _low_bytes(entry, alike)
            frames.append(bytes(lines))
        else:
            frames.append(frame)
        done += alike
    return b"".join(frames)


def _bytes_of(value: int) -> int:
    return (value.bit_length() + 6) // 7 or 1


def _low_bytes(first: int, count: int) -> bytes:
    """Of consecutive numbers that differ in nothing else."""
    low = first & 127
    return (_ENDS if first < 128 else _GOES_ON)[low : low + count]
