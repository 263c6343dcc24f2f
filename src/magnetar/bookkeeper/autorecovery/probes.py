"""Asking bookies whether they hold entries, and what their answers prove."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, EXPLICIT_NEGATIVES, ReturnCode
from magnetar.bookkeeper.entry_format import Digest, master_key, unpack_entry
from magnetar.bookkeeper.errors import DigestMismatchError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.bookkeeper.availability import EntryAvailability


class Health(Enum):
    """Of one copy. Only what is in `PROVEN` may lead to copying; UNKNOWN proves nothing and is asked again later."""

    GOOD = "good"
    GONE = "gone"
    """The bookie is not registered."""
    ABSENT = "absent"
    """The bookie says that it has no such entry."""
    DAMAGED = "damaged"
    """The bookie's copy does not match its digest, or the bookie says that it cannot read it."""
    UNKNOWN = "unknown"
    """No answer, or one that says nothing about the entry."""


SCANNED_AT_ONCE: Final = 64
SCANNED_BYTES_AT_ONCE: Final = 256 * 1024
"""Asked of a bookie in one request by `scan_copies`, which bounds its memory; a longer entry comes alone."""

PROVEN = frozenset({Health.GONE, Health.ABSENT, Health.DAMAGED})


class LedgerKeys(NamedTuple):
    """What reading and copying entries of a ledger takes."""

    ledger_id: int
    digest: Digest
    master_key: bytes

    @classmethod
    def of(cls, ledger_id: int, metadata: LedgerMetadata, default_password: bytes) -> LedgerKeys:
        password = default_password if metadata.password is None else metadata.password
        return cls(ledger_id, Digest(metadata.digest_type, password), master_key(password))


class Probe(NamedTuple):
    bookie_id: str
    entry_id: int


def judge(keys: LedgerKeys, entry_id: int, code: int, packed: bytes | None) -> Health:
    """What a bookie's answer to a read says about its copy."""
    if code == ReturnCode.OK and packed is not None:
        try:
            unpack_entry(packed, keys.digest, keys.ledger_id, entry_id)
        except DigestMismatchError:
            return Health.DAMAGED
        return Health.GOOD
    if code in EXPLICIT_NEGATIVES:
        return Health.ABSENT
    return Health.DAMAGED if code == ReturnCode.IO_ERROR else Health.UNKNOWN


async def probe(
    bookies: BookieDirectory, keys: LedgerKeys, wanted: Sequence[Probe], timeout_s: float
) -> Mapping[Probe, Health]:
    """Read all of `wanted` at once; what has not answered in time is UNKNOWN."""
    found = dict.fromkeys(wanted, Health.UNKNOWN)
    missing = len(found)
    if not missing:
        return found
    complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(which: Probe, code: int, packed: bytes | None) -> None:
        nonlocal missing
        if complete.done():
            return
        found[which] = judge(keys, which.entry_id, code, packed)
        missing -= 1
        if missing == 0:
            complete.set_result(None)

    for which in list(found):
        channel = bookies.channel(which.bookie_id)
        channel.read_entry(keys.ledger_id, which.entry_id, 0, keys.master_key, partial(answered, which))
    try:
        async with asyncio.timeout(timeout_s):
            await complete
    except TimeoutError:
        complete.cancel()
    return found


class ScannedCopies(NamedTuple):
    """What was wrong with a bookie's copies, in order of entries: `damaged` ones, the first one that is `absent` (the scan of a closed
    fragment ends there), and whether the bookie stopped answering (`silent`), so that the rest is not known."""

    damaged: tuple[int, ...] = ()
    absent: int | None = None
    silent: bool = False


Pace = Callable[[int, int], Awaitable[None]]
"""`await pace(entries, bytes)` after every answer: counts it, and waits as long as is due."""


async def scan_copies(
    bookies: BookieDirectory,
    keys: LedgerKeys,
    bookie_id: str,
    entries: Iterable[int],
    timeout_s: float,
    pace: Pace,
    *,
    closed: bool,
) -> ScannedCopies:
    """Read all of `entries` (ascending) from the bookie, many at a time. `closed`: one that is absent ends the scan.

    Of an open fragment, absent entries say nothing: they may be under way, or were not needed for the ack quorum.
    """
    damaged: list[int] = []
    for first, count in _runs(entries):
        end = first + count
        while first < end:
            code, packed = await _read_some(bookies, bookie_id, keys, first, end - first, timeout_s)
            if code == ReturnCode.OK and packed:
                for entry in packed[: end - first]:
                    if judge(keys, first, code, entry) is not Health.GOOD:
                        damaged.append(first)
                    first += 1
            else:
                health = judge(keys, first, code, None)
                if health is Health.DAMAGED:
                    damaged.append(first)
                elif health is not Health.ABSENT:
                    return ScannedCopies(tuple(damaged), silent=True)
                elif closed:
                    return ScannedCopies(tuple(damaged), absent=first)
                first += 1
            await pace(max(len(packed), 1), sum(map(len, packed)))
    return ScannedCopies(tuple(damaged))


def _runs(entries: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of consecutive ids, `SCANNED_AT_ONCE` at most."""
    first = count = 0
    for entry_id in entries:
        if count and (entry_id != first + count or count == SCANNED_AT_ONCE):
            yield first, count
            count = 0
        if not count:
            first = entry_id
        count += 1
    if count:
        yield first, count


async def _read_some(
    bookies: BookieDirectory, bookie_id: str, keys: LedgerKeys, first: int, count: int, timeout_s: float
) -> tuple[int, list[bytes]]:
    answer: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()

    def answered(code: int, packed: list[bytes]) -> None:
        if not answer.done():
            answer.set_result((code, packed))

    bookies.channel(bookie_id).read_batch(keys.ledger_id, first, count, SCANNED_BYTES_AT_ONCE, answered)
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        return BOOKIE_TIMEOUT, []


async def list_entries(
    bookies: BookieDirectory, bookie_id: str, ledger_id: int, timeout_s: float
) -> EntryAvailability | None:
    """Which entries of the ledger the bookie says it holds; None when it does not say."""
    answer: asyncio.Future[tuple[int, EntryAvailability | None]] = asyncio.get_running_loop().create_future()

    def answered(code: int, entries: EntryAvailability | None) -> None:
        if not answer.done():
            answer.set_result((code, entries))

    bookies.channel(bookie_id).list_entries(ledger_id, answered)
    try:
        async with asyncio.timeout(timeout_s):
            code, entries = await answer
    except TimeoutError:
        return None
    if code in EXPLICIT_NEGATIVES:
        return EntryAvailability(())
    return entries if code == ReturnCode.OK else None
