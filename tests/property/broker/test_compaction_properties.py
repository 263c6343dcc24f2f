"""Compaction against a dictionary: whatever was published, replaying what is left gives what replaying all of it gives.

Keys, batches, codecs, empty and null values, messages without a key, chunks, encrypted batches, and compactions of what earlier
compactions left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.compaction.errors import TooManyKeysError
from magnetar.broker.compaction.latest_keys import LatestKeys, last_index_of
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar import batches
from magnetar.wire.pulsar.batches import Single
from magnetar.wire.pulsar.compression import compress
from magnetar.wire.pulsar.headers import checksum_matches, parse_metadata, payload_of, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

MEMORY = 1024 * 1024


@dataclass(frozen=True)
class Message:
    """`value` None is a null value."""

    key: str | None
    value: bytes | None


@dataclass(frozen=True)
class Published:
    """One entry before it has a position: one message, a batch, or the chunks of one message."""

    messages: tuple[Message, ...]
    batched: bool = False
    codec: int = 0
    encrypted: bool = False
    chunks: int = 1


@dataclass
class Log:
    """Entries with positions, and what each message in them says; the test looks into encrypted batches by this."""

    entries: list[tuple[Position, bytes]] = field(default_factory=list)
    contents: dict[tuple[Position, int], Message] = field(default_factory=dict)

    def add(self, published: Published, number: int) -> None:
        for chunk in range(published.chunks):
            position = Position(number // 7, number % 7 * 10 + chunk)
            self.entries.append((position, encoded(published, number, chunk)))
            for index, message in enumerate(published.messages):
                self.contents[position, index] = message


def encoded(published: Published, number: int, chunk: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    if published.encrypted:
        metadata.encryption_keys.add(key="k", value=b"v")
    if published.batched:
        metadata.num_messages_in_batch = len(published.messages)
        plain = batches.join(single(message) for message in published.messages)
    else:
        message = published.messages[0]
        plain = message.value or b""
        metadata.null_value = message.value is None
        if message.key is not None:
            metadata.partition_key = message.key
    if published.chunks > 1:
        metadata.uuid = str(number)
        metadata.num_chunks_from_msg = published.chunks
        metadata.chunk_id = chunk
    if published.codec:
        metadata.compression = published.codec  # type: ignore[assignment]  # a number of the enum
        metadata.uncompressed_size = len(plain)
    payload = compress(published.codec, plain)
    return with_checksum(metadata, bytes(byte ^ 0x55 for byte in payload) if published.encrypted else payload)


def single(message: Message) -> Single:
    value = message.value or b""
    metadata = SingleMessageMetadata(payload_size=len(value), null_value=message.value is None)
    if message.key is not None:
        metadata.partition_key = message.key
    return metadata, value


def compacted(entries: Sequence[tuple[Position, bytes]], retain_null_key: bool = False) -> list[tuple[Position, bytes]]:
    keys = LatestKeys(retain_null_key=retain_null_key, memory_bytes_max=MEMORY)
    for position, data in entries:
        keys.see(position, data)
    left = []
    for position, data in entries:
        kept = keys.rewrite(position, data)
        if kept is None:
            continue
        assert checksum_matches(kept.data)
        visible = [index for index, _ in seen_in(position, kept.data)]
        if kept.ack_set is not None:
            assert visible == bits_of(kept.ack_set)
            assert last_index_of(kept.ack_set) == visible[-1]
        left.append((position, kept.data))
    assert keys.messages_kept <= keys.messages_seen
    return left


def bits_of(words: list[int]) -> list[int]:
    return [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def seen_in(position: Position, data: bytes) -> list[tuple[int, None]]:
    """The indexes of an entry's messages that a client delivers."""
    metadata = parse_metadata(data)
    if not batches.is_batch(metadata):
        return [(0, None)]
    if metadata.encryption_keys:
        return [(index, None) for index in range(metadata.num_messages_in_batch)]
    singles = batches.unpack(metadata, payload_of(data), MEMORY)
    assert len(singles) == metadata.num_messages_in_batch
    return [(index, None) for index, (meta, _) in enumerate(singles) if not meta.compacted_out]


def replay(log: Log, entries: Sequence[tuple[Position, bytes]]) -> dict[str, bytes]:
    """What a table view holds at the end; a chunked message counts once all its chunks are there."""
    table: dict[str, bytes] = {}
    chunks: dict[str, int] = {}
    for position, data in entries:
        metadata = parse_metadata(data)
        if metadata.num_chunks_from_msg > 1:
            chunks[metadata.uuid] = chunks.get(metadata.uuid, 0) + 1
            if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
                continue
            assert chunks[metadata.uuid] == metadata.num_chunks_from_msg, "a message without some of its chunks"
        for index, _ in seen_in(position, data):
            message = log.contents[position, index]
            if message.key is None:
                continue
            if message.value:
                table[message.key] = message.value
            else:
                table.pop(message.key, None)
    return table


keys = st.none() | st.sampled_from("abcde")
values = st.none() | st.sampled_from([b"", b"1", b"2", b"long" * 40])
messages = st.builds(Message, keys, values)
codecs = st.sampled_from([0, 0, 1, 2, 3, 4])
singles = st.builds(lambda message, codec: Published((message,), codec=codec), messages, codecs)
batched = st.builds(
    lambda some, codec: Published(tuple(some), batched=True, codec=codec),
    st.lists(messages, min_size=1, max_size=6),
    codecs,
)
long_batches = st.builds(
    lambda some: Published(tuple(some * 30), batched=True), st.lists(messages, min_size=3, max_size=5)
)
sealed = st.builds(
    lambda some: Published(tuple(some), batched=True, encrypted=True), st.lists(messages, min_size=1, max_size=3)
)
chunked = st.builds(
    lambda key, value, chunks: Published((Message(key, value),), chunks=chunks),
    keys,
    st.sampled_from([b"x", b"y"]),
    st.integers(2, 3),
)
readable = st.lists(singles | batched | long_batches | chunked, max_size=25)
anything = st.lists(singles | batched | sealed | chunked, max_size=25)


def logged(published: Sequence[Published]) -> Log:
    log = Log()
    for number, each in zip(count(), published, strict=False):
        log.add(each, number)
    return log


@given(anything)
def test_replay_of_what_is_left_gives_the_same_table(published: list[Published]) -> None:
    log = logged(published)
    assert replay(log, compacted(log.entries)) == replay(log, log.entries)


@given(readable)
def test_exactly_the_last_message_of_each_key_is_left(published: list[Published]) -> None:
    log = logged(published)
    table = replay(log, log.entries)
    left = compacted(log.entries)
    visible = [
        log.contents[position, index]
        for position, data in left
        if parse_metadata(data).chunk_id == parse_metadata(data).num_chunks_from_msg - 1
        or not parse_metadata(data).num_chunks_from_msg
        for index, _ in seen_in(position, data)
    ]
    assert sorted((message.key or "", message.value or b"") for message in visible) == sorted(table.items())


@given(anything, st.lists(st.integers(0, 60), max_size=4))
def test_compacting_what_was_compacted(published: list[Published], cuts: list[int]) -> None:
    """Cuts fall between the chunks of a message as well."""
    log = logged(published)
    expected = replay(log, log.entries)
    left: list[tuple[Position, bytes]] = []
    done = 0
    for cut in [*sorted(min(cut, len(log.entries)) for cut in cuts), len(log.entries)]:
        left = compacted([*left, *log.entries[done:cut]])
        done = cut
        assert replay(log, [*left, *log.entries[done:]]) == expected
    assert compacted(left) == left


@given(readable)
def test_messages_without_a_key_stay_when_asked_to(published: list[Published]) -> None:
    log = logged(published)
    left = compacted(log.entries, retain_null_key=True)

    def without_key(entries: Sequence[tuple[Position, bytes]]) -> list[tuple[Position, int]]:
        return [
            (position, index)
            for position, data in entries
            for index, _ in seen_in(position, data)
            if log.contents[position, index].key is None
        ]

    assert without_key(left) == without_key(log.entries)
    assert replay(log, left) == replay(log, log.entries)
    assert compacted(left, retain_null_key=True) == left


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_damaged_entries_stay(damaged: list[bytes]) -> None:
    entries = [(Position(1, number), data) for number, data in enumerate(damaged)]
    keys = LatestKeys(retain_null_key=False, memory_bytes_max=MEMORY)
    for position, data in entries:
        keys.see(position, data)
    for position, data in entries:
        kept = keys.rewrite(position, data)
        try:
            metadata = parse_metadata(data)
        except Exception:
            assert kept is not None
            assert kept.data == data
        else:
            assert kept is None or kept.data == data or batches.is_batch(metadata)


def test_a_batch_with_a_null_value_keeps_its_other_messages() -> None:
    """Pulsar#20980 lost the whole batch."""
    log = logged([Published((Message("a", b"1"), Message("b", None), Message("c", b"3")), batched=True, codec=1)])
    assert replay(log, compacted(log.entries)) == {"a": b"1", "c": b"3"}


def test_memory_is_bounded() -> None:
    log = logged([Published((Message(f"key-{number}", b"v"),)) for number in range(100)])
    keys = LatestKeys(retain_null_key=False, memory_bytes_max=5000)
    for position, data in log.entries[:19]:
        keys.see(position, data)
    with pytest.raises(TooManyKeysError, match="distinct keys"):
        keys.see(*log.entries[19])


def test_memory_of_deleted_keys_is_given_back() -> None:
    keys = LatestKeys(retain_null_key=False, memory_bytes_max=5000)
    log = logged([Published((Message(f"key-{number}", value),)) for number in range(500) for value in (b"v", b"")])
    for position, data in log.entries:
        keys.see(position, data)
    assert keys.memory_bytes == 0


def test_unchanged_batches_stay_byte_for_byte() -> None:
    log = logged([Published((Message("a", b"1"), Message("b", b"2")), batched=True, codec=4)])
    assert compacted(log.entries) == log.entries
