"""The walk over a batch finds what parsing every metadata finds, and refuses what is damaged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.raw.batch_walk import walk
from magnetar.pipeline.connect.raw.entries import Entry
from magnetar.pipeline.connect.reading.columns import Columns, schema_for
from magnetar.pipeline.connect.reading.metadata_columns import METADATA
from magnetar.wire.pulsar.batches import join, split
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageIdData, SingleMessageMetadata


@st.composite
def singles(draw: st.DrawFn) -> tuple[SingleMessageMetadata, bytes]:
    payload = b"v" * draw(st.sampled_from([0, 1, 127, 128, 300, 16383, 16384, 20_000]))
    single = SingleMessageMetadata(payload_size=len(payload))
    if draw(st.booleans()):
        single.partition_key = draw(st.sampled_from(["", "k", "é" * 40, "x" * 127, "x" * 128, "x" * 400]))
    for name in ("sequence_id", "event_time"):
        if draw(st.booleans()):
            setattr(single, name, draw(st.sampled_from([0, 1, 0x48, 0x2401, 2**40, 0x50 << 7 | 1])))
    for name in ("null_value", "compacted_out", "null_partition_key", "partition_key_b64_encoded"):
        if draw(st.integers(0, 5)) == 0:
            setattr(single, name, draw(st.booleans()))
    if draw(st.integers(0, 5)) == 0:
        single.ordering_key = b"o"
        single.properties.add(key="p", value="q")
    return single, payload


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # a busy machine draws slowly
@given(st.lists(singles(), min_size=1, max_size=8))
def test_it_finds_what_parsing_finds(batch: list[tuple[SingleMessageMetadata, bytes]]) -> None:
    data = join(batch)
    kept = [(at, one, value) for at, (one, value) in enumerate(split(data, len(batch))) if not one.compacted_out]
    found = walk(data, len(batch))
    assert list(found.indexes) == [at for at, _, _ in kept]
    assert found.values() == [None if one.null_value else value for _, one, value in kept]
    assert (found.keys or [None] * len(kept)) == [one.partition_key or None for _, one, _ in kept]
    assert (found.event_times_ms or [0] * len(kept)) == [one.event_time for _, one, _ in kept]
    properties = [[(each.key, each.value) for each in one.properties] for _, one, _ in kept]
    assert (found.properties or [[] for _ in kept]) == properties
    cut = found.cut(2, 5)
    assert list(cut.indexes) == [at for at, _, _ in kept if 2 <= at < 5]
    assert cut.values() == [None if one.null_value else value for at, one, value in kept if 2 <= at < 5]


@st.composite
def neighbours(draw: st.DrawFn) -> list[tuple[SingleMessageMetadata, bytes]]:
    """Messages that are alike but for what a producer changes from one to the next: at the end a key, a flag, a number that grows."""
    size, count = draw(st.sampled_from([0, 3, 200, 20_000])), draw(st.integers(1, 30))
    begin, keyed = draw(st.sampled_from([0, 100, 120, 16_370, 2**40])), draw(st.sampled_from([None, "", "k", "key"]))
    found = []
    for number in range(count):
        single = SingleMessageMetadata(payload_size=size, sequence_id=begin + number)
        if keyed is not None:
            single.partition_key = f"{keyed}{number % 10}" if keyed else ""
        found.append((single, bytes([number]) * size))
    if draw(st.booleans()):
        setattr(found[-1][0], draw(st.sampled_from(["null_value", "compacted_out"])), True)
    return found


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(neighbours(), min_size=1, max_size=4))
def test_neighbours_that_are_alike_are_found_as_others_are(
    runs: list[list[tuple[SingleMessageMetadata, bytes]]],
) -> None:
    batch = [message for run in runs for message in run]
    data = b"before" + join(batch)
    found = walk(data, len(batch), len(b"before"))
    kept = [(at, one, value) for at, (one, value) in enumerate(batch) if not one.compacted_out]
    assert list(found.indexes) == [at for at, _, _ in kept]
    assert found.values() == [None if one.null_value else value for _, one, value in kept]
    assert (found.keys or [None] * len(kept)) == [one.partition_key or None for _, one, _ in kept]
    entry = Entry(1, 2, len(batch), 1_767_323_045_678, None, found)
    columns = Columns(
        schema_for(["value", *METADATA]),
        read_options({"service.url": "pulsar://h:1", "topic": "a"}).connection,
    )
    columns.add("persistent://public/default/a-partition-3", entry)
    if kept:
        rows = columns.batch().to_pylist()
        assert [row["value"] for row in rows] == found.values()
        assert [row["__batchIndex"] for row in rows] == [at for at, _, _ in kept]
        assert [row["__key"] for row in rows] == [one.partition_key or None for _, one, _ in kept]
        assert {(row["__topic"], row["__partition"], row["__ledgerId"], row["__entryId"]) for row in rows} == {
            ("persistent://public/default/a-partition-3", 3, 1, 2)
        }
        assert {row["__publishTime"] for row in rows} == {datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)}
        assert all(row["__eventTime"] is None and row["__messageProperties"] == [] for row in rows)
        for row in rows:
            said = MessageIdData(
                ledgerId=1, entryId=2, partition=3, batch_index=row["__batchIndex"], batch_size=len(batch)
            )
            assert row["__messageId"] == said.SerializeToString()


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(1, 4))
def test_anything_else_is_refused_as_a_payload(data: bytes, count: int) -> None:
    try:
        found = walk(data, count)
    except PayloadError:
        return
    assert len(found.values()) <= count


def test_a_batch_that_ends_early_is_refused() -> None:
    data = join([(SingleMessageMetadata(payload_size=4, sequence_id=7), b"abcd")] * 3)
    for length in range(len(data)):
        with pytest.raises(PayloadError):
            walk(data[:length], 3)
