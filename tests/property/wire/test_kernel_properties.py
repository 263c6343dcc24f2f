"""The compiled functions of the message path against those in Python: the same answers and the same refusals, for any bytes.

They are built for this test from the source as it is. To build them with the compiler's sanitizers, which end the process at the first
access out of bounds:

    KERNEL_FLAGS="-g -fsanitize=address,undefined -fno-sanitize-recover" LD_PRELOAD="$(gcc -print-file-name=libasan.so)" \\
        ASAN_OPTIONS=detect_leaks=0 python -m pytest -n 0 tests/property/wire/test_kernel_properties.py
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.limits import BATCH_MESSAGES_MAX
from magnetar.bookkeeper.bookie.storage.entry_log_format import RecordHeaders
from magnetar.bookkeeper.entry_format import Digest, DigestType, highest_lac_in_python, pack_run_in_python
from magnetar.broker.connection.handlers.send import take_sends
from magnetar.broker.dispatch.entry_metadata import NOT_PLAIN, EntryMetadata, held_values_in_python, read_in_python
from magnetar.broker.dispatch.receiver import ONE_MESSAGE
from magnetar.hashing.murmur3 import key_slot
from magnetar.managed_ledger.entry import Entry
from magnetar.pipeline.connect.raw.batch_walk import Messages, of_places, walk_in_python
from magnetar.pipeline.connect.raw.gather import gathered_in_python
from magnetar.wire.bookkeeper.v2 import cut_adds_in_python, encode_add_head
from magnetar.wire.pulsar.batches import join
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.frames import Frame, encode_frame, split_in_python
from magnetar.wire.pulsar.frequent import (
    MessageHeads,
    read_send,
    send_receipts_in_python,
    take_acks_in_python,
)
from magnetar.wire.pulsar.headers import MAGIC_BROKER_ENTRY_METADATA, with_checksum
from magnetar.wire.pulsar.kernel import REVISION
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from tests.property.wire.test_frequent_command_properties import U63, U64, acks, receipts, sends

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler here: then there are no compiled functions either")
    folder = tmp_path_factory.mktemp("kernel")
    command = [sys.executable, str(ROOT / "hatch_build.py"), str(folder), *os.environ.get("KERNEL_FLAGS", "").split()]
    clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    made = subprocess.run(command, capture_output=True, text=True, timeout=100, env=clean)
    if "Python.h" in made.stderr:
        pytest.skip("Python's headers are not installed here: then there are no compiled functions either")
    assert made.returncode == 0, made.stderr
    assert not made.stderr, "no warnings"
    loader = importlib.machinery.ExtensionFileLoader("_kernel", made.stdout.strip())
    spec = importlib.util.spec_from_loader("_kernel", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert module.REVISION == REVISION
    return module


def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Mostly whole; else with some bytes changed, or cut off."""
    kind = draw(st.sampled_from(["whole"] * 4 + ["changed", "cut"]))
    if kind == "whole" or not data:
        return data
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(["", "raw", "key"])

TRACING = st.sampled_from(["magnetar.trace", "magnetar.trace.only", "magnetar.traces", "traceparent"])


@st.composite
def metadata(draw: st.DrawFn) -> MessageMetadata:
    made = MessageMetadata(producer_name=draw(TEXT), sequence_id=draw(U64), publish_time=draw(U64))
    for _ in range(draw(st.integers(0, 2))):
        made.properties.add(key=draw(TEXT | TRACING), value=draw(TEXT | TRACING))
    fields: dict[str, st.SearchStrategy[Any]] = {
        "replicated_from": TEXT,
        "partition_key": TEXT | TRACING,
        "compression": st.integers(0, 4),
        "uncompressed_size": st.integers(0, 100),
        "num_messages_in_batch": st.integers(-1, 20) | st.integers(-(2**31), 2**31 - 1),
        "event_time": U64,
        "schema_version": st.binary(max_size=9),
        "partition_key_b64_encoded": st.booleans(),
        "ordering_key": st.binary(max_size=9),
        "deliver_at_time": st.integers(-(2**63), 2**63 - 1),
        "marker_type": st.integers(0, 12),
        "txnid_least_bits": U64,
        "highest_sequence_id": U64,
        "null_value": st.booleans(),
        "uuid": TEXT,
        "num_chunks_from_msg": st.integers(0, 3),
        "chunk_id": st.integers(0, 3),
        "null_partition_key": st.booleans(),
    }
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        setattr(made, name, draw(fields[name]))
    return made


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Headers and payload: whole, damaged with a checksum that fits, or damaged afterwards."""
    payload = draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 1, 1, 50]))
    serialized = draw(metadata()).SerializeToString()
    if draw(st.integers(0, 3)) == 0:
        serialized = damaged(draw, serialized + draw(st.binary(max_size=4)))
        body = len(serialized).to_bytes(4, "big") + serialized + payload
        return b"\x0e\x01" + int(google_crc32c.value(body)).to_bytes(4, "big") + body
    made = with_checksum(MessageMetadata.FromString(serialized), payload)
    kind = draw(st.sampled_from(["plain"] * 6 + ["damaged", "no checksum", "broker"]))
    if kind == "no checksum":
        return made[6:]
    if kind == "broker":
        return MAGIC_BROKER_ENTRY_METADATA + draw(st.integers(0, 9)).to_bytes(4, "big") + made
    return damaged(draw, made) if kind == "damaged" else made


@st.composite
def send_frames(draw: st.DrawFn) -> list[Frame]:
    """A run, and what may stand in it."""
    frames = []
    for number in range(draw(st.integers(1, 6))):
        command = draw(sends())
        if draw(st.integers(0, 3)):
            command.send.producer_id, command.send.sequence_id = 1, number
        frames.append((damaged(draw, command.SerializeToString()), draw(entries())))
    return frames


BYTES = st.binary(max_size=300)


@given(frames=st.lists(st.tuples(BYTES, BYTES), max_size=5), data=st.data())
def test_frames_are_split_alike(kernel: Any, frames: list[Frame], data: st.DataObject) -> None:
    stream = data.draw(st.composite(damaged)(b"".join(encode_frame(*frame) for frame in frames)))
    limits = data.draw(st.sampled_from([(2**32, 2**32), (100, 50), (4, 0), (0, 0)]))
    assert kernel.split(stream, *limits) == split_in_python(stream, *limits)


@given(stream=st.binary(max_size=64))
def test_any_bytes_are_split_alike(kernel: Any, stream: bytes) -> None:
    assert kernel.split(stream, 1000, 100) == split_in_python(stream, 1000, 100)


@given(
    frames=send_frames(),
    entries_max=st.integers(-1, 7),
    bytes_max=st.integers(-1, 2000),
    own_name=st.none() | TEXT,
    looks_for=st.integers(0, 3),
)
def test_sends_are_taken_alike(
    kernel: Any, frames: list[Frame], entries_max: int, bytes_max: int, own_name: str | None, looks_for: int
) -> None:
    """What is taken, what is left to be refused or looked at by itself, and what the publishing side is told of each."""
    head = read_send(frames[0][0])
    if head is None:
        arguments = (1, entries_max, bytes_max, own_name, BATCH_MESSAGES_MAX, looks_for)
        assert kernel.plain_sends(deque(frames), *arguments)[0] == []
        return
    left, left_in_python = deque(frames), deque(frames)
    found = take_sends(left, head, entries_max, bytes_max, own_name, looks_for, kernel)
    assert found == take_sends(left_in_python, head, entries_max, bytes_max, own_name, looks_for, None)
    assert left == left_in_python


def test_plain_sends_are_taken_by_the_compiled_function(kernel: Any) -> None:
    """It would also pass the comparison if it took none."""
    plain = MessageMetadata(producer_name="raw", sequence_id=1, publish_time=2, partition_key="key")
    plain.properties.add(key="traceparent", value="red")
    batch = MessageMetadata(producer_name="raw", sequence_id=1, publish_time=2, num_messages_in_batch=3)
    rests = [with_checksum(plain, b"x" * 2000), with_checksum(batch, b"x" * 20000), with_checksum(batch, b"x" * 17)]
    frames = deque((b"\x08\x06\x32\x04\x08\x01\x10" + bytes([number]), rest) for number, rest in enumerate(rests))
    taken = kernel.plain_sends(frames, 1, 64, 10**6, "raw", BATCH_MESSAGES_MAX, 1)
    assert taken == (rests[:2], [0, 1], [0, 0], [1, 3], [len(rest) for rest in rests[:2]])
    assert len(frames) == 1, "17 bytes hold no three messages"


@pytest.mark.parametrize(
    ("name", "looks_for", "taken"),
    [
        ("magnetar.trace", 0, 1),
        ("magnetar.trace", 1, 0),
        ("magnetar.trace.only", 1, 0),
        ("magnetar.traces", 3, 1),
        ("traceparent", 1, 1),
        ("traceparent", 2, 0),
    ],
)
def test_a_message_that_asks_for_a_trace_is_left(kernel: Any, name: str, looks_for: int, taken: int) -> None:
    asking = MessageMetadata(producer_name="raw", sequence_id=1, publish_time=2)
    asking.properties.add(key=name, value="x")
    frames = deque([(b"\x08\x06\x32\x04\x08\x01\x10\x00", with_checksum(asking, b"x"))])
    assert len(kernel.plain_sends(frames, 1, 64, 10**6, None, BATCH_MESSAGES_MAX, looks_for)[0]) == taken


@given(case=receipts())
def test_receipts_are_written_alike(kernel: Any, case: tuple[int, list[int], list[int], int, int]) -> None:
    assert kernel.send_receipts(*case) == send_receipts_in_python(*case)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("value", [-1, 2**64])
def test_receipts_refuse_the_same_numbers(kernel: Any, place: int, value: int) -> None:
    case: list[Any] = [1, [2], [3], 4, 5]
    case[place] = [value] if isinstance(case[place], list) else value
    for write in (kernel.send_receipts, send_receipts_in_python):
        with pytest.raises(ValueError, match=r"range|64 bits|place"):
            write(*case)


@st.composite
def ack_frames(draw: st.DrawFn) -> list[Frame]:
    frames = []
    for _ in range(draw(st.integers(1, 6))):
        command = draw(acks(plain=draw(st.integers(0, 5)) > 0))
        if draw(st.integers(0, 3)):
            command.ack.consumer_id = 1
        frames.append((damaged(draw, command.SerializeToString()), b""))
    return frames


@given(frames=ack_frames(), frames_max=st.integers(-1, 7), ids_max=st.integers(0, 9))
def test_acknowledgements_are_taken_alike(kernel: Any, frames: list[Frame], frames_max: int, ids_max: int) -> None:
    left, left_in_python = deque(frames), deque(frames)
    found = kernel.plain_acks(left, frames_max, ids_max)
    assert found == take_acks_in_python(left_in_python, frames_max, ids_max)
    assert left == left_in_python


@given(
    consumer_id=U64,
    partition=st.integers(-1, 2**31 - 1),
    stored=st.lists(st.tuples(U63, U63, entries() | st.binary(max_size=12)), max_size=6),
)
def test_messages_are_written_alike(
    kernel: Any, consumer_id: int, partition: int, stored: list[tuple[int, int, bytes]]
) -> None:
    heads = MessageHeads(consumer_id, partition)
    run = [Entry(*each) for each in stored]
    compiled: list[bytes] = []
    pieces: list[bytes] = []
    assert heads.append_frames(run, compiled, kernel) == heads.append_frames(run, pieces, None)
    assert compiled == pieces


def seen(metadata: EntryMetadata) -> tuple[Any, ...]:
    return (
        metadata.num_messages,
        metadata.batched,
        metadata.publish_time_ms,
        metadata.deliver_at_ms,
        metadata.marker_type,
        metadata.slot,
    )


@given(data=entries() | st.binary(max_size=30), most=st.sampled_from([BATCH_MESSAGES_MAX]))
def test_stored_metadata_is_read_alike(kernel: Any, data: bytes, most: int) -> None:
    known = kernel.stored_metadata(data, most)
    if known is not None:
        assert seen(EntryMetadata(*known)) == seen(read_in_python(data))


@given(stored=st.lists(entries() | st.binary(max_size=30), max_size=4), keyed=st.booleans())
def test_what_consumers_hold_is_known_alike(kernel: Any, stored: list[bytes], keyed: bool) -> None:
    """What the compiled function takes for plain is so, with the same slot."""
    run = [Entry(1, number, data) for number, data in enumerate(stored)]
    values = kernel.held_values(run, keyed)
    assert len(values) == len(stored)
    for value, expected in zip(values, held_values_in_python(run, keyed), strict=True):
        assert value in (expected, NOT_PLAIN)


@given(key=st.text(st.characters(codec="ascii"), max_size=40), ordering_key=st.binary(max_size=20))
def test_what_consumers_hold_of_plain_entries_is_known_by_the_compiled_function(
    kernel: Any, key: str, ordering_key: bytes
) -> None:
    named = MessageMetadata(producer_name="raw", sequence_id=20, publish_time=3)
    keyed = MessageMetadata(producer_name="raw", sequence_id=20, publish_time=3, partition_key=key)
    ordered = MessageMetadata(producer_name="raw", sequence_id=20, publish_time=3, ordering_key=ordering_key)
    run = [Entry(1, 0, with_checksum(each, b"x")) for each in (named, keyed, ordered)]
    slots = [key_slot(each) for each in (b"raw-20", key.encode(), ordering_key)]
    assert kernel.held_values(run, True) == [ONE_MESSAGE | slot for slot in slots]
    assert kernel.held_values(run, False) == [ONE_MESSAGE] * 3


def test_stored_metadata_is_read_by_the_compiled_function(kernel: Any) -> None:
    plain = MessageMetadata(producer_name="raw", sequence_id=20, publish_time=3)
    assert kernel.stored_metadata(with_checksum(plain, b"x"), 10) == (1, False, 3, 0, -1, b"raw-20")


@given(data=st.binary(max_size=100), times=st.sampled_from([1, 1, 7, 8, 80]))
def test_checksums_are_alike(kernel: Any, data: bytes, times: int) -> None:
    assert kernel.crc32c(data * times) == google_crc32c.value(data * times)


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """A batch, whole or damaged, and how many messages are said to be in it."""
    made: list[tuple[SingleMessageMetadata, bytes]] = []
    for _ in range(draw(st.integers(1, 6))):
        value = b"v" * draw(st.sampled_from([0, 1, 127, 128, 300, 16_384]))
        single = SingleMessageMetadata(payload_size=len(value))
        fields: dict[str, st.SearchStrategy[Any]] = {
            "partition_key": TEXT | st.sampled_from(["x" * 127, "x" * 128]),
            "sequence_id": U64,
            "event_time": U64,
            "null_value": st.booleans(),
            "compacted_out": st.booleans(),
            "null_partition_key": st.booleans(),
        }
        for name in draw(st.lists(st.sampled_from(["partition_key", "sequence_id"] * 3 + sorted(fields)), max_size=2)):
            setattr(single, name, draw(fields[name]))
        made.append((single, value))
    data = join(made)
    return damaged(draw, data), draw(st.sampled_from([len(made)] * 4 + [0, -1, len(made) + 1, 2**40]))


def of_walk(found: Messages) -> tuple[Any, ...]:
    return list(found.indexes), found.values(), found.keys or [None] * len(found)


@given(batch=batches(), before=st.sampled_from([0, 0, 3]))
def test_messages_of_a_batch_are_found_alike(kernel: Any, batch: tuple[bytes, int], before: int) -> None:
    data, count = b"\0" * before + batch[0], batch[1]
    plain = kernel.batch_places(data, before, count)
    if plain is None:
        return
    found = of_places(data, count, *plain)
    try:
        expected = of_walk(walk_in_python(data, count, before))
    except PayloadError:  # of a key that is no text, which is refused where it is asked for
        with pytest.raises(PayloadError):
            of_walk(found)
        return
    assert of_walk(found) == expected
    assert found.event_times_ms is None
    assert found.properties is None


def test_messages_of_a_plain_batch_are_found_by_the_compiled_function(kernel: Any) -> None:
    batch = [SingleMessageMetadata(payload_size=2, partition_key="k", sequence_id=2**n) for n in (0, 7, 62)]
    batch += [SingleMessageMetadata(payload_size=2)]
    assert kernel.batch_places(join((each, b"ab") for each in batch), 0, 4) is not None
    batch[0].null_value = True
    assert kernel.batch_places(join((each, b"ab") for each in batch), 0, 4) is None
    assert kernel.batch_places(b"abc", 4, 1) is None
    assert kernel.batch_places(b"abc", -1, 1) is None


@given(
    pieces=st.lists(
        st.tuples(st.binary(max_size=300), st.lists(st.tuples(st.integers(-1, 301), st.integers(-1, 301)), max_size=5))
    )
)
def test_pieces_are_gathered_alike(kernel: Any, pieces: list[tuple[bytes, list[tuple[int, int]]]]) -> None:
    numbered = [
        (data, np.array([a for a, _ in places], np.int64), np.array([b for _, b in places], np.int64))
        for data, places in pieces
    ]
    try:
        expected = gathered_in_python(numbered)
    except ValueError:
        with pytest.raises(ValueError, match="beyond"):
            kernel.gathered(numbered)
        return
    assert kernel.gathered(numbered) == expected


def test_pieces_of_other_lengths_are_refused(kernel: Any) -> None:
    for starts, ends in ((b"", b"\0" * 8), (b"\0" * 7, b"\0" * 7)):
        with pytest.raises(ValueError, match="64 bits"):
            kernel.gathered([(b"abc", starts, ends)])
    with pytest.raises(OverflowError):
        kernel.gathered([(b"a" * 2**20, np.zeros(2048, np.int64), np.full(2048, 2**20))])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("split", (b"",)),
        ("split", ("text", 1, 1)),
        ("plain_sends", (deque([1]), 1, 1, 1, None, 1, 0)),
        ("plain_sends", (deque([(b"", "text")]), 1, 1, 1, None, 1, 0)),
        ("plain_sends", (deque(), 1, 1, 1, b"bytes", 1, 0)),
        ("plain_acks", (deque([(1, 2)]), 1, 1)),
        ("send_receipts", (1, "ab", [1], 1, 1)),
        ("send_receipts", (1, ["a"], [1], 1, 1)),
        ("message_pieces", (1, 1, (), ())),
        ("stored_metadata", ("text", 1)),
        ("held_values", ((), True)),
        ("held_values", ([b"no entry"], True)),
        ("batch_places", ("text", 0, 1)),
        ("batch_places", (b"", 0)),
        ("gathered", ((),)),
        ("gathered", ([b"no piece"],)),
        ("gathered", ([("text", b"", b"")],)),
        ("gathered", ([(b"", [1], [1])],)),
        ("crc32c", ("text",)),
    ],
)
def test_other_types_are_refused(kernel: Any, name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, SystemError, AttributeError)):
        getattr(kernel, name)(*arguments)


# ---- Bookies


I63 = st.integers(-1, 3) | st.integers(-1, 2**62)


@given(ids=st.tuples(I63, I63, I63, I63), payloads=st.lists(st.binary(max_size=40) | st.just(b"x" * 7000), max_size=6))
def test_entries_are_packed_as_in_python(kernel: Any, ids: tuple[int, int, int, int], payloads: list[bytes]) -> None:
    expected = pack_run_in_python(*ids, payloads, Digest(DigestType.CRC32C))
    assert kernel.pack_run(*ids, payloads) == expected


@st.composite
def add_frames(draw: st.DrawFn) -> bytes:
    """A run of adds, and what may stand in it."""
    key, ledger_id, entry_id = draw(st.sampled_from([b"k" * 20, b"o" * 20])), draw(I63), draw(I63)
    pieces = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["add"] * 12 + ["key", "ledger", "gap", "again", "flags", "garbage"]))
        entry_id += {"gap": 3, "again": -1}.get(kind, 1)
        ids = (ledger_id + (kind == "ledger")).to_bytes(8, "big", signed=True) + entry_id.to_bytes(
            8, "big", signed=True
        )
        entry = ids + draw(st.sampled_from([8, 8, 8, 0, 7, 30])) * b"e"
        pieces.append(
            encode_add_head(2 if kind == "flags" else 0, b"x" * 20 if kind == "key" else key, len(entry)) + entry
        )
        if kind == "garbage":
            pieces.append(draw(st.binary(max_size=60)))
    return damaged(draw, b"".join(pieces))


@given(data=add_frames(), position=st.integers(0, 60), bounds=st.tuples(st.integers(0, 5), st.integers(0, 100)))
def test_adds_are_cut_as_in_python(kernel: Any, data: bytes, position: int, bounds: tuple[int, int]) -> None:
    for start in (0, min(position, len(data))):
        for most, bytes_max in (bounds, (512, 10_000)):
            expected = cut_adds_in_python(data, start, most, bytes_max, 24, 45)
            assert kernel.cut_adds(data, start, most, bytes_max, 24, 45) == expected


@st.composite
def packed_runs(draw: st.DrawFn) -> tuple[list[int], list[bytes]]:
    """Ids and packed entries of ledger 7, of which some may be something else."""
    first, lac = draw(I63), draw(I63)
    payloads = draw(st.lists(st.binary(max_size=30), max_size=5))
    packed, _ = pack_run_in_python(7, first, lac, 0, payloads, Digest(DigestType.DUMMY))
    ids = list(range(first, first + len(packed)))
    for place in draw(st.lists(st.integers(0, 4), max_size=1)):
        if place < len(packed):
            packed[place] = damaged(draw, packed[place])
            ids[place] += draw(st.integers(0, 1))
    return ids, packed


@given(run=packed_runs(), entry_bytes_max=st.sampled_from([40, 100]))
def test_entries_are_what_they_should_be_as_in_python(
    kernel: Any, run: tuple[list[int], list[bytes]], entry_bytes_max: int
) -> None:
    ids, packed = run
    expected = highest_lac_in_python(7, ids, packed, entry_bytes_max)
    assert kernel.highest_lac(7, ids, packed, entry_bytes_max) == expected
    if ids and ids == list(range(ids[0], ids[0] + len(ids))):
        assert kernel.highest_lac(7, range(ids[0], ids[0] + len(ids)), packed, entry_bytes_max) == expected


@given(entries=st.lists(st.binary(max_size=40) | st.just(b"x" * 7000), max_size=6))
def test_records_have_the_headers_of_python(kernel: Any, entries: list[bytes]) -> None:
    assert kernel.record_headers(entries) == RecordHeaders().pack_in_python(entries, list(map(len, entries)))


def test_what_they_cannot_pack_or_cut_is_refused(kernel: Any) -> None:
    with pytest.raises(TypeError):
        kernel.pack_run(1, 2, 3, 4, [b"", "text"])
    with pytest.raises(TypeError):
        kernel.pack_run(1, 2, 3, 4, (b"",))
    with pytest.raises(OverflowError):
        kernel.pack_run(2**63, 2, 3, 4, [b""])
    with pytest.raises(ValueError, match="position"):
        kernel.cut_adds(b"123", 4, 1, 1, 24, 45)
    with pytest.raises(TypeError):
        kernel.cut_adds(bytearray(100), 0, 1, 1, 24, 45)
    with pytest.raises(TypeError):
        kernel.record_headers([b"", "text"])
    with pytest.raises(TypeError):
        kernel.highest_lac(7, 1, [b"x" * 30], 100)
    with pytest.raises(ValueError, match="id for each"):
        kernel.highest_lac(7, [1], [], 100)
