"""The walk over a batch finds what parsing every metadata finds, and refuses what is damaged."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.pipeline.connect.batch_walk import walk
from magnetar.wire.pulsar.batches import join, split
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.PulsarApi_pb2 import SingleMessageMetadata


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
