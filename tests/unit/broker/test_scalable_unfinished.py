"""Changes of scalable topics that a broker began before it died: whoever starts looks until somebody has ended them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.broker.naming import TopicName
from magnetar.broker.scalable import unfinished
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.broker.scalable.records import PendingChange, ScalableRecords, TopicRecord
from magnetar.metadata.memory import MemoryMetadataStore

TOPIC = TopicName.parse("topic://t/n/x", scalable=True)
DEAD = 2
"""So often the controller that is found is the broker before it died, whose session has not ended."""


def test_a_controller_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "FINISH_FIRST_S", 0.001)

    async def run() -> int:
        records = ScalableRecords(MemoryMetadataStore())
        await records.create(TOPIC, TopicRecord(SegmentLayout.create(1, 0), pending=PendingChange((0,), 1)))
        found = 0

        async def control(topic: TopicName) -> None:
            nonlocal found
            found += 1
            if found > DEAD:
                await records.update(topic, lambda record: replace(record, pending=None))

        async with asyncio.timeout(60):
            await unfinished.end_what_was_begun(records, control)
        record = await records.get(TOPIC)
        assert record is not None
        assert record.pending is None
        return found

    assert asyncio.run(run()) == DEAD + 1
