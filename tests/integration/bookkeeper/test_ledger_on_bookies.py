"""The ledger client on real bookies with real files and fsync, and metadata in SQLite."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.errors import LedgerFencedError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.metadata.sqlite import SqliteMetadataStore
from tests.support.scopes import LoopScope
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read, read_all

PAYLOADS = [b"%08d" % n * 128 for n in range(10_000)]


class Site:
    """Bookies in directories of their own, which can be stopped and started, and one metadata file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = BookieDirectory()
        self._executor = ThreadExecutor("metadata")
        self._running: dict[str, AsyncExitStack] = {}

    async def __aenter__(self) -> Site:
        self.metadata = await SqliteMetadataStore.open(self.path / "metadata.db", self._executor)
        self.client = self.new_client(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._running):
            await self.stop(name)
        await self.metadata.close()
        self._executor.close()

    def new_client(self, seed: int) -> BookKeeperClient:
        return BookKeeperClient(self.metadata, self.directory, SystemClock(), random.Random(seed), LoopScope())

    async def start(self, name: str) -> None:
        stack = AsyncExitStack()
        config = BookieConfig(data_dir=self.path / name, bookie_id=f"{name}:3181")
        bookie = await stack.enter_async_context(Bookie(config))
        self._running[name] = stack
        self.directory.register(f"{name}:3181", bookie)

    async def stop(self, name: str) -> None:
        self.directory.unregister(f"{name}:3181")
        await self._running.pop(name).aclose()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Site(tmp_path) as made:
        await made.start("one")
        yield made


async def pending_tail(writer: LedgerWriter, payloads: list[bytes]) -> Outcomes:
    """Append without waiting for the end; return once the first is stored."""
    outcomes = Outcomes()
    for payload in payloads:
        outcomes.append(writer, payload)
    async with asyncio.timeout(60):
        while not outcomes.calls:
            await asyncio.sleep(0)
    return outcomes


async def test_ten_thousand_entries_written_closed_and_read_back(site: Site) -> None:
    writer = await site.client.create_ledger()
    await append_all(writer, PAYLOADS)
    assert (await read(writer, 100, 9_999, 64 * 1024))[:3] == PAYLOADS[100:103]
    await writer.close()
    reader = await site.client.open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (9_999, 10_000 * 1024)
    assert await read_all(reader) == PAYLOADS


async def test_a_vanished_writers_ledger_is_recovered_whole(site: Site) -> None:
    writer = await site.client.create_ledger()
    await append_all(writer, PAYLOADS[:500])
    outcomes = await pending_tail(writer, PAYLOADS[500:1_000])
    reader = await site.new_client(2).open_ledger(writer.ledger_id, recover=True)
    end = reader.last_add_confirmed + 1
    assert end >= 500 + len(outcomes.stored)
    assert await read_all(reader) == PAYLOADS[:end]
    assert reader.length == end * 1024
    late = Outcomes()
    late.append(writer, b"late")
    async with asyncio.timeout(60):
        while not late.calls:
            await asyncio.sleep(0)
    assert late.stored == []
    assert isinstance(late.errors[0], LedgerFencedError)
    assert len(outcomes.stored) <= end - 500


async def test_a_ledger_outlives_its_bookies_process(site: Site) -> None:
    closed = await site.client.create_ledger()
    await append_all(closed, PAYLOADS[:100])
    await closed.close()
    left_open = await site.client.create_ledger()
    await append_all(left_open, PAYLOADS[:100])
    await site.stop("one")
    await site.start("one")
    again = site.new_client(2)
    assert await read_all(await again.open_ledger(closed.ledger_id, recover=False)) == PAYLOADS[:100]
    assert await read_all(await again.open_ledger(left_open.ledger_id, recover=True)) == PAYLOADS[:100]


async def test_an_empty_ledger_is_recovered_and_stays_fenced(site: Site) -> None:
    writer = await site.client.create_ledger()
    reader = await site.new_client(2).open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (-1, 0)
    with pytest.raises(LedgerFencedError):
        await append_or_raise(writer, b"late")


async def append_or_raise(writer: LedgerWriter, payload: bytes) -> None:
    outcomes = Outcomes()
    outcomes.append(writer, payload)
    async with asyncio.timeout(60):
        while not outcomes.calls:
            await asyncio.sleep(0)
    for error in outcomes.errors:
        raise error


@pytest.mark.parametrize(("write_quorum", "ack_quorum"), [(3, 2), (2, 2)])
async def test_three_bookies_one_of_which_goes(site: Site, write_quorum: int, ack_quorum: int) -> None:
    await site.start("two")
    await site.start("three")
    writer = await site.client.create_ledger(ensemble_size=3, write_quorum=write_quorum, ack_quorum=ack_quorum)
    await append_all(writer, PAYLOADS[:300])
    await site.stop("two")
    reader = await site.new_client(2).open_ledger(writer.ledger_id, recover=False)
    assert await read_all(reader) == PAYLOADS[: reader.last_add_confirmed + 1]
    if write_quorum == 3:
        recovered = await site.new_client(2).open_ledger(writer.ledger_id, recover=True)
        assert await read_all(recovered) == PAYLOADS[:300]
        assert recovered.metadata.state is LedgerState.CLOSED


async def test_many_ledgers_at_once(site: Site) -> None:
    async def one(number: int) -> int:
        writer = await site.client.create_ledger()
        await append_all(writer, PAYLOADS[number : number + 5])
        await writer.close()
        return writer.ledger_id

    ids = await asyncio.gather(*(one(number) for number in range(200)))
    assert sorted(ids) == list(range(200))
    for number, ledger_id in enumerate(ids):
        reader = await site.client.open_ledger(ledger_id, recover=False)
        assert await read_all(reader) == PAYLOADS[number : number + 5]
        await site.client.delete_ledger(ledger_id)
    assert await site.metadata.children("/ledgers") == ["idgen"]
