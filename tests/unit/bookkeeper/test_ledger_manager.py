"""Ledger ids and znodes: BookKeeper's paths, its counters, its clean-up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.base.errors import BadVersionError
from magnetar.bookkeeper.client import ledger_manager
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.errors import LedgerExistsError, LedgerMetadataError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from magnetar.metadata import paths
from magnetar.metadata.errors import MetadataConnectionError
from magnetar.metadata.memory import MemoryMetadataStore

METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("b0",)),), c_token=11)


def with_counter_at(store: MemoryMetadataStore, parent: str, value: int) -> None:
    record = store.tree.find(parent)
    assert record is not None
    record.next_sequence = value


async def test_ids_rise_and_leave_no_trace_of_the_counter() -> None:
    store = MemoryMetadataStore()
    manager = LedgerManager(store)
    assert [await manager.create(METADATA) for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
    assert await store.children("/ledgers/idgen") == []
    assert await store.children("/ledgers/00/0000") == ["L0000", "L0001", "L0002"]
    assert await manager.read(1) == (METADATA, 0)


async def test_ids_go_on_in_63_bits() -> None:
    store = MemoryMetadataStore()
    await store.put("/ledgers/idgen/x", b"")
    with_counter_at(store, "/ledgers/idgen", paths.SHORT_LEDGER_ID_LIMIT - 1)
    manager = LedgerManager(store)
    assert (await manager.create(METADATA))[0] == 2**31 - 2
    assert (await manager.create(METADATA))[0] == 1 << 32
    assert (await manager.create(METADATA))[0] == (1 << 32) + 1
    with_counter_at(store, "/ledgers/idgen-long/HOB-0000000001", paths.SHORT_LEDGER_ID_LIMIT)
    assert (await manager.create(METADATA))[0] == 2 << 32
    assert await store.exists("/ledgers/000/0000/0042/9496/L7296")
    assert (await LedgerManager(store).create(METADATA))[0] == (2 << 32) + 1


async def test_a_taken_id_is_passed_over() -> None:
    store = MemoryMetadataStore()
    other = LedgerMetadata(1, 1, 1, (Segment(0, ("b0",)),), c_token=99)
    await store.put(paths.ledger_path(0), other.to_bytes())
    assert (await LedgerManager(store).create(METADATA))[0] == 1


async def test_our_own_repeated_create_is_a_success() -> None:
    store = MemoryMetadataStore()
    await store.put(paths.ledger_path(0), METADATA.to_bytes())
    assert await LedgerManager(store).create(METADATA) == (0, 0)


class LosesAnswers(MemoryMetadataStore):
    """The first write and the first deletion are done, and nobody is told."""

    left = 1
    left_deletions = 1

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, int]:
        answer = await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)
        if not sequential and self.left:
            self.left -= 1
            raise MetadataConnectionError("cut")
        return answer

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        await super().delete(path, expected_version)
        if self.left_deletions:
            self.left_deletions -= 1
            raise MetadataConnectionError("cut")


async def test_lost_answers_cost_neither_the_ledger_nor_its_id() -> None:
    store = LosesAnswers()
    assert await LedgerManager(store).create(METADATA) == (0, 0)
    assert (store.left, store.left_deletions) == (0, 0)
    store.left = 1
    without = replace(METADATA, c_token=0)
    assert await LedgerManager(store).create(without) == (2, 0), "without a token nobody can say whose ledger 1 is"


async def test_a_counter_that_was_set_back_far_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_manager, "ID_COLLISIONS_MAX", 3)
    store = MemoryMetadataStore()
    other = LedgerMetadata(1, 1, 1, (Segment(0, ("b0",)),), c_token=99)
    for ledger_id in range(3):
        await store.put(paths.ledger_path(ledger_id), other.to_bytes())
    with pytest.raises(LedgerExistsError):
        await LedgerManager(store).create(METADATA)


async def test_compare_and_set() -> None:
    manager = LedgerManager(MemoryMetadataStore())
    ledger_id, version = await manager.create(METADATA)
    assert await manager.write(ledger_id, METADATA.closed(-1, 0), version) == version + 1
    with pytest.raises(BadVersionError):
        await manager.write(ledger_id, METADATA.closed(-1, 0), version)


async def test_delete_removes_directories_that_become_empty() -> None:
    store = MemoryMetadataStore()
    manager = LedgerManager(store)
    await manager.create(METADATA)
    await manager.create(METADATA)
    await manager.delete(0)
    assert await store.children("/ledgers/00/0000") == ["L0001"]
    await manager.delete(1)
    assert await store.children("/ledgers") == ["idgen"]
    await manager.delete(1)
    with pytest.raises(NoSuchLedgerError):
        await manager.read(1)
    assert not await manager.exists(1)


async def test_listing_finds_ids_of_both_forms_and_nothing_else() -> None:
    store = MemoryMetadataStore()
    manager = LedgerManager(store)
    assert await manager.list_ids() == []
    ids = [0, 9_999, 10_000, 2**31 - 2, 2**31 - 1, 1 << 32, 2**63 - 1]
    for ledger_id in ids:
        await store.put(paths.ledger_path(ledger_id), METADATA.to_bytes())
    await store.put(paths.available_bookie_path("b:3181"), b"", ephemeral=True)
    await store.put(paths.LAYOUT_PATH, b"2\n")
    assert sorted(await manager.list_ids()) == ids


async def test_damaged_metadata_is_not_a_missing_ledger() -> None:
    store = MemoryMetadataStore()
    await store.put(paths.ledger_path(5), b"garbage")
    with pytest.raises(LedgerMetadataError):
        await LedgerManager(store).read(5)
