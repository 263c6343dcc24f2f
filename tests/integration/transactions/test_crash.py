"""kill -9 at every step: a transaction is complete or without any trace, and nobody sees half of one."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.support.raw_client import ConnectionEnded, message, split
from tests.support.raw_transactions import RawTransactions, TransactionRefused, Txn

TOPICS = [f"persistent://public/default/crash-{number}" for number in range(3)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data").start()
    yield process
    process.close()


def restart(server: ServerProcess) -> RawTransactions:
    server.kill()
    server.start()
    return RawTransactions(server.port)


def producers(raw: RawTransactions) -> None:
    for number, name in enumerate(TOPICS):
        assert raw.producer(name, number).type == BaseCommand.PRODUCER_SUCCESS


def received(raw: RawTransactions, topic: str, subscription: str, count: int) -> list[bytes]:
    """`count` messages, behind which there is nothing."""
    raw.subscribe(topic, subscription, CommandSubscribe.Exclusive, consumer_id=99)
    found = [raw.payload() for _ in range(count)]
    assert raw.no_message()
    raw.close_consumer(99)
    return found


def begin(raw: RawTransactions, ttl_ms: int = 60_000) -> Txn:
    txn = raw.begin(ttl_ms)
    raw.add_partitions(txn, *TOPICS)
    return txn


def test_a_committed_one_is_complete_and_an_aborted_one_stays_away(server: ServerProcess) -> None:
    raw = RawTransactions(server.port)
    producers(raw)
    committed, aborted = begin(raw), begin(raw)
    for number in range(3):
        raw.publish_in(committed, b"yes", producer_id=number)
        raw.publish_in(aborted, b"no", producer_id=number, sequence_id=1)
    raw.commit(committed)
    raw.abort(aborted)
    raw = restart(server)
    for name in TOPICS:
        assert received(raw, name, "s", 1) == [b"yes"]
    producers(raw)
    following = begin(raw)
    assert following[1] > max(committed[1], aborted[1]), "a number was given out twice"


def test_an_open_one_goes_on_and_then_times_out(server: ServerProcess) -> None:
    raw = RawTransactions(server.port)
    producers(raw)
    going_on, timing_out = begin(raw), begin(raw, ttl_ms=5000)
    raw.publish_in(going_on, b"one", producer_id=0)
    raw.publish_in(timing_out, b"lost", producer_id=1)
    raw = restart(server)
    producers(raw)
    raw.publish_in(going_on, b"two", producer_id=0, sequence_id=1)
    raw.subscribe(TOPICS[0], "s", CommandSubscribe.Exclusive)
    assert raw.no_message()
    raw.commit(going_on)
    assert [raw.payload(), raw.payload()] == [b"one", b"two"]
    raw.publish(message(b"behind"), producer_id=1)
    raw.subscribe(TOPICS[1], "s", CommandSubscribe.Exclusive, consumer_id=2)
    assert raw.payload() == b"behind"
    with pytest.raises(TransactionRefused) as refused:
        raw.commit(timing_out)
    assert refused.value.code == ServerError.TransactionNotFound


def test_pending_acknowledgements_survive(server: ServerProcess) -> None:
    raw = RawTransactions(server.port)
    producers(raw)
    for number in range(4):
        raw.publish(message(b"%d" % number, sequence_id=number), producer_id=0, sequence_id=number)
        raw.receipt()
    raw.subscribe(TOPICS[0], "s", CommandSubscribe.Shared)
    ids = [raw.message()[0].message.message_id for _ in range(4)]
    to_commit, to_abort = raw.begin(), raw.begin()
    for txn, acked in ((to_commit, ids[0]), (to_abort, ids[1])):
        raw.add_subscription(txn, TOPICS[0], "s")
        raw.ack_in(txn, acked)
    raw = restart(server)
    raw.subscribe(TOPICS[0], "s", CommandSubscribe.Shared)
    assert sorted([raw.payload(), raw.payload()]) == [b"2", b"3"]
    assert raw.no_message(), "what open transactions have acknowledged is not delivered, after a restart either"
    raw.commit(to_commit)
    raw.abort(to_abort)
    assert raw.payload() == b"1"
    raw = restart(server)
    raw.subscribe(TOPICS[0], "s", CommandSubscribe.Shared)
    assert sorted(raw.payload() for _ in range(3)) == [b"1", b"2", b"3"]
    assert raw.no_message()


TRANSFER_TTL_MS = 3000


class Transfers:
    """Money moves from account 0 to accounts 1 and 2: one transaction takes 2 from the source's subscription and pays 1 to each.

    The source topic holds the orders; what was paid where must always be whole transfers."""

    def __init__(self, port: int) -> None:
        self.raw = RawTransactions(port)
        self.ended: dict[bytes, bool] = {}
        self._sequence = 0

    def open(self) -> None:
        producers(self.raw)
        self.raw.subscribe(TOPICS[0], "bank", CommandSubscribe.Shared, consumer_id=1)

    def one(self, commit: bool) -> None:
        """A transfer that has taken longer than its transaction may is none: its order comes to whoever is next."""
        begun_s = time.monotonic()
        try:
            self._transfer(commit)
        except TransactionRefused:
            if time.monotonic() - begun_s < TRANSFER_TTL_MS / 1000:
                raise

    def _transfer(self, commit: bool) -> None:
        command, data = self.raw.message()
        order = split(data)[1]
        txn = self.raw.begin(ttl_ms=TRANSFER_TTL_MS)
        self.raw.add_subscription(txn, TOPICS[0], "bank")
        self.raw.add_partitions(txn, TOPICS[1], TOPICS[2])
        for account in (1, 2):
            self._sequence += 1
            self.raw.publish_in(txn, order, producer_id=account, sequence_id=self._sequence)
        self.raw.ack_in(txn, command.message.message_id)
        (self.raw.commit if commit else self.raw.abort)(txn)
        self.ended[order] = commit


@pytest.mark.parametrize("crashes", [4, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_transfers_are_whole_whenever_the_server_dies(server: ServerProcess, crashes: int) -> None:
    """Crashes at random moments of a stream of transfers, of which every fourth is aborted and then done again."""
    rng = random.Random(crashes)
    orders = 40 * crashes
    raw = RawTransactions(server.port)
    producers(raw)
    for number in range(orders):
        raw.publish(message(b"%d" % number, sequence_id=number), producer_id=0, sequence_id=number)
        raw.receipt()
    told: dict[bytes, bool] = {}
    for _ in range(crashes):
        bank = Transfers(server.port)
        timer = threading.Timer(rng.uniform(0.05, 0.6), server.kill)
        count = 0
        bank.open()
        timer.start()
        try:
            while True:
                count += 1
                bank.one(commit=count % 4 != 0)
        except (ConnectionEnded, TimeoutError, OSError):
            timer.join()
        told.update({order: True for order, committed in bank.ended.items() if committed})
        server.start()
    assert told, "no transfer came through at all"
    raw = RawTransactions(server.port)
    producers(raw)
    paid = [_up_to_end(raw, account) for account in (1, 2)]
    assert paid[0] == paid[1], "half a transfer was seen"
    assert len(set(paid[0])) == len(paid[0]), "a transfer was done twice"
    assert set(told) <= set(paid[0]), "a transfer that was told as done is not there"
    raw.subscribe(TOPICS[0], "bank", CommandSubscribe.Shared, consumer_id=50)
    left = {raw.payload() for _ in range(orders - len(paid[0]))}
    assert left == {b"%d" % number for number in range(orders)} - set(paid[0]), "paid and taken do not fit"
    assert raw.no_message()


def _up_to_end(raw: RawTransactions, account: int) -> list[bytes]:
    """What was paid: all that comes before a last message, which waits for the end of every transaction before it."""
    raw.publish(message(b"end", sequence_id=10**6), producer_id=account, sequence_id=10**6)
    raw.subscribe(TOPICS[account], "check", CommandSubscribe.Exclusive, consumer_id=account)
    found: list[bytes] = []
    while (payload := raw.payload()) != b"end":
        found.append(payload)
    return found
