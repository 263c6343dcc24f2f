"""Auto-recovery over real bookies with real files, in the same process and over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.autorecovery.registered import read_registered
from magnetar.bookkeeper.autorecovery.verifier import CopiesReport, verify_entries
from magnetar.bookkeeper.codes import FLAG_RECOVERY_ADD
from magnetar.bookkeeper.entry_format import master_key
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
from magnetar.testing.zookeeper import ZooKeeperProcess
from tests.integration.bookkeeper.bookie_cluster import BookieCluster
from tests.unit.bookkeeper.ledger_helpers import append_all, read_all
from tests.unit.bookkeeper.recovery_site import eventually

PAYLOADS = [b"%06d" % number * 30 for number in range(1_000)]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "server") as process:
        yield process


@pytest.fixture(params=["in process", "tcp", "tcp and zookeeper"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BookieCluster]:
    open_session = None
    if request.param == "tcp and zookeeper":
        address = request.getfixturevalue("zookeeper").address
        root = f"/{tmp_path.name}"

        async def connect() -> MetadataStore:
            return await ZooKeeperMetadataStore.open(address, clock=SystemClock(), root=root)

        open_session = connect
    async with BookieCluster(tmp_path, 5, tcp=request.param != "in process", open_session=open_session) as made:
        yield made


async def report(cluster: BookieCluster, ledger_id: int) -> CopiesReport:
    """Every copy of every entry, read from its bookie."""
    metadata = await cluster.metadata(ledger_id)
    assert metadata.state is LedgerState.CLOSED
    found = CopiesReport()
    available = (await read_registered(cluster.store)).available
    copies = verify_entries(cluster.directory, ledger_id, metadata, metadata.last_entry_id, available, timeout_s=10)
    async for entry_id, health in copies:
        found.add(entry_id, health)
    return found


async def whole(cluster: BookieCluster, ledger_ids: list[int]) -> bool:
    available = (await read_registered(cluster.store)).available
    for ledger_id in ledger_ids:
        metadata = await cluster.metadata(ledger_id)
        if metadata.state is not LedgerState.CLOSED:
            return False
        if any(name not in available for segment in metadata.segments for name in segment.ensemble):
            return False
    return all([(await report(cluster, ledger_id)).sound for ledger_id in ledger_ids])


async def written(cluster: BookieCluster, payloads: list[bytes], **quorums: int) -> int:
    writer = await cluster.client.create_ledger(**({"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2} | quorums))
    await append_all(writer, payloads)
    await writer.close()
    return writer.ledger_id


async def test_copies_are_restored_while_somebody_writes(cluster: BookieCluster) -> None:
    before = [await written(cluster, PAYLOADS[:200]) for _ in range(4)]
    stop = asyncio.Event()
    ledgers: list[int] = []

    async def write() -> None:
        """Ledger after ledger, as a managed ledger does; what fails is closed and left behind."""
        while not stop.is_set():
            writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
            ledgers.append(writer.ledger_id)
            try:
                await append_all(writer, PAYLOADS[:50])
                await writer.close()
            except (AssertionError, LedgerError):
                await (await cluster.client.open_ledger(writer.ledger_id, recover=True)).close()

    async with await cluster.recovery("one"), await cluster.recovery("two"), asyncio.TaskGroup() as group:
        group.create_task(write())

        async def some() -> bool:
            return len(ledgers) > 3

        await eventually(some, "the writer writes")
        await cluster.crash("bookie1:3181")

        async def restored() -> bool:
            return await whole(cluster, before)

        await eventually(restored, "all copies of what was there")
        stop.set()

        async def all_restored() -> bool:
            return await whole(cluster, before + ledgers)

        await eventually(all_restored, "all copies of everything")
    for ledger_id in before:
        assert await read_all(await cluster.client.open_ledger(ledger_id, recover=False)) == PAYLOADS[:200]
    assert await cluster.store.children(paths.UNDERREPLICATION_LOCKS_PATH) == []


async def test_a_restart_within_the_delay_copies_nothing(cluster: BookieCluster) -> None:
    ledger_id = await written(cluster, PAYLOADS[:100], ensemble_size=5, write_quorum=3)
    async with await cluster.recovery("one", lost_bookie_recovery_delay_s=600) as recovery:
        await cluster.crash("bookie1:3181")

        async def noticed() -> bool:
            return recovery.statistics.bookies_missing == 1

        await eventually(noticed, "the auditor notices")
        await cluster.start("bookie1:3181")

        async def back() -> bool:
            return recovery.statistics.bookies_missing == 0

        await eventually(back, "the auditor notices")
        assert recovery.statistics.bytes_copied_total == 0
        assert recovery.statistics.ledgers_marked_total == 0
    assert (await report(cluster, ledger_id)).sound


async def test_a_ledger_whose_writer_is_gone_is_closed_whole(cluster: BookieCluster) -> None:
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await append_all(writer, PAYLOADS[:100])
    async with await cluster.recovery("one") as recovery:
        await cluster.crash(writer.metadata.last_segment.ensemble[0])

        async def restored() -> bool:
            return await whole(cluster, [writer.ledger_id])

        await eventually(restored, "the ledger is closed and whole")
        assert recovery.statistics.ledgers_taken_over_total == 1
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    assert (reader.last_add_confirmed, reader.length) == (99, sum(map(len, PAYLOADS[:100])))
    assert await read_all(reader) == PAYLOADS[:100]


async def test_empty_and_striped_ledgers_name_no_dead_bookie(cluster: BookieCluster) -> None:
    empty = [await written(cluster, [], ensemble_size=3) for _ in range(5)]
    short = [await written(cluster, PAYLOADS[:1], ensemble_size=4, write_quorum=1, ack_quorum=1) for _ in range(5)]
    async with await cluster.recovery("one"):
        await cluster.crash("bookie2:3181")

        async def unnamed() -> bool:
            names = [name for ledger in empty for name in (await cluster.metadata(ledger)).last_segment.ensemble]
            return "bookie2:3181" not in names

        await eventually(unnamed, "no empty ledger names the dead bookie")
    lost = 0
    for ledger_id in short:
        lost += len((await report(cluster, ledger_id)).unreadable)
    assert lost == sum([(await cluster.metadata(it)).segments[0].ensemble[0] == "bookie2:3181" for it in short])


async def test_holes_between_the_ends_are_found_by_asking_what_bookies_hold(cluster: BookieCluster) -> None:
    ledger_id = await written(cluster, PAYLOADS[:60], ensemble_size=3, write_quorum=3)
    # a bookie that took part late: it holds the ends only
    metadata, version = await cluster.manager.read(ledger_id)
    ensemble = metadata.last_segment.ensemble
    late = next(name for name in cluster.running if name not in ensemble)
    packed = [await _packed(cluster, ensemble[0], ledger_id, entry_id) for entry_id in (0, 59)]
    key = master_key(metadata.password or b"")
    for entry_id, entry in zip((0, 59), packed, strict=True):
        done = asyncio.get_running_loop().create_future()
        cluster.directory.channel(late).add_entry(ledger_id, entry_id, entry, key, FLAG_RECOVERY_ADD, done.set_result)
        assert await done == 0
    segment = metadata.last_segment._replace(ensemble=(late, *ensemble[1:]))
    await cluster.manager.write(ledger_id, replace(metadata, segments=(segment,)), version)
    async with await cluster.recovery(
        "one", auditor_enabled=False, auditor_ledger_verification_percentage=0
    ) as recovery:
        assert await recovery.auditor.check_all_ledgers() == 0
        assert await recovery.auditor.check_replicas() == 1

        async def restored() -> bool:
            return (await report(cluster, ledger_id)).sound and not await recovery.marks.marked()

        await eventually(restored, "all copies")
        assert (await cluster.metadata(ledger_id)).last_segment.ensemble == segment.ensemble


async def _packed(cluster: BookieCluster, bookie: str, ledger_id: int, entry_id: int) -> bytes:
    answer = asyncio.get_running_loop().create_future()
    channel = cluster.directory.channel(bookie)
    channel.read_entry(ledger_id, entry_id, 0, b"", lambda code, packed: answer.set_result(packed))
    packed: bytes = await answer
    return packed
