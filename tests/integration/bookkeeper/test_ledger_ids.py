"""A metadata store that was set back hands out ids that bookies hold: the old entries never become a new ledger's messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.errors import InvalidArgumentError
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.errors import LedgerIdsSetBackError, LedgerRecoveryError, LedgerUnauthorizedError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read_all

OLD = [b"old-%d" % n for n in range(5)]


class Site:
    """One real bookie, and clients on metadata stores of their own."""

    def __init__(self, bookie: Bookie, scope: TaskScope) -> None:
        self.bookie = bookie
        self._scope = scope
        self._directory = BookieDirectory()
        self._directory.register("one:3181", bookie)

    def client(self, store: MemoryMetadataStore, seed: int, config: ClientConfig | None = None) -> BookKeeperClient:
        rng = random.Random(seed)
        return BookKeeperClient(store, self._directory, SystemClock(), rng, self._scope, config or ClientConfig())


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    config = BookieConfig(data_dir=tmp_path / "one", bookie_id="one:3181")
    async with Bookie(config) as bookie, TaskScope("ledger client") as scope:
        yield Site(bookie, scope)


async def test_an_id_that_a_bookie_holds_cannot_be_written_to(site: Site) -> None:
    before = MemoryMetadataStore()
    old = await site.client(before, 1).create_ledger()
    await append_all(old, OLD)
    new = await site.client(MemoryMetadataStore(), 2).create_ledger()
    assert new.ledger_id == old.ledger_id
    outcomes = Outcomes()
    outcomes.append(new, b"new")
    while not outcomes.calls:
        await asyncio.sleep(0)
    (error,) = outcomes.errors
    assert isinstance(error, LedgerUnauthorizedError)
    assert await read_all(old) == OLD
    await old.close()
    reader = await site.client(before, 3).open_ledger(old.ledger_id, recover=True)
    assert await read_all(reader) == OLD


async def test_an_id_that_a_bookie_holds_is_not_recovered_as_the_old_ledger(site: Site) -> None:
    before, after = MemoryMetadataStore(), MemoryMetadataStore()
    old = await site.client(before, 1).create_ledger()
    await append_all(old, OLD)
    new = await site.client(after, 2).create_ledger()
    assert new.ledger_id == old.ledger_id
    with pytest.raises((LedgerUnauthorizedError, LedgerRecoveryError)):
        await site.client(after, 3).open_ledger(new.ledger_id, recover=True)
    await append_all(old, [b"goes on"])  # nobody has fenced it
    assert await read_all(old) == [*OLD, b"goes on"]
    await old.close()


async def test_the_password_of_a_configuration_is_pulsars(site: Site) -> None:
    """With managedLedgerPassword, brokers of Pulsar compute the same key. Ledgers from before it was set stay readable."""
    store = MemoryMetadataStore()
    earlier = await site.client(store, 1).create_ledger()
    await append_all(earlier, OLD)
    shared = ClientConfig(password=b"shared")
    writer = await site.client(store, 2, shared).create_ledger()
    await append_all(writer, OLD)
    assert (await site.client(store, 3).read_metadata(writer.ledger_id)).password == b"shared"
    for ledger_id in (earlier.ledger_id, writer.ledger_id):
        reader = await site.client(store, 4, shared).open_ledger(ledger_id, recover=True)
        assert await read_all(reader) == OLD
    with pytest.raises(LedgerUnauthorizedError):
        await site.client(store, 5).open_ledger(writer.ledger_id, recover=False)


async def test_a_bookie_notices_a_store_that_is_behind_it(site: Site) -> None:
    before = MemoryMetadataStore()
    for _ in range(4):
        last = await site.client(before, 1).create_ledger()
        await append_all(last, OLD)
    held = site.bookie.known_ledger_ids()
    await LedgerManager(before).check_ids(held)
    behind = LedgerManager(MemoryMetadataStore())
    with pytest.raises(LedgerIdsSetBackError, match=f"raise-ledger-ids {last.ledger_id}"):
        await behind.check_ids(held)
    await behind.raise_ids(last.ledger_id)
    await behind.check_ids(held)
    ledger_id, _ = await behind.create(last.metadata)
    assert ledger_id > last.ledger_id
    with pytest.raises(InvalidArgumentError):
        await behind.raise_ids(2**31)


async def test_an_id_that_a_client_chose_is_no_conflict_while_the_store_knows_it(site: Site) -> None:
    store = MemoryMetadataStore()
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("one:3181",)),), state=LedgerState.OPEN)
    for chosen in (5_000, 2**40):
        await store.put(paths.ledger_path(chosen), metadata.to_bytes())
        await LedgerManager(store).check_ids([chosen])
    await LedgerManager(MemoryMetadataStore()).check_ids([2**40])  # the ten-digit counter does not reach it
