"""SEND, SEND_RECEIPT, ACK and MESSAGE by offset: the commands of which there is one for each message have few fields.

Readers answer None for whatever is not in the form that clients write (fields in ascending order, none unknown, numbers of up to 63
bits): protobuf reads that. Writers answer what protobuf would write. `tests/property/wire` holds both against protobuf, and the functions
for runs of entries against those of the compiled `kernel`, which take their place where it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from magnetar.wire.pulsar.commands import send_receipt
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.headers import MAGIC_BROKER_ENTRY_METADATA, without_broker_metadata
from magnetar.wire.pulsar.kernel import kernel

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


# ---- Acknowledgements

_ACK: Final = b"\x08\x0a\x52"
"""Type ACK, and the tag of its part."""

AckedEntries = list[tuple[int, int, None, int]]
"""Ledger id, entry id, no words of a batch, and 0 for its size: an `AckId` for a whole entry."""


def read_ack(command: bytes) -> tuple[int, AckedEntries] | None:
    """The command of an ACK that says no more than which entries a consumer is done with, each as a whole: consumer id, and entries."""
    end = len(command)
    entries: AckedEntries = []
    try:
        if command[:3] != _ACK:
            return None
        size, at = command[3], 4
        if size > 127:
            size, at = _varint(command, 3)
        if at + size != end or command[at] != 0x08:
            return None
        consumer_id, at = command[at + 1], at + 2
        if consumer_id > 127:
            consumer_id, at = _varint(command, at - 1)
        if command[at] != 0x10 or command[at + 1] != 0:  # ack_type
            return None
        at += 2
        while at < end:
            id_end = at + 2 + command[at + 1]
            if command[at] != 0x1A or command[at + 1] > 127 or command[at + 2] != 0x08:
                return None
            ledger_id, at = command[at + 3], at + 4
            if ledger_id > 127:
                ledger_id, at = _varint(command, at - 1)
            if command[at] != 0x10:
                return None
            entry_id, shift = command[at + 1], 0
            at += 2
            while entry_id >> shift > 127:  # the last byte goes on
                if shift == _LAST_SHIFT:
                    return None
                shift += 7
                entry_id += command[at] - 1 << shift
                at += 1
            if at < id_end and command[at] == 0x18:
                _, at = _varint(command, at + 1)  # the partition, of a topic that is one
            if at != id_end:
                return None
            entries.append((ledger_id, entry_id, None, 0))
    except (IndexError, OverflowError):
        return None
    return (consumer_id, entries) if entries and at == end else None


def take_acks_in_python(frames: deque[Frame], frames_max: int, ids_max: int) -> tuple[int, AckedEntries, int] | None:
    """Take the plain ACKs of one consumer off the beginning of `frames`: consumer id, entries, and how many frames it were.

    It ends with so many frames, or with the one that reaches `ids_max`. None: the first frame is not a plain ACK.
    """
    found = read_ack(frames[0][0])
    if found is None:
        return None
    consumer_id, ids = found
    frames.popleft()
    taken = 1
    while frames and taken < frames_max and len(ids) < ids_max:
        found = read_ack(frames[0][0])
        if found is None or found[0] != consumer_id:
            break
        ids += found[1]
        frames.popleft()
        taken += 1
    return consumer_id, ids, taken


take_acks: Final[Callable[[deque[Frame], int, int], tuple[int, AckedEntries, int] | None]] = (
    kernel.plain_acks if kernel else take_acks_in_python
)


# ---- Messages


class StoredEntry(Protocol):
    """An entry as the managed ledger gives it."""

    ledger_id: int
    entry_id: int
    data: bytes


class MessageHeads:
    """MESSAGE frames of one consumer up to headers and payload, for whole entries that are delivered for the first time."""

    __slots__ = ("_before", "_behind", "_consumer_id", "_ledger_id", "_partition")

    def __init__(self, consumer_id: int, partition: int) -> None:
        """`partition`: -1 for a topic that is none."""
        self._consumer_id = consumer_id
        self._partition = partition
        self._behind = b"\x18" + _varint_of(partition) if partition >= 0 else b""
        self._ledger_id = -1
        self._before: dict[int, tuple[int, bytes]] = {}

    def append_frames(self, entries: Sequence[StoredEntry], pieces: list[bytes], kernel: Any = kernel) -> int:
        """Append the frames of `entries` to `pieces`, each in two; answers how many bytes these have."""
        if kernel:
            added: int = kernel.message_pieces(self._consumer_id, self._partition, entries, pieces)
            return added
        total = 0
        for entry in entries:
            data = entry.data
            if data[:2] == MAGIC_BROKER_ENTRY_METADATA:
                data = without_broker_metadata(data)
            head = self.head(entry.ledger_id, entry.entry_id, len(data))
            pieces.append(head)
            pieces.append(data)
            total += len(head) + len(data)
        return total

    def head(self, ledger_id: int, entry_id: int, data_bytes: int) -> bytes:
        """As `commands.message_header`."""
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self._before = {}
        if entry_id < 128:
            entry = _ONE_BYTE[entry_id]
        elif entry_id < 1 << 14:
            entry = bytes((entry_id & 0x7F | 0x80, entry_id >> 7))
        else:
            entry = _varint_of(entry_id)
        before = self._before.get(len(entry)) or self._prepare(len(entry))
        return (before[0] + data_bytes).to_bytes(4, "big") + before[1] + entry + self._behind

    def _prepare(self, entry_id_bytes: int) -> tuple[int, bytes]:
        """What the frame's size is besides the data, and what stands between it and the entry id of so many bytes."""
        identifier = b"\x08" + _varint_of(self._ledger_id) + b"\x10"
        identifier_bytes = len(identifier) + entry_id_bytes + len(self._behind)
        message = b"\x08" + _varint_of(self._consumer_id) + b"\x12" + _varint_of(identifier_bytes) + identifier
        command = b"\x08\x09\x4a" + _varint_of(len(message) + entry_id_bytes + len(self._behind)) + message
        command_bytes = len(command) + entry_id_bytes + len(self._behind)
        found = self._before[entry_id_bytes] = command_bytes + 4, command_bytes.to_bytes(4, "big") + command
        return found


def _varint_of(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE: Final = [bytes((value,)) for value in range(128)]


# ---- Receipts

_ENDS: Final = bytes(range(0x80))
_GOES_ON: Final = bytes(range(0x80, 0x100))
"""The lowest byte of a number, by its value: of one that is complete with it, and of one that goes on."""

_BEFORE_SEQUENCE_ID: Final = 8 + 4 + 1 + 1
"""Sizes of the frame, the command's head, and the tags of producer and sequence id; the producer id lies in between."""

_BEHIND_ENTRY_ID: Final = 2
"""The highest sequence id, which is 0."""


def send_receipts_in_python(
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


send_receipts: Final[Callable[[int, list[int], list[int], int, int], bytes]] = (
    kernel.send_receipts if kernel else send_receipts_in_python
)
