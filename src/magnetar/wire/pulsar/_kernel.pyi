"""What `_kernel.c` offers; the functions in Python say what each answers."""

from collections import deque
from typing import Any

REVISION: int

def split(data: bytes, frame_bytes_max: int, command_bytes_max: int, /) -> tuple[list[tuple[bytes, bytes]], int]: ...
def plain_sends(
    frames: deque[tuple[bytes, bytes]],
    producer_id: int,
    entries_max: int,
    bytes_max: int,
    own_name: str | None,
    batch_messages_max: int,
    looks_for: int,
    /,
) -> tuple[list[bytes], list[int], list[int], list[int], list[int]]: ...
def send_receipts(
    producer_id: int, sequence_ids: list[int], highest_sequence_ids: list[int], ledger_id: int, entry_id: int, /
) -> bytes: ...
def plain_acks(
    frames: deque[tuple[bytes, bytes]], frames_max: int, ids_max: int, /
) -> tuple[int, list[tuple[int, int, None, int]], int] | None: ...
def message_pieces(consumer_id: int, partition: int, entries: list[Any], pieces: list[bytes], /) -> int: ...
def held_values(entries: list[Any], keyed: bool, /) -> list[int]: ...
def stored_metadata(data: bytes, batch_messages_max: int, /) -> tuple[int, bool, int, int, int, bytes] | None: ...
def pack_run(
    ledger_id: int, first_entry_id: int, lac: int, length: int, payloads: list[bytes], /
) -> tuple[list[bytes], int]: ...
def cut_adds(
    data: bytes, position: int, entries_max: int, bytes_max: int, entry_bytes_min: int, entry_bytes_max: int, /
) -> tuple[int, bytes, int, list[int], list[bytes], int] | None: ...
def crc32c(data: bytes, /) -> int: ...
