"""The publishing side of a topic over a ledger that can be made to fail: receipts, duplicates, producers that come back."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.errors import MagnetarError
from magnetar.broker.errors import PersistenceRefusedError, ProducerBusyError, TopicTerminatedError
from magnetar.broker.topics.deduplication import Deduplicator
from magnetar.broker.topics.producer import AccessMode, Producer
from magnetar.broker.topics.publish import NO_ID, PublishOp
from magnetar.broker.topics.publishers import Publishers
from magnetar.managed_ledger.errors import ManagedLedgerTerminatedError
from magnetar.managed_ledger.ports import RunDone
from tests.support.raw_client import message
from tests.unit.broker.producer_fakes import NotingChannel, producer


class HandLedger:
    """Answers when told to."""

    def __init__(self) -> None:
        self.waiting: list[RunDone] = []
        self.entries = 0

    def append(self, run: list[bytes], done: RunDone) -> None:
        self.waiting.append(done)

    def answer(self, count: int = 1, error: MagnetarError | None = None) -> None:
        for _ in range(count):
            done = self.waiting.pop(0)
            done(error, NO_ID if error else 0, NO_ID if error else self.entries, 1)
            self.entries += error is None


@pytest.fixture
def ledger() -> HandLedger:
    return HandLedger()


@pytest.fixture
def publishers(ledger: HandLedger) -> Publishers:
    return Publishers(topic_name="t", append=ledger.append, clock=SystemClock())


def send(sender: Producer, sequence_id: int, *, highest: int = 0) -> None:
    op = PublishOp.single(sender, sequence_id, highest, 1, 10)
    data = message(b"x", producer_name=sender.name, sequence_id=max(sequence_id, highest))
    sender.publish(op, [data], False)


def send_chunk(sender: Producer, sequence_id: int, chunk_id: int, count: int) -> None:
    chunk = {"chunk_id": chunk_id, "num_chunks_from_msg": count, "uuid": "u"}
    data = message(b"x", producer_name=sender.name, sequence_id=sequence_id, **chunk)
    sender.publish(PublishOp.single(sender, sequence_id, 0, 1, 10), [data], True)


async def register(publishers: Publishers, name: str = "p", **options: object) -> tuple[Producer, NotingChannel]:
    channel = NotingChannel()
    options.setdefault("channel", channel)
    made = producer(name, topic=publishers, **options)  # type: ignore[arg-type]  # passed through
    await publishers.register(made)
    return made, made.channel  # type: ignore[return-value]  # a NotingChannel in these tests


async def test_receipts_wait_for_their_turn(publishers: Publishers, ledger: HandLedger) -> None:
    """A duplicate is known at once, but its receipt must not overtake those before it."""
    publishers.dedup = Deduplicator(10)
    sender, channel = await register(publishers)
    send(sender, 1)
    ledger.answer()
    send(sender, 2)
    send(sender, 1)
    assert channel.receipts == [(1, 0, 0)]
    ledger.answer()
    assert channel.receipts == [(1, 0, 0), (2, 0, 1), (1, NO_ID, NO_ID)]


async def test_the_retry_of_a_failed_write_is_stored(publishers: Publishers, ledger: HandLedger) -> None:
    """Pulsar#5218: the watermark rose before the write was safe, and the retry was dropped as a duplicate."""
    publishers.dedup = Deduplicator(10)
    sender, channel = await register(publishers)
    send(sender, 1)
    send(sender, 2)
    ledger.answer(2, MagnetarError("disk full"))
    assert [sequence_id for sequence_id, _ in channel.refused] == [1, 2]
    assert all(isinstance(error, PersistenceRefusedError) for _, error in channel.refused)
    for sequence_id in (1, 2):
        send(sender, sequence_id)
    ledger.answer(2)
    assert channel.receipts == [(1, 0, 0), (2, 0, 1)]


async def test_a_repetition_shares_the_fate_of_its_original(publishers: Publishers, ledger: HandLedger) -> None:
    """Sent again while the original is under way: a receipt only if that one is stored."""
    publishers.dedup = Deduplicator(10)
    sender, channel = await register(publishers)
    send(sender, 1)
    send(sender, 1)
    ledger.answer(1, MagnetarError("disk full"))
    assert channel.receipts == []
    assert [sequence_id for sequence_id, _ in channel.refused] == [1, 1]


async def test_only_the_last_chunk_moves_the_watermark(publishers: Publishers, ledger: HandLedger) -> None:
    publishers.dedup = Deduplicator(10)
    sender, channel = await register(publishers)
    for chunk_id in range(3):
        send_chunk(sender, 7, chunk_id, 3)
        assert publishers.last_sequence_id("p") == -1
    ledger.answer(3)
    assert publishers.last_sequence_id("p") == 7
    for chunk_id in range(3):
        send_chunk(sender, 7, chunk_id, 3)
    assert not ledger.waiting
    assert [receipt[1] for receipt in channel.receipts] == [0, 0, 0, NO_ID, NO_ID, NO_ID]


async def test_a_failure_is_announced_once_for_a_burst(publishers: Publishers, ledger: HandLedger) -> None:
    announced: list[int] = []
    publishers.append_failed = lambda: announced.append(1)
    sender, _ = await register(publishers)
    for sequence_id in range(5):
        send(sender, sequence_id)
    ledger.answer(5, MagnetarError("disk full"))
    await asyncio.sleep(0)
    assert announced == [1]


async def test_a_terminated_topic_says_so(publishers: Publishers, ledger: HandLedger) -> None:
    sender, channel = await register(publishers)
    send(sender, 0)
    ledger.answer(1, ManagedLedgerTerminatedError("terminated"))
    assert isinstance(channel.refused[0][1], TopicTerminatedError)


async def test_a_returning_producer_waits_for_what_its_former_connection_left(
    publishers: Publishers, ledger: HandLedger
) -> None:
    """Else its repetition could overtake the original, and both would be stored out of order."""
    former, _ = await register(publishers)
    send(former, 0)
    publishers.remove(former)
    again = producer("p", topic=publishers)
    registration = asyncio.ensure_future(publishers.register(again))
    await asyncio.sleep(0)
    assert not registration.done()
    ledger.answer()
    assert await registration
    assert publishers.producers.namesake(again) is again


async def test_a_living_namesake_keeps_its_name_and_a_dead_one_loses_it(publishers: Publishers) -> None:
    former, channel = await register(publishers)
    with pytest.raises(ProducerBusyError):
        await register(publishers, channel=NotingChannel())
    assert channel.probes == 1
    channel.alive = False
    await register(publishers, channel=NotingChannel())
    assert former.closed


async def test_the_same_client_with_a_newer_epoch_replaces_itself(publishers: Publishers) -> None:
    """Only for names that the broker gave: two clients may choose the same name."""
    await register(publishers, generated=True, epoch=1)
    newer, _ = await register(publishers, generated=True, epoch=2, channel=NotingChannel())
    assert publishers.producers.namesake(newer) is newer
    with pytest.raises(ProducerBusyError):
        await register(publishers, generated=True, epoch=1, channel=NotingChannel())


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [("a", "a", True), ("a", None, True), (None, None, True), ("a", "b", False), (None, "a", False)],
)
async def test_a_newer_epoch_serves_the_same_role_only(
    publishers: Publishers, before: str | None, after: str | None, taken: bool
) -> None:
    """None: a superuser, or nobody was asked."""
    former, _ = await register(publishers, generated=True, epoch=1, owner=before)
    if taken:
        newer, _ = await register(publishers, generated=True, epoch=2, owner=after, channel=NotingChannel())
        assert publishers.producers.namesake(former) is newer
    else:
        with pytest.raises(ProducerBusyError):
            await register(publishers, generated=True, epoch=2, owner=after, channel=NotingChannel())
        assert publishers.producers.namesake(former) is former


async def test_the_epoch_is_stored_before_the_producer_learns_of_it(publishers: Publishers) -> None:
    stored: list[int] = []

    async def store(epoch: int) -> None:
        stored.append(epoch)

    publishers.store_epoch = store
    first, _ = await register(publishers, "a", mode=AccessMode.EXCLUSIVE)
    assert (stored, first.topic_epoch) == ([1], 1)
    second, _ = await register(publishers, "b", mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    assert (stored, second.topic_epoch) == ([1, 2], 2)
    await register(publishers, "c", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    assert stored == [1, 2]
