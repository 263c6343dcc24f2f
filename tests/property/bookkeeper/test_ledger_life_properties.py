"""A ledger's whole life under faults: a writer, several racing recoverers, adds that travel, bookies that err, a store that forgets to
answer. After every step: what is stored is a prefix of what was appended;
a closed ledger never changes its end; nothing is confirmed behind it; every confirmed entry is on its ack quorum; all readers agree.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.errors import LedgerError, MetadataError
from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.ledger_metadata import LedgerState
from tests.unit.bookkeeper.fake_bookies import Cluster
from tests.unit.bookkeeper.ledger_helpers import Outcomes, read_all, settle

WRITING = {
    "append": 10,
    "arrive": 22,
    "spoil_adds": 3,
    "heal": 3,
    "slow": 2,
    "close": 0.1,
    "lose_answer": 1,
    "turn": 3,
}
TAKING_OVER = {
    "append": 4,
    "arrive": 10,
    "spoil_adds": 1,
    "spoil_reads": 8,
    "heal": 8,
    "slow": 4,
    "recover": 4,
    "lose_answer": 1,
    "turn": 1,
}
WRITING_STEPS, TAKING_OVER_STEPS = 70, 40
CODES = (ReturnCode.IO_ERROR, ReturnCode.READ_ONLY, ReturnCode.UNKNOWN_LEDGER_STATE, -8)


@dataclass
class Life:
    rng: random.Random
    cluster: Cluster
    writer: LedgerWriter
    quorums: tuple[int, int, int]
    outcomes: Outcomes = field(default_factory=Outcomes)
    payloads: list[bytes] = field(default_factory=list)
    opening: list[asyncio.Task[LedgerReader]] = field(default_factory=list)
    closing: list[asyncio.Task[None]] = field(default_factory=list)
    closed_at: int | None = None

    async def run(self) -> None:
        steps = self.rng.choices(list(WRITING), list(WRITING.values()), k=WRITING_STEPS)
        steps += self.rng.choices(list(TAKING_OVER), list(TAKING_OVER.values()), k=TAKING_OVER_STEPS)
        for name in steps:
            getattr(self, name)()
            await asyncio.sleep(0)
            if name == "turn":
                await settle()
            await self.check()

    def append(self) -> None:
        """An entry, or several together."""
        if not self.writer.closed:
            first = len(self.payloads)
            count = self.rng.choice((1, 1, 2, 4))
            run = [b"%d" % number * self.rng.randint(1, 3) for number in range(first, first + count)]
            self.payloads += run
            self.outcomes.append_run(self.writer, run)

    def arrive(self) -> None:
        busy = [bookie.travelling for bookie in self.cluster.bookies if bookie.travelling]
        if busy:
            travelling = self.rng.choice(busy)
            travelling.pop(self.rng.randrange(min(len(travelling), 3)))()

    def spoil_adds(self) -> None:
        self.rng.choice(self.cluster.bookies).add_code = self.rng.choice(CODES)

    def spoil_reads(self) -> None:
        self.rng.choice(self.cluster.bookies).read_code = self.rng.choice(CODES)

    def heal(self) -> None:
        bookie = self.rng.choice(self.cluster.bookies)
        bookie.add_code = bookie.read_code = None

    def slow(self) -> None:
        self.rng.choice(self.cluster.bookies).delay = self.rng.randrange(4)

    def recover(self) -> None:
        client = self.cluster.new_client(self.rng.randrange(1000))
        self.opening.append(asyncio.ensure_future(client.open_ledger(self.writer.ledger_id, recover=True)))

    def close(self) -> None:
        self.closing.append(asyncio.ensure_future(self.writer.close()))

    def lose_answer(self) -> None:
        self.cluster.metadata.lost_answers = 1

    def turn(self) -> None:
        """Everything that is on its way arrives."""

    async def check(self) -> None:
        stored = self.outcomes.stored
        assert stored == self.payloads[: len(stored)]
        metadata, _ = await self.cluster.client._manager.read(self.writer.ledger_id)
        metadata.validate()
        if metadata.state is LedgerState.CLOSED:
            if self.closed_at is None:
                self.closed_at = metadata.last_entry_id
            assert metadata.last_entry_id == self.closed_at, "closed is final"
            assert len(stored) <= self.closed_at + 1, "nothing is confirmed behind the end, before or after the close"
        ensemble_size, write_quorum, ack_quorum = self.quorums
        for entry_id in range(len(stored)):
            ensemble = metadata.segments[metadata.segment_index(entry_id)].ensemble
            members = [ensemble[(entry_id + i) % ensemble_size] for i in range(write_quorum)]
            held = [self.cluster.bookie(name).entries.get(self.writer.ledger_id, {}) for name in members]
            assert sum(entry_id in entries for entries in held) >= ack_quorum, f"entry {entry_id}"

    async def end(self) -> None:
        self.cluster.metadata.lost_answers = 0
        for bookie in self.cluster.bookies:
            bookie.add_code = bookie.read_code = None
            bookie.delay = 0
            travelling, bookie.travelling = bookie.travelling or [], None
            self.rng.shuffle(travelling)
            for arrive in travelling:
                arrive()
        readers = []
        async with asyncio.timeout(60):
            for result in await asyncio.gather(*self.opening, *self.closing, return_exceptions=True):
                if isinstance(result, LedgerReader):
                    readers.append(result)
                else:
                    assert result is None or isinstance(result, LedgerError | MetadataError), repr(result)
            while self.writer.pending_count:
                await asyncio.sleep(0)
            for seed in (1, 2):
                client = self.cluster.new_client(seed)
                readers.append(await client.open_ledger(self.writer.ledger_id, recover=True))
        await self.check()
        assert len(self.outcomes.calls) == len(self.payloads), "every append is answered, once"
        contents = {(reader.last_add_confirmed, reader.length, tuple(await read_all(reader))) for reader in readers}
        assert len(contents) == 1, "all readers of a closed ledger see the same"
        last, length, payloads = contents.pop()
        assert payloads == tuple(self.payloads[: last + 1])
        assert length == sum(map(len, payloads))


async def live(seed: int, spares: int, quorums: tuple[int, int, int]) -> None:
    ensemble, write, ack = quorums
    cluster = Cluster(ensemble + spares)
    writer = await cluster.client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    for bookie in cluster.bookies:
        bookie.travelling = []
    life = Life(random.Random(seed), cluster, writer, quorums)
    await life.run()
    await life.end()


QUORUMS = st.sampled_from([(3, 3, 2), (3, 2, 2), (3, 2, 2), (5, 3, 2), (1, 1, 1), (2, 2, 1), (4, 3, 3), (3, 2, 1)])


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 4), QUORUMS)
def test_a_ledger_keeps_its_promises_all_its_life(seed: int, spares: int, quorums: tuple[int, int, int]) -> None:
    asyncio.run(live(seed, spares, quorums))
