"""The cursor of the markers is there as long as a subscription is replicated, whatever comes and goes while it is opened or deleted."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

from magnetar.base.clock import SystemClock
from magnetar.broker.config import ReplicatedSubscriptionsConfig
from magnetar.broker.replication.ports import ReplicationContext, SnapshotCounters
from magnetar.broker.replication.replicated_subscriptions import ReplicatedSubscriptions
from magnetar.broker.replication.subscription_side import SubscriptionSide


class SlowLedger:
    """Its cursors, the deletion of which ends when the test says so."""

    def __init__(self) -> None:
        self.cursors: dict[str, Any] = {}
        self.deleting = asyncio.Event()
        self.may_delete = asyncio.Event()

    async def open_cursor(self, name: str, initial: object) -> object:
        return self.cursors.setdefault(name, SimpleNamespace(closed=False))

    async def delete_cursor(self, name: str) -> None:
        self.deleting.set()
        await self.may_delete.wait()
        self.cursors.pop(name).closed = True


async def test_a_subscription_that_comes_while_the_cursor_is_deleted() -> None:
    ledger = SlowLedger()
    tasks: list[asyncio.Task[Any]] = []
    context = ReplicationContext(
        "east",
        SystemClock(),
        random.Random(1),
        lambda work, name: tasks.append(asyncio.ensure_future(work)),
        SnapshotCounters(),
    )
    found = ReplicatedSubscriptions(
        "persistent://t/n/topic",
        cast("Any", ledger),
        cast("Any", SimpleNamespace(all=[])),
        context,
        lambda: 0,
        cast("Any", None),
    )
    found.apply_config(ReplicatedSubscriptionsConfig(interval_ms=3_600_000))
    await found._start()
    await ledger.deleting.wait()
    found.sides["theirs"] = cast("SubscriptionSide", SimpleNamespace(detach=lambda: None))
    ledger.may_delete.set()  # nobody starts it: with no link to another cluster only what runs already is there for an update
    for _ in range(5):
        await asyncio.sleep(0)
    assert list(ledger.cursors) == ["pulsar.replicated.subscriptions"]
    assert any(not each.done() for each in tasks), "somebody ticks for it"
    found.close()
    for each in tasks:
        each.cancel()
