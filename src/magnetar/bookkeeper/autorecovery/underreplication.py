"""Which ledgers miss copies, who works on which, and whether anybody may (BookKeeper ZkLedgerUnderreplicationManager).

The tree and the bytes are BookKeeper's: text protobufs, but for the times of the checks, which are binary. A marked ledger is the node
`ledgers/hhhh/hhhh/hhhh/hhhh/urL<id>`, the lock of the worker on it the ephemeral `locks/urL<id>`.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Final, NamedTuple

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from magnetar.base.clock import Clock
from magnetar.base.errors import BadVersionError, InvalidArgumentError, MetadataError, NodeNotFoundError
from magnetar.bookkeeper.errors import UnderreplicationFormatError
from magnetar.metadata import paths
from magnetar.metadata.errors import NodeHasChildrenError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Node
from magnetar.wire.bookkeeper.DataFormats_pb2 import (
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
    UnderreplicatedLedgerFormat,
)

LAYOUT_TYPE: Final = "BASIC"
LAYOUT_VERSION: Final = 1


class PeriodicCheck(NamedTuple):
    """A check whose last time is kept in the store, so that it survives a change of auditors."""

    path: str
    message: type[CheckAllLedgersFormat] | type[PlacementPolicyCheckFormat] | type[ReplicasCheckFormat]
    field: str


CHECK_ALL_LEDGERS: Final = PeriodicCheck(
    paths.CHECK_ALL_LEDGERS_TIME_PATH, CheckAllLedgersFormat, "checkAllLedgersCTime"
)
CHECK_PLACEMENT: Final = PeriodicCheck(
    paths.PLACEMENT_POLICY_CHECK_TIME_PATH, PlacementPolicyCheckFormat, "placementPolicyCheckCTime"
)
CHECK_REPLICAS: Final = PeriodicCheck(paths.REPLICAS_CHECK_TIME_PATH, ReplicasCheckFormat, "replicasCheckCTime")


class UnderreplicatedLedger(NamedTuple):
    """A mark: the bookies whose copies are missing (maybe none are named), and when it was set (ms; -1 unknown)."""

    ledger_id: int
    replicas: tuple[str, ...]
    ctime_ms: int


class DamageNote(NamedTuple):
    """Bookies with damaged copies of a ledger. `version`: of the note."""

    ledger_id: int
    bookies: frozenset[str]
    version: int


class LedgerLock(NamedTuple):
    """A marked ledger that is ours to repair. `version`: of the mark; it changes when the ledger is marked again meanwhile."""

    ledger_id: int
    version: int


class UnderreplicationManager:
    """One worker's or auditor's view. `holder`: the bookie id (or host) that its locks name."""

    def __init__(self, store: MetadataStore, clock: Clock, holder: str) -> None:
        self._store = store
        self._clock = clock
        self._lock_data = _text(LockDataFormat(bookieId=holder))
        self._doubtful: set[int] = set()
        """Ledgers whose lock may be ours although nobody here works on them: the store failed meanwhile. The next try finds out."""

    async def prepare(self) -> None:
        """Create what is missing of the tree. Raises UnderreplicationFormatError when another layout is there."""
        layout = LedgerRereplicationLayoutFormat(type=LAYOUT_TYPE, version=LAYOUT_VERSION)
        await self._create(paths.UNDERREPLICATION_LAYOUT_PATH, _text(layout))
        node = await self._store.get(paths.UNDERREPLICATION_LAYOUT_PATH)
        found = LedgerRereplicationLayoutFormat()
        if node is not None:
            _parse_text(node.value, found, paths.UNDERREPLICATION_LAYOUT_PATH)
            if (found.type, found.version) != (LAYOUT_TYPE, LAYOUT_VERSION):
                raise UnderreplicationFormatError(
                    f"{paths.UNDERREPLICATION_LAYOUT_PATH} says {found.type}:{found.version}, only {LAYOUT_TYPE}:{LAYOUT_VERSION} is known"
                )
        await self._create(paths.UNDERREPLICATED_LEDGERS_PATH, b"")
        await self._create(paths.UNDERREPLICATION_LOCKS_PATH, b"")

    # ---- Marks

    async def mark(self, ledger_id: int, replicas: Iterable[str]) -> bool:
        """The ledger misses the copies of these bookies. Adds to a mark that is there; True when anything was written.

        A mark that says all of it already stays as it is: whoever repairs the ledger checks all of it.
        """
        path = paths.underreplicated_ledger_path(ledger_id)
        while True:
            node = await self._store.get(path)
            message = UnderreplicatedLedgerFormat()
            if node is not None:
                _parse_text(node.value, message, path)
            missing = sorted(set(replicas) - set(message.replica))
            if node is not None and not missing:
                return False
            message.replica.extend(missing)
            message.ctime = self._clock.now_ms()
            try:
                await self._store.put(path, _text(message), MUST_NOT_EXIST if node is None else node.version)
                return True
            except BadVersionError:
                continue  # somebody else marked or repaired it meanwhile: look again

    async def get(self, ledger_id: int) -> UnderreplicatedLedger | None:
        """The mark, None when the ledger has none."""
        path = paths.underreplicated_ledger_path(ledger_id)
        node = await self._store.get(path)
        if node is None:
            return None
        message = UnderreplicatedLedgerFormat()
        _parse_text(node.value, message, path)
        return UnderreplicatedLedger(
            ledger_id, tuple(message.replica), message.ctime if message.HasField("ctime") else -1
        )

    async def marked(self) -> list[int]:
        """The ids of all marked ledgers, ascending."""
        return sorted([ledger_id async for ledger_id in self._walk(paths.UNDERREPLICATED_LEDGERS_PATH, None)])

    # ---- Damaged copies

    async def report_damage(self, ledger_id: int, bookie_id: str) -> bool:
        """The bookie's copies of the ledger are damaged, in part at least: note it, and mark the ledger. True when that was news.

        BookKeeper's mark has no word for it, and whoever repairs has to know: a copy in the middle of a ledger is not looked at otherwise.
        """
        path = paths.damaged_copies_path(ledger_id)
        news = False
        while True:
            node = await self._store.get(path)
            names = _bookie_names(node, path)
            if bookie_id in names:
                break
            try:
                value = json.dumps(sorted({*names, bookie_id})).encode()
                await self._store.put(path, value, MUST_NOT_EXIST if node is None else node.version)
            except BadVersionError:
                continue
            news = True
            break
        # After the note: who takes the mark away looks for a note once more.
        return await self.mark(ledger_id, [bookie_id]) or news

    async def damaged(self, ledger_id: int) -> DamageNote | None:
        """Which bookies were reported; None when there is nothing."""
        path = paths.damaged_copies_path(ledger_id)
        node = await self._store.get(path)
        return None if node is None else DamageNote(ledger_id, _bookie_names(node, path), node.version)

    async def damage_repaired(self, note: DamageNote) -> bool:
        """Forget it; False when something was reported since it was read."""
        try:
            await self._store.delete(paths.damaged_copies_path(note.ledger_id), note.version)
        except NodeNotFoundError:
            return True
        except BadVersionError:
            return False
        return True

    # ---- Locks

    async def acquire(self, rng: random.Random, skip: Collection[int] = ()) -> LedgerLock | None:
        """Lock any marked ledger that is neither locked nor in `skip`; None when there is none."""
        locks = set(await self._store.children(paths.UNDERREPLICATION_LOCKS_PATH))
        taken = {paths.underreplicated_ledger_id(name) for name in locks}
        async for ledger_id in self._walk(paths.UNDERREPLICATED_LEDGERS_PATH, rng.shuffle):
            if ledger_id in skip or (ledger_id in taken and ledger_id not in self._doubtful):
                continue
            if (lock := await self.lock(ledger_id)) is not None:
                return lock
        return None

    async def lock(self, ledger_id: int) -> LedgerLock | None:
        """Lock one marked ledger; None when it is not marked, or somebody else's. After a MetadataError: try again to find out."""
        doubtful = ledger_id in self._doubtful
        self._doubtful.discard(ledger_id)
        try:
            return await self._try_lock(ledger_id, doubtful)
        except MetadataError:
            self._doubtful.add(ledger_id)
            raise

    async def _try_lock(self, ledger_id: int, doubtful: bool) -> LedgerLock | None:
        path = paths.underreplication_lock_path(ledger_id)
        try:
            await self._store.put(path, self._lock_data, MUST_NOT_EXIST, ephemeral=True)
        except BadVersionError:
            if not (doubtful and self._ours(await self._store.get(path))):
                return None
        node = await self._store.get(paths.underreplicated_ledger_path(ledger_id))
        if node is None:  # repaired by the one who held the lock before us
            await self._unlock(ledger_id)
            return None
        return LedgerLock(ledger_id, node.version)

    async def holds(self, lock: LedgerLock) -> bool:
        """Whether the lock is still there and names us: it vanishes with the session."""
        return self._ours(await self._store.get(paths.underreplication_lock_path(lock.ledger_id)))

    async def holder(self, ledger_id: int) -> str | None:
        """Who works on the ledger; None when nobody does."""
        path = paths.underreplication_lock_path(ledger_id)
        node = await self._store.get(path)
        if node is None:
            return None
        message = LockDataFormat()
        _parse_text(node.value, message, path)
        return message.bookieId

    async def mark_replicated(self, lock: LedgerLock) -> bool:
        """Delete the mark, unless the ledger was marked again since it was locked, and unlock. True when the mark is gone."""
        path = paths.underreplicated_ledger_path(lock.ledger_id)
        gone = True
        try:
            await self._store.delete(path, lock.version)
            await self._delete_empty_parents(path)
        except NodeNotFoundError:
            pass
        except BadVersionError:
            gone = False
        finally:
            await self._unlock(lock.ledger_id)
        return gone

    async def release(self, lock: LedgerLock) -> None:
        """Unlock; the mark stays."""
        await self._unlock(lock.ledger_id)

    # ---- Switches and settings

    async def enabled(self) -> bool:
        return not await self._store.exists(paths.REPLICATION_DISABLED_PATH)

    async def disable(self) -> bool:
        """Pause all auditors and workers of the cluster; False when they were paused already."""
        return await self._create(paths.REPLICATION_DISABLED_PATH, b"")

    async def enable(self) -> bool:
        """Let them go on; False when they were not paused."""
        try:
            await self._store.delete(paths.REPLICATION_DISABLED_PATH)
        except NodeNotFoundError:
            return False
        return True

    async def lost_bookie_recovery_delay_s(self) -> int | None:
        """How long a single lost bookie may stay away before its ledgers are copied; None when nobody has said."""
        node = await self._store.get(paths.LOST_BOOKIE_RECOVERY_DELAY_PATH)
        if node is None:
            return None
        try:
            return int(node.value)
        except ValueError:
            raise UnderreplicationFormatError(
                f"{paths.LOST_BOOKIE_RECOVERY_DELAY_PATH} holds {node.value!r}, a number of seconds is expected"
            ) from None

    async def initialize_lost_bookie_recovery_delay(self, seconds: int) -> None:
        """Write the delay unless the cluster has one."""
        await self._create(paths.LOST_BOOKIE_RECOVERY_DELAY_PATH, str(seconds).encode())

    async def set_lost_bookie_recovery_delay(self, seconds: int) -> None:
        if seconds < 0:
            raise InvalidArgumentError(f"the delay is {seconds} s; it must be 0 (at once) or more")
        await self._store.put(paths.LOST_BOOKIE_RECOVERY_DELAY_PATH, str(seconds).encode())

    async def check_time_ms(self, check: PeriodicCheck) -> int:
        """When the check last ended, in ms since the epoch; -1: never."""
        node = await self._store.get(check.path)
        if node is None:
            return -1
        message = check.message()
        try:
            message.ParseFromString(node.value)
        except DecodeError as error:
            raise UnderreplicationFormatError(f"{check.path} is damaged: {error}") from error
        return int(getattr(message, check.field)) if message.HasField(check.field) else -1  # type: ignore[arg-type]

    async def set_check_time_ms(self, check: PeriodicCheck, time_ms: int) -> None:
        await self._store.put(check.path, check.message(**{check.field: time_ms}).SerializeToString())

    async def copies_check_progress(self) -> int:
        """The last ledger that the running check of all copies has done; -1 when it begins."""
        node = await self._store.get(paths.COPIES_CHECK_PATH)
        try:
            return -1 if node is None else int(node.value)
        except ValueError:
            return -1

    async def set_copies_check_progress(self, ledger_id: int) -> None:
        """-1: it has ended."""
        await self._store.put(paths.COPIES_CHECK_PATH, b"%d" % ledger_id)

    # ---- Parts

    async def _create(self, path: str, value: bytes) -> bool:
        try:
            await self._store.put(path, value, MUST_NOT_EXIST)
        except BadVersionError:
            return False
        return True

    async def _unlock(self, ledger_id: int) -> None:
        """Delete the lock if it is ours: after a lost session it may be somebody else's."""
        path = paths.underreplication_lock_path(ledger_id)
        try:
            node = await self._store.get(path)
            if node is not None and self._ours(node):
                await self._store.delete(path, node.version)
        except (NodeNotFoundError, BadVersionError):
            return
        except MetadataError:
            self._doubtful.add(ledger_id)
            raise

    def _ours(self, node: Node | None) -> bool:
        return node is not None and node.owner == self._store.session_id and node.value == self._lock_data

    async def _delete_empty_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        while parent != paths.UNDERREPLICATED_LEDGERS_PATH:
            try:
                await self._store.delete(parent)
            except (NodeHasChildrenError, NodeNotFoundError):
                return
            parent = parent.rpartition("/")[0]

    async def _walk(self, path: str, shuffle: Callable[[list[str]], None] | None) -> AsyncIterator[int]:
        names = await self._store.children(path)
        if shuffle is not None:  # or all workers would run for the same ledger
            shuffle(names)
        for name in names:
            ledger_id = paths.underreplicated_ledger_id(name)
            if ledger_id is not None:
                yield ledger_id
            else:
                async for found in self._walk(f"{path}/{name}", shuffle):
                    yield found


def _text(message: Message) -> bytes:
    return text_format.MessageToString(message).encode()


def _bookie_names(node: Node | None, path: str) -> frozenset[str]:
    try:
        return frozenset(map(str, json.loads(node.value))) if node is not None else frozenset()
    except (ValueError, TypeError) as error:
        raise UnderreplicationFormatError(f"{path} is damaged: {error}; delete it") from error


def _parse_text(data: bytes, message: Message, path: str) -> None:
    try:
        text_format.Parse(data, message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UnderreplicationFormatError(f"{path} is damaged: {error}") from error
