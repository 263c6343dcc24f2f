"""Marks, locks and switches, byte for byte where BookKeeper's own processes look for them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from magnetar.base.errors import InvalidArgumentError, MetadataError
from magnetar.bookkeeper.autorecovery.underreplication import (
    CHECK_ALL_LEDGERS,
    CHECK_REPLICAS,
    LedgerLock,
    UnderreplicationManager,
)
from magnetar.bookkeeper.errors import UnderreplicationFormatError
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MUST_NOT_EXIST, Node

ROOT = "/ledgers/underreplication"
NOW_MS = 1_700_000_000_000


class FixedClock:
    def __init__(self) -> None:
        self.now = NOW_MS

    def now_ms(self) -> int:
        return self.now

    def monotonic_s(self) -> float:
        return self.now / 1000


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore()


def manager(store: MemoryMetadataStore, holder: str = "b0:3181") -> UnderreplicationManager:
    return UnderreplicationManager(store, FixedClock(), holder)


async def value(store: MemoryMetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None, path
    return node.value


async def test_the_tree_is_bookkeepers(store: MemoryMetadataStore) -> None:
    await manager(store).prepare()
    assert await value(store, f"{ROOT}/LAYOUT") == b'type: "BASIC"\nversion: 1\n'
    assert await store.children(ROOT) == ["LAYOUT", "ledgers", "locks"]
    await manager(store).prepare()


async def test_a_foreign_layout_is_refused(store: MemoryMetadataStore) -> None:
    await store.put(f"{ROOT}/LAYOUT", b'type: "BASIC"\nversion: 2\n')
    with pytest.raises(UnderreplicationFormatError, match="BASIC:2"):
        await manager(store).prepare()


async def test_a_mark_is_a_node_in_four_levels_and_grows(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    path = f"{ROOT}/ledgers/0000/0000/0001/2345/urL0000074565"
    assert await marks.mark(0x12345, ["b2:3181"])
    assert await value(store, path) == b'replica: "b2:3181"\nctime: 1700000000000\n'
    assert not await marks.mark(0x12345, ["b2:3181"])
    assert await marks.mark(0x12345, ["b1:3181", "b2:3181"])
    assert await value(store, path) == b'replica: "b2:3181"\nreplica: "b1:3181"\nctime: 1700000000000\n'
    found = await marks.get(0x12345)
    assert found is not None
    assert (found.replicas, found.ctime_ms) == (("b2:3181", "b1:3181"), NOW_MS)
    assert await marks.marked() == [0x12345]


async def test_a_mark_of_bookkeeper_without_time_is_read(store: MemoryMetadataStore) -> None:
    await store.put(f"{ROOT}/ledgers/0000/0000/0000/0007/urL0000000007", b'replica: "10.0.0.1:3181"\n')
    found = await manager(store).get(7)
    assert found is not None
    assert (found.replicas, found.ctime_ms) == (("10.0.0.1:3181",), -1)


async def test_damaged_marks_are_named(store: MemoryMetadataStore) -> None:
    await store.put(f"{ROOT}/ledgers/0000/0000/0000/0007/urL0000000007", b"replica 1")
    with pytest.raises(UnderreplicationFormatError, match="urL0000000007"):
        await manager(store).get(7)


async def test_one_holder_at_a_time(store: MemoryMetadataStore) -> None:
    first, second = manager(store), manager(store, "b1:3181")
    await first.mark(1, ["x"])
    lock = await first.acquire(random.Random(1))
    assert lock == LedgerLock(1, 0)
    assert await value(store, f"{ROOT}/locks/urL0000000001") == b'bookieId: "b0:3181"\n'
    assert await second.holder(1) == "b0:3181"
    assert await second.acquire(random.Random(1)) is None
    await first.release(lock)
    assert await second.acquire(random.Random(1)) == LedgerLock(1, 0)
    assert await second.holder(1) == "b1:3181"


async def test_locks_end_with_the_session_and_a_later_ones_is_left_alone(store: MemoryMetadataStore) -> None:
    first, second = manager(store), manager(store, "b1:3181")
    await first.mark(1, ["x"])
    lock = await first.lock(1)
    assert lock is not None
    assert await first.holds(lock)
    store.expire_session()
    assert not await first.holds(lock)
    assert await second.lock(1) is not None
    await first.release(lock)
    assert await second.holder(1) == "b1:3181"


class LosesAnswers(MemoryMetadataStore):
    """What it is asked happens, and the answer is lost while `lost` says so."""

    lost = ""

    async def put(self, *args: Any, **kwargs: Any) -> tuple[str, int]:
        answer = await super().put(*args, **kwargs)
        self._answer("put")
        return answer

    async def get(self, path: str) -> Node | None:
        node = await super().get(path)
        self._answer("get")
        return node

    def _answer(self, kind: str) -> None:
        if self.lost == kind:
            raise MetadataError("the answer is lost")


@pytest.mark.parametrize("lost", ["put", "get"])
async def test_a_lock_whose_answer_was_lost_is_taken_up_again_by_its_holder_alone(lost: str) -> None:
    store = LosesAnswers()
    marks, other = manager(store, "one"), manager(store, "two")
    await marks.mark(1, ["b0:3181"])
    store.lost = lost
    with pytest.raises(MetadataError):
        await marks.acquire(random.Random(1))
    store.lost = ""
    assert await other.acquire(random.Random(1)) is None
    lock = await marks.acquire(random.Random(1))
    assert lock == LedgerLock(1, 0)
    assert await marks.acquire(random.Random(1)) is None
    store.lost = "get"
    with pytest.raises(MetadataError):
        await marks.release(lock)
    store.lost = ""
    assert await marks.acquire(random.Random(1)) == lock


async def test_repaired_ledgers_leave_no_node_behind(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    await marks.prepare()
    await marks.mark(1, ["x"])
    await marks.mark(0x10001, ["x"])
    lock = await marks.lock(1)
    assert lock is not None
    assert await marks.mark_replicated(lock)
    assert await marks.marked() == [0x10001]
    assert await store.children(f"{ROOT}/ledgers/0000/0000") == ["0001"]
    assert await store.children(f"{ROOT}/locks") == []


async def test_a_ledger_marked_again_meanwhile_stays_marked(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    await marks.mark(1, ["x"])
    lock = await marks.lock(1)
    assert lock is not None
    await marks.mark(1, ["y"])
    assert not await marks.mark_replicated(lock)
    assert await marks.marked() == [1]
    assert await marks.holder(1) is None


async def test_a_lock_on_what_was_repaired_meanwhile_is_given_back(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    assert await marks.lock(1) is None
    assert await store.children(f"{ROOT}/locks") == []


async def test_skipped_ledgers_are_not_acquired(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    for ledger_id in range(20):
        await marks.mark(ledger_id, ["x"])
    skipped = set(range(20)) - {7}
    lock = await marks.acquire(random.Random(3), skipped)
    assert lock is not None
    assert lock.ledger_id == 7


async def test_workers_begin_in_different_places(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    for ledger_id in range(20):
        await marks.mark(ledger_id << 16, ["x"])
    locks = [await marks.acquire(random.Random(seed)) for seed in range(5)]
    ids = [lock.ledger_id >> 16 for lock in locks if lock is not None]
    assert len(ids) == 5
    assert ids != sorted(ids)


async def test_the_switch_is_a_node(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    assert await marks.enabled()
    assert await marks.disable()
    assert not await marks.disable()
    assert await value(store, f"{ROOT}/disable") == b""
    assert not await manager(store, "other").enabled()
    assert await marks.enable()
    assert not await marks.enable()
    assert await marks.enabled()


async def test_the_delay_is_decimal_text(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    assert await marks.lost_bookie_recovery_delay_s() is None
    await marks.initialize_lost_bookie_recovery_delay(30)
    await marks.initialize_lost_bookie_recovery_delay(60)
    assert await value(store, f"{ROOT}/lostBookieRecoveryDelay") == b"30"
    await marks.set_lost_bookie_recovery_delay(90)
    assert await marks.lost_bookie_recovery_delay_s() == 90
    with pytest.raises(InvalidArgumentError):
        await marks.set_lost_bookie_recovery_delay(-1)
    await store.put(f"{ROOT}/lostBookieRecoveryDelay", b"soon")
    with pytest.raises(UnderreplicationFormatError, match="soon"):
        await marks.lost_bookie_recovery_delay_s()


async def test_check_times_are_binary(store: MemoryMetadataStore) -> None:
    marks = manager(store)
    assert await marks.check_time_ms(CHECK_ALL_LEDGERS) == -1
    await marks.set_check_time_ms(CHECK_ALL_LEDGERS, 300)
    await marks.set_check_time_ms(CHECK_REPLICAS, NOW_MS)
    assert await value(store, f"{ROOT}/checkallledgersctime") == b"\x08\xac\x02"
    assert await marks.check_time_ms(CHECK_ALL_LEDGERS) == 300
    assert await marks.check_time_ms(CHECK_REPLICAS) == NOW_MS
    await store.put(f"{ROOT}/replicascheckctime", b"\xff", MUST_NOT_EXIST + 1)
    with pytest.raises(UnderreplicationFormatError, match="replicascheckctime"):
        await marks.check_time_ms(CHECK_REPLICAS)
