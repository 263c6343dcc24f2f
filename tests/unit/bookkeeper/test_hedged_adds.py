"""Hedged adds: a bookie that is silent while another one stored the same entry is replaced before its request times out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from tests.unit.bookkeeper.fake_bookies import Cluster
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read_all, settle
from tests.unit.bookkeeper.test_ensemble_change import copies, open_writer, until_settled

HEDGING = ClientConfig(add_hedge_s=0.05)


async def test_a_silent_bookie_is_replaced_long_before_its_time_out() -> None:
    """Its late answers change nothing, and what it stored late is not a copy that anybody counts."""
    cluster = Cluster(4, HEDGING)
    writer, bookies = await open_writer(cluster)
    await append_all(writer, [b"0"])
    bookies[1].held = []
    await append_all(writer, [b"%d" % n for n in range(1, 9)])
    statistics = cluster.client.statistics
    assert (statistics.hedged_changes, statistics.hedged_changes_under_way, statistics.bookies_replaced) == (1, 0, 1)
    assert bookies[1] not in [cluster.bookie(each) for each in writer.metadata.last_segment.ensemble]
    bookies[1].release()
    await settle()
    await append_all(writer, [b"9"])
    await copies(cluster, writer)
    assert await read_all(writer) == [b"%d" % n for n in range(10)]
    assert statistics.ensemble_changes == 1
    assert cluster.directory.quarantined() == []


async def test_without_another_bookie_a_silent_one_is_waited_for() -> None:
    cluster = Cluster(3, HEDGING)
    writer, bookies = await open_writer(cluster)
    bookies[1].held = []
    outcomes = Outcomes()
    for n in range(4):
        outcomes.append(writer, b"%d" % n)
    await asyncio.sleep(0.2)
    assert outcomes.calls == []
    assert not writer.changing_ensemble
    bookies[1].release()
    await until_settled(writer)
    assert outcomes.stored == [b"%d" % n for n in range(4)]
    assert cluster.client.statistics.ensemble_changes == 0


async def test_bookies_that_are_all_silent_are_not_replaced() -> None:
    """That is the network's, the disk's or this process's pause, not a bookie's."""
    cluster = Cluster(6, HEDGING)
    writer, bookies = await open_writer(cluster)
    for bookie in bookies:
        bookie.held = []
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await asyncio.sleep(0.2)
    assert cluster.client.statistics.ensemble_changes == 0
    for bookie in bookies:
        bookie.release()
    await until_settled(writer)
    assert outcomes.stored == [b"0"]


async def test_one_pause_of_a_bookie_is_no_storm_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten ledgers wait for it: never more than the bound are changed at once, and all of them go on."""
    monkeypatch.setattr("magnetar.bookkeeper.client.writer.HEDGED_CHANGES_MAX", 2)
    write = LedgerManager.write

    async def slow(self: LedgerManager, *arguments: Any) -> int:
        await asyncio.sleep(0.01)
        return await write(self, *arguments)

    monkeypatch.setattr(LedgerManager, "write", slow)
    cluster = Cluster(4, HEDGING)
    writers = [await cluster.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) for _ in range(10)]
    late = cluster.bookie(writers[0].metadata.last_segment.ensemble[0])
    late.held = []
    outcomes = Outcomes()
    for writer in writers:
        outcomes.append(writer, b"x")
    most = 0
    async with asyncio.timeout(60):
        while len(outcomes.calls) < len(writers):
            most = max(most, cluster.client.statistics.hedged_changes_under_way)
            await asyncio.sleep(0)
    assert outcomes.errors == []
    assert 1 <= most <= 2
    for writer in writers:
        await copies(cluster, writer)


async def test_a_hedge_that_meets_a_quorum_that_is_large_enough_does_nothing() -> None:
    """Two of three copies suffice: nobody waits for the third, so it may be late."""
    cluster = Cluster(5, HEDGING)
    writer, bookies = await open_writer(cluster, (3, 3, 2))
    bookies[2].held = []
    for n in range(5):
        await append_all(writer, [b"%d" % n])
        await asyncio.sleep(0.03)
    assert cluster.client.statistics.ensemble_changes == 0
