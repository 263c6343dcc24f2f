"""When a bookie may give up its copy of a ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.ledger_homes import MetadataLedgerHomes
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore

HERE = "here:3181"
OPEN = LedgerMetadata(
    ensemble_size=2, write_quorum=2, ack_quorum=2, segments=(Segment(0, ("a:1", "b:1")),), ctime_ms=1, c_token=1
)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=9, length=10)


@pytest.mark.parametrize(
    ("metadata", "elsewhere"),
    [
        (CLOSED, True),
        (OPEN, False),
        (replace(OPEN, state=LedgerState.IN_RECOVERY), False),
        (replace(CLOSED, segments=(Segment(0, ("a:1", "b:1")), Segment(5, ("a:1", HERE)))), False),
        (replace(CLOSED, segments=(Segment(0, (HERE, "b:1")), Segment(5, ("a:1", "b:1")))), False),
    ],
)
async def test_only_of_a_closed_ledger_without_a_segment_here(metadata: LedgerMetadata, elsewhere: bool) -> None:
    store = MemoryMetadataStore()
    ledger_id, _ = await LedgerManager(store).create(metadata)
    assert await MetadataLedgerHomes(store, HERE).stored_elsewhere(ledger_id) == elsewhere


async def test_a_ledger_that_is_gone_is_not_elsewhere() -> None:
    assert not await MetadataLedgerHomes(MemoryMetadataStore(), HERE).stored_elsewhere(7)


async def test_the_lock_is_the_one_of_the_replication_workers() -> None:
    store = MemoryMetadataStore()
    path = paths.underreplication_lock_path(7)
    async with MetadataLedgerHomes(store, HERE).lock(7) as locked:
        assert locked
        node = await store.get(path)
        assert node is not None
        assert (node.value, node.owner) == (b'bookieId: "here:3181 (collection)"\n', store.session_id)
        async with MetadataLedgerHomes(store, "other:3181").lock(7) as again:
            assert not again
        assert await store.exists(path), "the loser leaves it alone"
    assert not await store.exists(path)
