"""A bookie in memory whose answers a test can hold back, spoil or drop. Faults are the point; the real bookie has its own tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from magnetar.base.clock import SystemClock
from magnetar.base.errors import MetadataError
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import DEFAULT_CONFIG, ClientConfig
from magnetar.bookkeeper.codes import FLAG_FENCE, FLAG_RECOVERY_ADD, LAST_ENTRY, ReturnCode
from magnetar.bookkeeper.entry_format import peek_ids
from magnetar.bookkeeper.ports import AddDone, BatchDone, EntriesDone, LacDone, LongPollDone, ReadDone, RunAnswers
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MUST_NOT_EXIST
from magnetar.wire.bookkeeper.availability import EntryAvailability
from tests.support.scopes import LoopScope


class FakeBookie:
    """Answers by `call_soon`, unless told otherwise."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.hung_adds = False
        """Adds are neither stored nor answered."""
        self.hung_reads = False
        self.lost_add_answers = False
        """Adds are stored, the answer never comes."""
        self.add_code: int | None = None
        """Answer of every add, which then stores nothing."""
        self.read_code: int | None = None
        self.read_flags: list[int] = []
        self.add_flags: list[int] = []
        self.delay = 0
        """Turns of the event loop by which answers come later than those of others."""
        self.lost_fence = False
        """Reads of the last entry, with which a recovery begins, get lost on the way."""
        self.travelling: list[Callable[[], None]] | None = None
        """When a list, adds are on the way and arrive when a test calls them."""
        self.held: list[Callable[[], None]] | None = None
        """When a list, answers are collected here instead of being given."""
        self.add_codes: dict[int, int] = {}
        """Answers of single entries' adds, each given once; a code other than OK stores nothing."""
        self.lacs: dict[int, bytes] = {}
        """Explicit LACs."""
        self.forces = 0
        self.waiting: list[Callable[[], None]] = []
        """Long polls, looked at again with every add and explicit LAC."""

    def add_entry(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes, flags: int, done: AddDone
    ) -> None:
        if self.hung_adds:
            return
        if self.travelling is not None and not flags & FLAG_RECOVERY_ADD:
            self.travelling.append(lambda: self._store(ledger_id, entry_id, entry, flags, done))
        else:
            self._store(ledger_id, entry_id, entry, flags, done)

    def add_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: list[bytes],
        master_key: bytes,
        flags: int,
        done: AddDone,
    ) -> None:
        answers = RunAnswers(len(entries), done)
        for entry_id, entry in zip(entry_ids, entries, strict=True):
            self.add_entry(ledger_id, entry_id, entry, master_key, flags, answers)

    def _store(self, ledger_id: int, entry_id: int, entry: bytes, flags: int, done: AddDone) -> None:
        self.add_flags.append(flags)
        code: int = self.add_codes.pop(entry_id, ReturnCode.OK)
        if self.add_code is not None:
            code = self.add_code
        elif code != ReturnCode.OK:
            pass
        elif ledger_id in self.fenced and not flags & FLAG_RECOVERY_ADD:
            code = ReturnCode.FENCED
        else:
            self.entries.setdefault(ledger_id, {})[entry_id] = entry
        if not self.lost_add_answers:
            self._answer(lambda: done(code))
        self._wake()

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes, done: ReadDone) -> None:
        if self.hung_reads or (self.lost_fence and entry_id == LAST_ENTRY):
            return
        self.read_flags.append(flags)
        if self.read_code is not None:
            code = self.read_code
            self._answer(lambda: done(code, None))
            return
        if flags & FLAG_FENCE:
            self.fenced.add(ledger_id)
        held = self.entries.get(ledger_id)
        if not held:
            # A fence creates the ledger, so that it is known but empty.
            negative = ReturnCode.NO_ENTRY if flags & FLAG_FENCE else ReturnCode.NO_LEDGER
            self._answer(lambda: done(negative, None))
            return
        packed = held.get(max(held) if entry_id == LAST_ENTRY else entry_id)
        self._answer(lambda: done(ReturnCode.NO_ENTRY if packed is None else ReturnCode.OK, packed))

    def read_batch(self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, done: BatchDone) -> None:
        if self.hung_reads:
            return
        code, packed = self._collect(ledger_id, first_entry_id, max_count, max_bytes)
        self._answer(lambda: done(code, packed))

    def _collect(self, ledger_id: int, first: int, max_count: int, max_bytes: int) -> tuple[int, list[bytes]]:
        if self.read_code is not None:
            return self.read_code, []
        held = self.entries.get(ledger_id, {})
        packed: list[bytes] = []
        size = 0
        while len(packed) < max_count and (entry := held.get(first + len(packed))) is not None:
            size += len(entry)
            if packed and size > max_bytes:
                break
            packed.append(entry)
        return (ReturnCode.OK, packed) if packed else (ReturnCode.NO_ENTRY, [])

    def list_entries(self, ledger_id: int, done: EntriesDone) -> None:
        if self.hung_reads:
            return
        if self.read_code is not None:
            code = self.read_code
            self._answer(lambda: done(code, None))
            return
        found = EntryAvailability.of(sorted(self.entries.get(ledger_id, {})))
        self._answer(lambda: done(ReturnCode.OK, found))

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        self.lacs[ledger_id] = body
        self._wake()
        self._answer(lambda: done(ReturnCode.OK))

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        if self.hung_reads:
            return
        held = self.entries.get(ledger_id)
        last = held[max(held)] if held else None
        body = self.lacs.get(ledger_id)
        code = self.read_code if self.read_code is not None else ReturnCode.OK
        if code == ReturnCode.OK and body is None and last is None:
            code = ReturnCode.NO_ENTRY
        self._answer(lambda: done(code, body, last) if code == ReturnCode.OK else done(code, None, None))

    def force_ledger(self, ledger_id: int, done: AddDone) -> None:
        self.forces += 1
        code = self.add_code or 0
        self._answer(lambda: done(code))

    def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> Callable[[], None]:
        if self.hung_reads:
            return lambda: None
        ended = False

        def look(last: bool = False) -> None:
            nonlocal ended
            lac = self._lac(ledger_id)
            if not ended and (last or lac > previous_lac or ledger_id in self.fenced):
                ended = True
                self._answer(lambda: done(ReturnCode.OK, lac, None))

        def forget() -> None:
            nonlocal ended
            ended = True

        self.waiting.append(look)
        asyncio.get_running_loop().call_later(timeout_s, look, True)
        look()
        return forget

    def _lac(self, ledger_id: int) -> int:
        lacs = [peek_ids(packed)[2] for packed in self.entries.get(ledger_id, {}).values()]
        if ledger_id in self.lacs:
            lacs.append(int.from_bytes(self.lacs[ledger_id][8:16], "big", signed=True))
        return max(lacs, default=-1)

    def _wake(self) -> None:
        for look in list(self.waiting):
            look()

    def release(self) -> None:
        """Give the answers held back, oldest first, and hold no more."""
        held, self.held = self.held or [], None
        for answer in held:
            answer()

    def _answer(self, answer: Callable[[], None]) -> None:
        if self.held is not None:
            self.held.append(answer)
        else:
            self._answer_after(self.delay, answer)

    def _answer_after(self, turns: int, answer: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._answer_after, turns - 1, answer)
        else:
            loop.call_soon(answer)


class FaultyStore(MemoryMetadataStore):
    """A metadata store whose writes can be held back, fail, or succeed with the answer lost."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: asyncio.Event | None = None
        """When set, writes of ledgers wait for it."""
        self.failures: list[MetadataError] = []
        """Raised by the next writes of ledgers, which then store nothing."""
        self.lost_answers = 0
        """So many of the next writes of ledgers are stored and fail all the same."""
        self.ledger_writes = 0

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, int]:
        if sequential or expected_version == MUST_NOT_EXIST:
            return await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        stored = await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)
        self.ledger_writes += 1
        if self.lost_answers:
            self.lost_answers -= 1
            raise MetadataError("the connection broke")
        return stored


class Cluster:
    """`size` fake bookies called b0, b1, ..., one metadata store and a client."""

    def __init__(self, size: int, config: ClientConfig = DEFAULT_CONFIG) -> None:
        self.metadata = FaultyStore()
        self.clock = SystemClock()
        self.config = config
        self.bookies = [FakeBookie() for _ in range(size)]
        self.directory = BookieDirectory(clock=self.clock)
        for index, bookie in enumerate(self.bookies):
            self.directory.register(f"b{index}", bookie)
        self.client = self.new_client(7)

    def new_client(self, seed: int) -> BookKeeperClient:
        return BookKeeperClient(
            self.metadata, self.directory, self.clock, random.Random(seed), LoopScope(), self.config
        )

    def bookie(self, bookie_id: str) -> FakeBookie:
        return self.bookies[int(bookie_id[1:])]
