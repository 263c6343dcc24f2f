"""A stage for scripted schedules: a small cluster without random faults, whose requests and answers can be held back one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.cluster import initialize_cluster
from magnetar.bookkeeper.entry_format import Digest, DigestType, master_key, pack_entry
from magnetar.testing.sim.checkers import Checkers
from magnetar.testing.sim.cluster import Cluster
from magnetar.testing.sim.durable import durable_problems
from magnetar.testing.sim.history import History, LedgerHistory
from magnetar.testing.sim.nodes import BookieNode, ClientNode
from magnetar.testing.sim.swarm import Scenario
from magnetar.testing.sim.workload import Workload
from magnetar.testing.sim.world import World, until

T = TypeVar("T")

PATIENCE_S: Final = 30.0
"""Time-out of waiting for a client to connect again."""

Schedule = Callable[["Stage"], Coroutine[Any, Any, None]]
"""One script."""


@dataclass
class Held:
    """Requests or answers that match wait here until `release`; `drop` lets them never arrive."""

    client: str
    what: str
    bookie_id: str | None
    entry_id: int | None
    waiting: list[Callable[[], None]] = field(default_factory=list)
    open: bool = False

    def matches(self, client: str, what: str, bookie_id: str, entry_id: int) -> bool:
        return (
            not self.open
            and client == self.client
            and what == self.what
            and self.bookie_id in (None, bookie_id)
            and self.entry_id in (None, entry_id)
        )

    def release(self) -> None:
        """Let through what waits and what comes."""
        self.open = True
        waiting, self.waiting = self.waiting, []
        for go in waiting:
            go()

    def drop(self) -> None:
        """Drop what is held; later messages get through."""
        self.open = True
        self.waiting.clear()


@dataclass
class Append:
    """One append's fate."""

    entry_id: int = -1
    done: bool = False
    error: MagnetarError | None = None

    @property
    def acked(self) -> bool:
        return self.done and self.error is None


class Stage:
    """`bookies` and the clients `writer`, `recoverer` and `second` (another recoverer)."""

    def __init__(self, world: World, bookies: int = 3, **sizes: Any) -> None:
        self.world = world
        self.history = History()
        self.checkers = Checkers(self.history, world.metadata)
        self.workload = Workload(Scenario("script"), self.checkers, world.rng)
        self.cluster = Cluster(world)
        self.cluster.bookies = [BookieNode(world, f"bookie-{number + 1}", **sizes) for number in range(bookies)]
        self.writer, self.recoverer, self.second = (
            ClientNode(world, name) for name in ("writer", "recoverer", "second")
        )
        self.cluster.clients = [self.writer, self.recoverer, self.second]
        self._held: list[Held] = []
        for client in self.cluster.clients:
            client.tapped = True
            client.gate = partial(self._gate, client.name)

    async def start(self) -> None:
        """Everything runs when this returns."""
        await initialize_cluster(self.world.metadata.eyes, self.world.rng("cluster"))
        for bookie in self.cluster.bookies:
            bookie.start()
        await until(lambda: all(bookie.serving for bookie in self.cluster.bookies))
        for client in self.cluster.clients:
            client.start()
            await self.by(client, client.ready.wait())

    async def by(self, node: ClientNode, work: Coroutine[Any, Any, T]) -> T:
        """Let a client do something; wait for it."""
        assert node.process is not None
        return await self.world.loop.spawn(node.process, work)

    # ---- Holding back

    def hold(self, client: ClientNode, what: str, bookie: BookieNode | None = None, entry: int | None = None) -> Held:
        """Hold from now on what a client sends or is answered: `add sent`, `fence answered`, `recovery-read sent`, ..."""
        held = Held(client.name, what, None if bookie is None else bookie.bookie_id, entry)
        self._held.append(held)
        return held

    def _gate(
        self, client: str, what: str, bookie_id: str, ledger_id: int, entry_id: int, go: Callable[[], None]
    ) -> None:
        for held in self._held:
            if held.matches(client, what, bookie_id, entry_id):
                held.waiting.append(go)
                return
        go()

    # ---- Ledgers

    async def create(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[LedgerWriter, LedgerHistory]:
        """A new ledger of the writer's."""
        writer = await self.by(
            self.writer,
            self.writer.client.create_ledger(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum),
        )
        password = writer.metadata.password or b""  # the ledger's own: late entries of its writer come under it
        ledger = LedgerHistory(writer.ledger_id, size, write_quorum, ack_quorum, "writer", password)
        self.history.ledgers[writer.ledger_id] = ledger
        return writer, ledger

    def members(self, writer: LedgerWriter) -> list[BookieNode]:
        """The bookies of its ensemble, by index."""
        by_id = {bookie.bookie_id: bookie for bookie in self.cluster.bookies}
        return [by_id[bookie_id] for bookie_id in writer.metadata.last_segment.ensemble]

    def spares(self, writer: LedgerWriter) -> list[BookieNode]:
        """Bookies that are not in its ensemble."""
        return [bookie for bookie in self.cluster.bookies if bookie not in self.members(writer)]

    async def append(self, writer: LedgerWriter, ledger: LedgerHistory, payload: bytes | None = None) -> Append:
        """Send one entry; the answer arrives later."""
        result = Append()
        data = payload if payload is not None else b"entry %d" % len(ledger.sent)

        def done(error: MagnetarError | None) -> None:
            result.done, result.error = True, error
            if error is None:
                self.checkers.acked(ledger, result.entry_id, writer.last_add_confirmed)

        async def send() -> None:
            lac = writer.last_add_confirmed
            result.entry_id = writer.append(data, done)
            if result.entry_id >= 0:
                self.checkers.sent(ledger, result.entry_id, data, lac)

        await self.by(self.writer, send())
        return result

    async def append_acked(self, writer: LedgerWriter, ledger: LedgerHistory, count: int = 1) -> None:
        """Append and wait for the acknowledgements."""
        appends = [await self.append(writer, ledger) for _ in range(count)]
        await until(lambda: all(one.done for one in appends))
        assert all(one.acked for one in appends), [one.error for one in appends]

    async def late_add(self, node: ClientNode, bookie: BookieNode, ledger: LedgerHistory, entry_id: int) -> int:
        """The answer of a bookie to an ordinary add of the old writer that arrives only now."""
        answer: asyncio.Future[int] = self.world.loop.create_future()
        packed = pack_entry(ledger.ledger_id, entry_id, entry_id - 1, 4, b"late", Digest(DigestType.CRC32C))

        async def send() -> None:
            channel = node.directory.channel(bookie.bookie_id)
            channel.add_entry(ledger.ledger_id, entry_id, packed, master_key(ledger.password), 0, answer.set_result)

        await self.by(node, send())
        return await answer

    async def recover(self, node: ClientNode, ledger: LedgerHistory) -> LedgerReader:
        """Take the ledger over; what the client is told is checked. Raises what the client raises."""
        reader = await self.by(node, node.client.open_ledger(ledger.ledger_id, recover=True))
        self.checkers.closed(ledger, reader.last_add_confirmed, reader.length)
        return reader

    async def read_all(self, node: ClientNode, ledger: LedgerHistory) -> None:
        """Recover if need be, and read everything there is; the client gets some time to find its bookies again."""
        deadline_s = self.world.loop.now_s + PATIENCE_S
        while True:
            try:
                reader = await self.recover(node, ledger)
                problem = await self.by(node, self.workload.read_range(reader, ledger, 0, reader.last_add_confirmed))
            except MagnetarError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is None:
                return
            assert self.world.loop.now_s < deadline_s, problem
            await asyncio.sleep(1.0)

    def check(self) -> None:
        """No promise was broken so far, and what is acknowledged is durable."""
        for problem in durable_problems(self.cluster, self.history, self.checkers):
            self.history.violate(*problem, self.world.loop.now_s)
        assert not self.history.violations, "\n".join(f"{one.checker}: {one.text}" for one in self.history.violations)
        assert not self.world.loop.crashes, self.world.loop.crashes


def run_schedule(schedule: Schedule, bookies: int = 3, seed: str = "script", **sizes: Any) -> None:
    """Play a script to its end; its assertions and the checkers' raise AssertionError."""
    with World(seed) as world:
        stage = Stage(world, bookies, **sizes)

        async def main() -> None:
            await stage.start()
            await schedule(stage)
            stage.check()

        world.run(main(), 600)
