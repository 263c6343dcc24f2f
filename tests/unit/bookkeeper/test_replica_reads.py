"""Which replica is read when: speculation, order by health, parallel ranges, damage (TestSpeculativeRead, TestParallelRead, told anew)."""

from __future__ import annotations

import asyncio
import random

import pytest

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.health import READ_FAILURE_HISTORY_S, SLOW_S, ReadHealth
from magnetar.bookkeeper.client.range_read import READS_UNDER_WAY_MAX
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import BookieRequestError, DigestMismatchError
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import append_all, read, read_all, settle

PAYLOADS = [b"%03d" % n * 10 for n in range(50)]
QUICK = ClientConfig(speculative_read_timeout_s=0.01, speculative_read_timeout_max_s=0.02)
NEVER = ClientConfig(speculative_read_timeout_s=0)
STRIPED = (3, 2, 2)
WHOLE = (3, 3, 2)


async def filled(cluster: Cluster, quorums: tuple[int, int, int]) -> tuple[LedgerWriter, list[FakeBookie]]:
    ensemble, write, ack = quorums
    writer = await cluster.client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    await append_all(writer, PAYLOADS)
    return writer, [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]


@pytest.mark.parametrize("quorums", [STRIPED, WHOLE])
async def test_a_silent_bookie_delays_a_read_and_does_not_stop_it(quorums: tuple[int, int, int]) -> None:
    cluster = Cluster(3, QUICK)
    writer, bookies = await filled(cluster, quorums)
    bookies[0].hung_reads = True
    assert await read_all(writer) == PAYLOADS
    assert cluster.client.statistics.speculative_reads >= 1


async def test_once_known_to_be_slow_a_bookie_is_asked_last() -> None:
    cluster = Cluster(3, QUICK)
    writer, bookies = await filled(cluster, WHOLE)
    bookies[0].hung_reads = True
    assert await read(writer, 0, 0) == PAYLOADS[:1]
    before = cluster.client.statistics.speculative_reads
    assert before == 1
    assert await read(writer, 0, 9) == PAYLOADS[:10]
    assert cluster.client.statistics.speculative_reads == before


async def test_two_silent_bookies_are_waited_for_one_after_the_other() -> None:
    cluster = Cluster(3, QUICK)
    writer, bookies = await filled(cluster, WHOLE)
    bookies[0].hung_reads = bookies[1].hung_reads = True
    assert await read(writer, 0, 49) == PAYLOADS
    assert cluster.client.statistics.speculative_reads == 2


async def test_the_slow_answer_counts_when_it_is_the_only_good_one() -> None:
    cluster = Cluster(3, QUICK)
    writer, bookies = await filled(cluster, WHOLE)
    bookies[0].held = []
    bookies[1].read_code = bookies[2].read_code = ReturnCode.IO_ERROR
    reading = asyncio.ensure_future(read(writer, 3, 3))
    async with asyncio.timeout(60):
        while cluster.client.statistics.speculative_reads == 0:
            await asyncio.sleep(0.001)
    await settle()
    assert not reading.done(), "two have failed, one may still answer"
    bookies[0].release()
    assert await reading == [PAYLOADS[3]]


async def test_without_speculation_a_silent_bookie_holds_its_readers() -> None:
    cluster = Cluster(3, NEVER)
    writer, bookies = await filled(cluster, WHOLE)
    bookies[0].held = []
    reading = asyncio.ensure_future(read(writer, 0, 0))
    await settle()
    assert not reading.done()
    bookies[0].release()
    assert await reading == PAYLOADS[:1]


async def test_failed_and_read_only_and_absent_bookies_are_asked_later() -> None:
    cluster = Cluster(5)
    order = cluster.directory.read_order
    names = ["b0", "b1", "b2", "b3", "b4"]
    assert order(names) == names
    cluster.directory.note_read_failure("b0")
    cluster.directory.register("b1", cluster.bookies[1], writable=False)
    cluster.directory.note_slow("b2")
    cluster.directory.unregister("b3")
    assert order(names) == ["b4", "b0", "b1", "b2", "b3"]
    assert (cluster.directory.read_only(), cluster.directory.registered()) == (["b1"], ["b0", "b1", "b2", "b4"])


def test_failures_are_forgotten_in_time_and_the_oldest_is_tried_first() -> None:
    health = ReadHealth()
    health.failed("a", 0.0)
    health.failed("b", 10.0)
    health.slow("c", 10.0)

    def order(now_s: float) -> list[str]:
        return health.order(["c", "b", "a", "d"], now_s, lambda _: True, lambda _: True)

    assert order(11.0) == ["d", "a", "b", "c"]
    assert order(10.0 + SLOW_S) == ["c", "d", "a", "b"]
    assert order(READ_FAILURE_HISTORY_S) == ["c", "a", "d", "b"]
    assert order(READ_FAILURE_HISTORY_S + 10.0) == ["c", "b", "a", "d"]
    assert not health.eventful


async def test_a_striped_range_is_read_in_parallel_and_answered_in_order() -> None:
    cluster = Cluster(3, NEVER)
    writer, bookies = await filled(cluster, STRIPED)
    await read(writer, 0, 0)
    for bookie in bookies:
        bookie.held = []
    reading = asyncio.ensure_future(read(writer, 0, 49))
    await settle()
    asked = sum(len(bookie.held or ()) for bookie in bookies)
    assert asked == READS_UNDER_WAY_MAX, "bounded"
    rng = random.Random(5)
    while any(bookie.held for bookie in bookies):
        held = rng.choice([bookie.held for bookie in bookies if bookie.held])
        held.pop(rng.randrange(len(held)))()
        assert sum(len(bookie.held or ()) for bookie in bookies) <= READS_UNDER_WAY_MAX
    assert await reading == PAYLOADS


async def test_a_parallel_range_keeps_to_its_bytes() -> None:
    cluster = Cluster(3)
    writer, bookies = await filled(cluster, STRIPED)
    await read(writer, 0, 0)
    for bookie in bookies:
        bookie.read_flags.clear()
    assert await read(writer, 0, 49, 95) == PAYLOADS[:3]
    assert sum(len(bookie.read_flags) for bookie in bookies) <= 5, "about as many are asked for as are wanted"


async def test_an_error_inside_a_range_serves_what_comes_before_it() -> None:
    cluster = Cluster(3)
    writer, bookies = await filled(cluster, STRIPED)
    for index in (1, 2):
        stored = bookies[index].entries[writer.ledger_id]
        stored[7] = stored[7][:-1] + b"!" if 7 in stored else b""
    assert await read(writer, 0, 49) == PAYLOADS[:7]
    with pytest.raises(DigestMismatchError):
        await read(writer, 7, 9)
    assert cluster.client.statistics.digest_mismatches == 4
    assert await read(writer, 8, 49) == PAYLOADS[8:]


async def test_a_bookie_that_answers_too_much_is_not_believed() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, PAYLOADS)
    bookie = cluster.bookies[0]
    bookie._collect = lambda *_: (0, list(bookie.entries[writer.ledger_id].values()))  # type: ignore[method-assign]
    with pytest.raises(BookieRequestError):
        await read(writer, 0, 5)


async def test_a_striping_bookie_misses_what_the_survey_says() -> None:
    """In each cycle of E entries a bookie stores Qw and misses E - Qw of them, the same ones by position."""
    cluster = Cluster(5)
    writer = await cluster.client.create_ledger(ensemble_size=5, write_quorum=3, ack_quorum=2)
    await append_all(writer, PAYLOADS)
    for index, bookie_id in enumerate(writer.metadata.last_segment.ensemble):
        held = cluster.bookie(bookie_id).entries[writer.ledger_id]
        for cycle in range(0, 50, 5):
            missing = [entry for entry in range(cycle, cycle + 5) if entry not in held]
            assert len(missing) == 5 - 3
            assert sorted((entry - index) % 5 for entry in missing) == [1, 2]
