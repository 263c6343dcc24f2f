"""Writers, readers and recoveries over TCP while real bookies crash: entries stay where the metadata says, and the pause is short."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.writer import LedgerWriter
from tests.integration.bookkeeper.bookie_cluster import BookieCluster
from tests.unit.bookkeeper.ledger_helpers import read_all

PAUSE_MAX_S = 3.0
"""Of one ensemble change, on a machine that is busy with other things; alone it is a few milliseconds."""


async def append(writer: LedgerWriter, payloads: list[bytes]) -> None:
    """Wait until all are confirmed; the first failure is raised."""
    left = len(payloads)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: LedgerError | None) -> None:
        nonlocal left
        left -= 1
        if not ended.done() and (error is not None or left == 0):
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

    for payload in payloads:
        writer.append(payload, done)
    async with asyncio.timeout(60):
        await ended


@pytest.mark.parametrize("quorums", [(3, 2, 2), (5, 3, 2)])
async def test_bookies_crash_one_after_the_other_and_nothing_is_lost(
    tmp_path: Path, quorums: tuple[int, int, int]
) -> None:
    ensemble, write, ack = quorums
    async with BookieCluster(tmp_path, ensemble + 2, tcp=True) as cluster:
        client = cluster.client
        writer = await client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
        payloads: list[bytes] = []
        for victim in (0, 1):
            batch = [b"%06d" % (len(payloads) + n) * 50 for n in range(500)]
            name = writer.metadata.last_segment.ensemble[victim]
            writing = asyncio.ensure_future(append(writer, batch))
            await asyncio.sleep(0)
            await cluster.running.pop(name).crash()
            await writing
            payloads += batch
            assert name not in writer.metadata.last_segment.ensemble
        statistics = client.statistics
        assert statistics.ensemble_changes >= 2
        assert statistics.ensemble_change_s_max < PAUSE_MAX_S
        assert await read_all(writer) == payloads
        taken_over = await cluster.new_client(cluster.store, 9).open_ledger(writer.ledger_id, recover=True)
        assert await read_all(taken_over) == payloads
        metadata = taken_over.metadata
        assert [segment.first_entry_id for segment in metadata.segments] == sorted(
            {segment.first_entry_id for segment in metadata.segments}
        )
        assert metadata.last_entry_id == len(payloads) - 1


async def test_a_tail_over_the_network_follows_a_writer(tmp_path: Path) -> None:
    """Explicit LACs and long polls travel as version 3, beside the adds of version 2."""
    async with BookieCluster(tmp_path, 3, tcp=True) as cluster:
        writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await append(writer, [b"0"])
        reader = await cluster.new_client(cluster.store, 9).open_ledger(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == -1
        waiting = asyncio.ensure_future(reader.wait_last_add_confirmed(30))
        await append(writer, [b"1"])
        assert await waiting == 0
        writer.send_lac()
        assert await reader.wait_last_add_confirmed(30) == 1
        assert await read_all(reader) == [b"0", b"1"]
        await writer.force()
        await writer.close()
        assert await reader.wait_last_add_confirmed(30) == 1
