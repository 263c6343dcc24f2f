"""A crash at every single write to the metadata, and at several stored entries: the next owner finds what was answered."""

from __future__ import annotations

import pytest

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.codec import encode_entries
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.paths import cursor_path, named_managed_ledger_path
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedLedgerInfo
from tests.unit.managed_ledger.ledger_harness import (
    NAME,
    LedgerHarness,
    acknowledge,
    append_all,
    numbered,
    read_all,
    until,
)

CONFIG = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=6, cursor_ledger_max_entries=3)

KEEP = ManagedLedgerConfig(retention_time_ms=-1, retention_size_bytes=-1)


class Plug:
    """Lets a number of writes to the metadata through, then none; `after` decides whether the last one still counts."""

    def __init__(self, store: MemoryMetadataStore, writes: int, *, lost_answer: bool = False) -> None:
        self.left = writes
        self.calls = 0
        self._store = store
        self._lost_answer = lost_answer
        self._put, self._delete = store.put, store.delete
        store.put, store.delete = self.put, self.delete  # type: ignore[method-assign]  # the fault

    def pull_out(self) -> None:
        self._store.put, self._store.delete = self._put, self._delete  # type: ignore[method-assign]  # back again

    async def put(self, *args: object, **kwargs: object) -> tuple[str, int]:
        stored = self._count()
        if stored or (self._lost_answer and self.left == -1):
            answer = await self._put(*args, **kwargs)  # type: ignore[arg-type]  # passed through
            if stored:
                return answer
        raise MetadataError("the connection was cut")

    async def delete(self, *args: object, **kwargs: object) -> None:
        if not self._count():
            raise MetadataError("the connection was cut")
        await self._delete(*args, **kwargs)  # type: ignore[arg-type]  # passed through

    def _count(self) -> bool:
        self.calls += 1
        self.left -= 1
        return self.left >= 0


class Told:
    """What a client was told before the crash."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.acked: set[bytes] = set()
        self.asked_acks: set[bytes] = set()
        self.subscribed = False


async def life(factory: ManagedLedgerFactory, told: Told, start: int) -> None:
    """A broker's life: opens, subscribes, appends over several ledgers, acknowledges, trims, closes. Ends with any error."""
    ledger = await factory.open(NAME, CONFIG)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    told.subscribed = True
    for first in range(start, start + 20, 5):
        positions: list[Position] = []
        answers: list[MagnetarError | None] = []

        def done(error: MagnetarError | None, lid: int, eid: int, data: bytes) -> None:
            answers.append(error)  # noqa: B023  # called before the loop goes on
            if error is None:
                told.appended.append(data)
                positions.append(Position(lid, eid))  # noqa: B023  # as above

        for data in numbered(5, first):
            ledger.append(data, lambda error, lid, eid, data=data: done(error, lid, eid, data))
        await until(lambda: len(answers) == 5)  # noqa: B023  # as above
        if any(answers):
            raise next(error for error in answers if error is not None)
        told.asked_acks.update(numbered(4, first))
        await acknowledge(cursor, positions[:4])
        told.acked.update(numbered(4, first))
    await ledger.trim()
    await factory.close()


@pytest.mark.parametrize("lost_answer", [False, True])
async def test_crash_at_every_metadata_write(lost_answer: bool) -> None:
    writes = 0
    while True:
        harness = LedgerHarness()
        told = Told()
        plug = Plug(harness.metadata, writes, lost_answer=lost_answer)
        finished = False
        async with harness.broker() as factory:
            try:
                await life(factory, told, 0)
                finished = plug.calls <= writes
            except MagnetarError:
                pass
        plug.pull_out()
        harness.clock.ms += 1
        async with harness.broker() as factory:
            await check(factory, told)
            await life(factory, told, 1000)
        if finished:
            break
        writes += 1
    assert writes > 20


async def check(factory: ManagedLedgerFactory, told: Told) -> None:
    ledger = await factory.open(NAME, CONFIG)
    if not told.subscribed:
        return
    redelivered = await read_all(ledger.cursors["sub"])
    assert redelivered == [data for data in redelivered if data not in told.acked], "acknowledged and delivered again"
    missing = [data for data in told.appended if data not in redelivered]
    assert set(missing) <= told.asked_acks, "stored, never acknowledged, gone"
    assert len(set(redelivered)) == len(redelivered)


async def test_a_half_written_state_of_several_parts_is_passed_over() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, KEEP)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(3000))
        await acknowledge(cursor, positions[:2])
        store = cursor._store
        assert store is not None
        handle = store._handle
        assert handle is not None
        await append_parts(handle, encode_entries(cursor.acks, {"whole": 1}, 300))
        cursor.acks.add_all(positions[3::2])
        parts = encode_entries(cursor.acks, {"torn": 1}, 300)
        assert len(parts) > 3
        await append_parts(handle, parts[:-1])
    async with harness.broker() as factory:
        cursor = (await factory.open(NAME)).cursors["sub"]
        assert cursor.mark_delete_position == positions[1]
        assert cursor.properties == {"whole": 1}
        assert cursor.individual_ranges() == []
        cursor.acks.add_all(positions[3::2])
        await acknowledge(cursor, [])
        assert cursor._store is not None
        await acknowledge(cursor, [positions[2998]])
        assert cursor._store._handle is not None
        await append_parts(cursor._store._handle, encode_entries(cursor.acks, {"all": 7}, 300))
    async with harness.broker() as factory:
        cursor = (await factory.open(NAME)).cursors["sub"]
        assert cursor.properties == {"all": 7}
        assert cursor.backlog_entries == 3000 - 2 - 1499 - 1


async def append_parts(handle: object, entries: list[bytes]) -> None:
    answers: list[object] = []
    for entry in entries:
        handle.append(entry, answers.append)  # type: ignore[attr-defined]  # a ledger writer
    await until(lambda: len(answers) == len(entries))
    assert not any(answers)


async def test_a_znode_version_moved_by_ourselves_does_not_stop_a_cursor() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(5))
        node = await harness.metadata.get(cursor_path(NAME, "sub"))
        assert node is not None
        await harness.metadata.put(cursor_path(NAME, "sub"), node.value)  # a write whose answer was lost
        await acknowledge(cursor, positions[:3])
        await cursor.change_cursor_properties(lambda held: {**held, "k": "v"})
    async with harness.broker() as factory:
        cursor = (await factory.open(NAME)).cursors["sub"]
        assert cursor.mark_delete_position == positions[2]
        assert cursor.cursor_properties == {"k": "v"}


async def test_foreign_fields_of_the_list_survive() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, KEEP)
        await append_all(ledger, numbered(3))
        await ledger.set_properties({"owner": "me"})
        await factory.close()
    path = named_managed_ledger_path(NAME)
    node = await harness.metadata.get(path)
    assert node is not None
    info = ManagedLedgerInfo.FromString(node.value)
    offload = info.ledgerInfo[0].offloadContext
    offload.uidMsb = 7
    value = info.SerializeToString() + b"\xa2\x06\x03abc"  # field 100, unknown here
    await harness.metadata.put(path, value)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, KEEP)
        assert ledger.properties == {"owner": "me"}
        await append_all(ledger, numbered(1))
        await ledger.rollover()
    node = await harness.metadata.get(path)
    assert node is not None
    assert b"\xa2\x06\x03abc" in node.value
    assert offload.SerializeToString() in node.value
