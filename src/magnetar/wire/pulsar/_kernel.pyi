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
def crc32c(data: bytes, /) -> int: ...
