"""Records of subscriptions that come at the same moment, to brokers that do not know of each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from magnetar.base.executor import InlineExecutor
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.naming import TopicName
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.broker.scalable.records import QUEUE, ScalableRecords, TopicRecord
from magnetar.broker.scalable.segments import Segments
from magnetar.broker.scalable.subscriptions import ScalableSubscriptions
from magnetar.metadata.sqlite import SqliteMetadataStore

TOPIC = TopicName.parse("topic://t/n/x", scalable=True)
MOST, COMING = 3, 8


class NoCursors:
    async def subscriptions(self, name: TopicName) -> list[str]:
        return []


async def policies(topic: TopicName) -> Any:
    return SimpleNamespace(max_subscriptions_per_topic=MOST, auto_subscription_creation=True)


def test_the_first_ones_stay(tmp_path: Path) -> None:
    """All have asked before the first is written down."""

    async def run() -> None:
        metadata = await SqliteMetadataStore.open(tmp_path / "metadata.db", InlineExecutor())
        records = ScalableRecords(metadata)
        await records.create(TOPIC, TopicRecord(SegmentLayout.create(2, 0)))
        brokers = [ScalableSubscriptions(records, cast("Segments", NoCursors()), policies) for _ in range(COMING)]
        coming = (each.record(TOPIC, f"s{number}", QUEUE) for number, each in enumerate(brokers))
        outcomes = await asyncio.gather(*coming, return_exceptions=True)
        made = {f"s{number}" for number, each in enumerate(outcomes) if each is True}
        assert len(made) == MOST, outcomes
        assert sum(isinstance(each, NotAllowedError) for each in outcomes) == COMING - MOST, outcomes
        assert set(await records.subscriptions(TOPIC)) == made
        again = next(iter(made))
        assert await brokers[0].record(TOPIC, again, QUEUE) is False
        await metadata.close()

    asyncio.run(run())
