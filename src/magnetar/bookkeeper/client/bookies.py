"""Bookie id -> channel: which bookies this process can reach, and which of them take new ledgers."""

from __future__ import annotations

import random
from typing import Final

from magnetar.base.errors import InvalidArgumentError, LedgerError
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, BOOKIE_UNAVAILABLE
from magnetar.bookkeeper.errors import BookieUnavailableError, NotEnoughBookiesError, error_for
from magnetar.bookkeeper.ports import AddDone, BatchDone, BookieChannel, LacDone, ReadDone


class BookieDirectory:
    """In-process bookies register themselves; channels to remote ones are registered by whoever watches the cluster."""

    def __init__(self) -> None:
        self._channels: dict[str, BookieChannel] = {}
        self._writable: dict[str, None] = {}

    def register(self, bookie_id: str, channel: BookieChannel, *, writable: bool = True) -> None:
        """Add the bookie, or replace its channel or its state."""
        if not bookie_id:
            raise InvalidArgumentError("a bookie id must not be empty; use host:port")
        self._channels[bookie_id] = channel
        if writable:
            self._writable[bookie_id] = None
        else:
            self._writable.pop(bookie_id, None)

    def unregister(self, bookie_id: str) -> None:
        """Forget the bookie; requests to it fail from now on."""
        self._channels.pop(bookie_id, None)
        self._writable.pop(bookie_id, None)

    def channel(self, bookie_id: str) -> BookieChannel:
        """The bookie's channel, or one on which every request fails with BOOKIE_UNAVAILABLE."""
        return self._channels.get(bookie_id, _UNREACHABLE)

    def writable(self) -> list[str]:
        """Ids of the bookies that take new ledgers, sorted."""
        return sorted(self._writable)

    def choose_ensemble(self, size: int, rng: random.Random) -> tuple[str, ...]:
        """`size` distinct writable bookies at random. Raises NotEnoughBookiesError."""
        candidates = self.writable()
        if len(candidates) < size:
            raise NotEnoughBookiesError(f"the ensemble needs {size} writable bookies and there are {len(candidates)}")
        return tuple(rng.sample(candidates, size))


def answer_error(code: int, ledger_id: int, entry_id: int | None = None) -> LedgerError:
    """The error of a failed answer, from a bookie or from the lack of one."""
    if code == BOOKIE_UNAVAILABLE:
        return BookieUnavailableError(f"ledger {ledger_id}: a bookie of its ensemble cannot be reached")
    if code == BOOKIE_TIMEOUT:
        return BookieUnavailableError(f"ledger {ledger_id}: a bookie of its ensemble did not answer in time")
    return error_for(code, ledger_id, entry_id)


class _Unreachable:
    """Stands in for a bookie that is not registered."""

    def add_entry(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes, flags: int, done: AddDone
    ) -> None:
        done(BOOKIE_UNAVAILABLE)

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes, done: ReadDone) -> None:
        done(BOOKIE_UNAVAILABLE, None)

    def read_batch(self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, done: BatchDone) -> None:
        done(BOOKIE_UNAVAILABLE, [])

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        done(BOOKIE_UNAVAILABLE)

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        done(BOOKIE_UNAVAILABLE, None, None)


_UNREACHABLE: Final = _Unreachable()
