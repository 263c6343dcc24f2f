"""The workload of clients in a run: they write, take over, read and delete ledgers. Every answer goes into the history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from magnetar.base.errors import InvalidArgumentError, MagnetarError
from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.testing.sim.checkers import Checkers
from magnetar.testing.sim.history import LedgerHistory
from magnetar.testing.sim.nodes import ClientNode
from magnetar.testing.sim.swarm import Scenario
from magnetar.testing.sim.world import when

READ_BYTES = 16 * 1024
READ_TIMEOUT_S = 30


class Workload:
    """The programs of the client nodes. `stopping`: no new ledgers, no new takeovers."""

    def __init__(self, scenario: Scenario, checkers: Checkers, rng: Callable[[str], random.Random]) -> None:
        self._scenario = scenario
        self._checkers = checkers
        self._history = checkers.history
        self._rng = rng
        self.stopping = False

    # ---- Writers

    async def write(self, node: ClientNode) -> None:
        """One ledger after the other."""
        scenario = self._scenario
        assert node.process is not None
        rng = self._rng(f"{node.process.name} workload")
        while not self.stopping and self._may_write(scenario.ledgers_max):
            size, write_quorum, ack_quorum = rng.choice(scenario.quorums)
            password = rng.choice((b"", b"secret"))
            try:
                writer = await node.client.create_ledger(
                    ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum, password=password
                )
            except MagnetarError:
                self._history.count("creations refused")
                await asyncio.sleep(0.2)
                continue
            ledger = LedgerHistory(writer.ledger_id, size, write_quorum, ack_quorum, node.process.name, password)
            self._history.ledgers[writer.ledger_id] = ledger
            await self._fill(writer, ledger, rng)
            await self._finish(node, writer, ledger, rng)

    def _may_write(self, ledgers_max: int) -> bool:
        return len(self._history.ledgers) < ledgers_max and self._history.sent_total < self._scenario.entries_max

    async def _fill(self, writer: LedgerWriter, ledger: LedgerHistory, rng: random.Random) -> None:
        scenario = self._scenario
        for _ in range(rng.randint(0, scenario.ledger_entries_max)):
            await when(lambda: writer.pending_count < scenario.window or writer.closed, 0.001)
            if writer.closed or self.stopping or not self._may_write(scenario.ledgers_max + 1):
                return
            self._append(writer, ledger, rng)
            if scenario.gap_s:
                await asyncio.sleep(rng.expovariate(1 / scenario.gap_s))
            elif rng.random() < 0.2:
                await asyncio.sleep(0)

    def _append(self, writer: LedgerWriter, ledger: LedgerHistory, rng: random.Random) -> None:
        """An entry, or a run of several."""
        number = len(ledger.sent)
        payloads = [
            f"{ledger.ledger_id}/{number + offset}/".encode()
            + rng.randbytes(rng.randint(0, self._scenario.payload_bytes_max))
            for offset in range(rng.choice((1, 1, 1, 2, 5)))
        ]
        checkers = self._checkers
        following = -1
        lac = writer.last_add_confirmed

        def done(error: MagnetarError | None, count: int) -> None:
            nonlocal following
            for entry_id in range(following, following + count) if following >= 0 else ():
                if error is None:
                    checkers.acked(ledger, entry_id, writer.last_add_confirmed)
                else:
                    ledger.failed[entry_id] = type(error).__name__
            following += count

        first = writer.append_run(payloads, done)
        if first >= 0:
            following = first
            for entry_id, payload in enumerate(payloads, first):
                checkers.sent(ledger, entry_id, payload, lac)

    async def _finish(self, node: ClientNode, writer: LedgerWriter, ledger: LedgerHistory, rng: random.Random) -> None:
        """Close it, or walk away and leave it to somebody's recovery."""
        if rng.random() < 0.7:
            await when(lambda: not writer.pending_count or self.stopping)
        ledger.writer_done = True
        if writer.closed or rng.random() < self._scenario.close_probability:
            try:
                await writer.close()
            except MagnetarError as error:
                self._history.count(f"close: {type(error).__name__}")
            else:
                self._history.count("closed")
                self._checkers.closed(ledger, writer.last_add_confirmed, writer.length)
        else:
            self._history.count("abandoned")

    # ---- Takeovers

    async def take_over(self, node: ClientNode) -> None:
        """Recover ledgers of others, some of them under their hands; delete some."""
        scenario = self._scenario
        assert node.process is not None
        rng = self._rng(f"{node.process.name} workload")
        done: set[int] = set()
        while not self.stopping:
            await asyncio.sleep(rng.expovariate(2.0))
            candidates = [
                ledger
                for ledger in self._history.ledgers.values()
                if ledger.ledger_id not in done
                and not ledger.deleted
                and (ledger.writer_done or rng.random() < scenario.takeover_probability)
            ]
            if not candidates:
                continue
            ledger = rng.choice(candidates)
            reader = await self.open(node, ledger, recover=True)
            if reader is None:
                continue
            done.add(ledger.ledger_id)
            await self._read_some(reader, ledger, rng)
            if rng.random() < scenario.delete_probability:
                ledger.deleted = True
                self._history.count("deleted")
                try:
                    await node.client.delete_ledger(ledger.ledger_id)
                except MagnetarError:
                    self._history.count("deletions refused")

    async def open(self, node: ClientNode, ledger: LedgerHistory, recover: bool) -> LedgerReader | None:
        """A reader that the checkers have seen; None when it cannot be had now."""
        floor = ledger.known_lac
        try:
            reader = await node.client.open_ledger(ledger.ledger_id, recover=recover, password=ledger.password)
        except NoSuchLedgerError:
            self._checkers.gone(ledger)
            return None
        except MagnetarError as error:
            self._history.count(f"open: {type(error).__name__}")
            return None
        if reader.metadata.state is LedgerState.CLOSED:
            self._history.count("recovered" if recover else "opened closed")
            self._checkers.closed(ledger, reader.last_add_confirmed, reader.length)
        else:
            self._history.count("opened open")
            self._checkers.open_read(ledger, reader.last_add_confirmed, floor)
        return reader

    # ---- Readers

    async def read(self, node: ClientNode) -> None:
        """Open ledgers without disturbing their writers, and read."""
        assert node.process is not None
        rng = self._rng(f"{node.process.name} workload")
        while not self.stopping:
            await asyncio.sleep(rng.expovariate(4.0))
            candidates = [ledger for ledger in self._history.ledgers.values() if not ledger.deleted]
            if not candidates:
                continue
            ledger = rng.choice(candidates)
            reader = await self.open(node, ledger, recover=False)
            if reader is not None:
                await self._read_some(reader, ledger, rng)

    async def _read_some(self, reader: LedgerReader, ledger: LedgerHistory, rng: random.Random) -> None:
        last = reader.last_add_confirmed
        if last >= 0:
            first = rng.randint(0, last)
            await self.read_range(reader, ledger, first, min(last, first + rng.randint(0, 50)))

    async def read_range(self, reader: LedgerReader, ledger: LedgerHistory, first: int, last: int) -> str | None:
        """Read and check; the error that ended it, if any."""
        while first <= last:
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    error, payloads = await read_once(reader, first, last)
            except TimeoutError:
                return f"a read was not answered within {READ_TIMEOUT_S} s"
            if error is not None:
                assert not isinstance(error, InvalidArgumentError)
                self._history.count(f"read: {type(error).__name__}")
                return f"{type(error).__name__}: {error}"
            self._checkers.read(ledger, first, payloads)
            first += len(payloads)
        return None


async def read_once(reader: LedgerReader, first: int, last: int) -> tuple[MagnetarError | None, list[bytes]]:
    """The result of one `read`."""
    answer: asyncio.Future[tuple[MagnetarError | None, list[bytes]]] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, payloads: list[bytes]) -> None:
        if not answer.done():
            answer.set_result((error, payloads))

    reader.read(first, last, READ_BYTES, done)
    return await answer
