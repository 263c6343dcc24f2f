"""Bookie id -> channel: which bookies this process can reach, where they are, and which of them take new ledgers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from magnetar.base.clock import Clock, SystemClock
from magnetar.base.errors import InvalidArgumentError, LedgerError
from magnetar.bookkeeper.client.health import ReadHealth
from magnetar.bookkeeper.client.placement import DEFAULT_RACK, Candidate, PlacementPolicy
from magnetar.bookkeeper.client.quarantine import Quarantine, QuarantineConfig
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, BOOKIE_UNAVAILABLE
from magnetar.bookkeeper.errors import BookieUnavailableError, error_for
from magnetar.bookkeeper.ports import AddDone, BatchDone, BookieChannel, EntriesDone, LacDone, LongPollDone, ReadDone

AVOIDED_S: Final = 10.0
"""For so long after a failed request a bookie is taken for new ensembles only in need: its registration may outlive it."""


DamageHook = Callable[[int, str], None]
"""`on_damage(ledger id, bookie id)`."""


class BookieDirectory:
    """In-process bookies register themselves; channels to remote ones are registered by whoever watches the cluster.

    `by_free_space`: bookies with more room get more ledgers (diskWeightBasedPlacementEnabled).
    """

    def __init__(
        self,
        policy: PlacementPolicy | None = None,
        quarantine: QuarantineConfig | None = None,
        clock: Clock | None = None,
        *,
        by_free_space: bool = False,
    ) -> None:
        self.policy = policy or PlacementPolicy()
        self.quarantine = Quarantine(quarantine or QuarantineConfig())
        self.health = ReadHealth()
        self._clock = clock or SystemClock()
        self._by_free_space = by_free_space
        self._channels: dict[str, BookieChannel] = {}
        self._writable: dict[str, None] = {}
        self._locations: dict[str, str] = {}
        self._free_bytes: dict[str, int] = {}
        self._failed_s: dict[str, float] = {}
        self.on_damage: DamageHook = lambda ledger_id, bookie_id: None
        """Told by readers, maybe often of the same: must not raise and must not block."""

    def register(self, bookie_id: str, channel: BookieChannel, *, writable: bool = True) -> None:
        """Add the bookie, or replace its channel or its state. Not writable: it is read-only.

        One that becomes writable starts with a clean record: it has registered anew.
        """
        if not bookie_id:
            raise InvalidArgumentError("a bookie id must not be empty; use host:port")
        if writable and bookie_id not in self._writable:
            self.quarantine.forget(bookie_id)
            self._failed_s.pop(bookie_id, None)
            self.health.forget(bookie_id)
        self._channels[bookie_id] = channel
        if writable:
            self._writable[bookie_id] = None
        else:
            self._writable.pop(bookie_id, None)

    def unregister(self, bookie_id: str) -> None:
        """Forget the bookie; requests to it fail from now on."""
        self._channels.pop(bookie_id, None)
        self._writable.pop(bookie_id, None)
        self._free_bytes.pop(bookie_id, None)
        self._failed_s.pop(bookie_id, None)
        self.health.forget(bookie_id)

    def set_locations(self, locations: Mapping[str, str]) -> None:
        """Replace what is known about places: bookie id -> `/rack` or `/region/rack`."""
        self._locations = dict(locations)

    def set_free_bytes(self, bookie_id: str, free_bytes: int) -> None:
        """Room on the bookie's disks, for placement by free space."""
        self._free_bytes[bookie_id] = free_bytes

    def location(self, bookie_id: str) -> str:
        return self._locations.get(bookie_id, DEFAULT_RACK)

    def channel(self, bookie_id: str) -> BookieChannel:
        """The bookie's channel, or one on which every request fails with BOOKIE_UNAVAILABLE."""
        return self._channels.get(bookie_id, _UNREACHABLE)

    def registered(self) -> list[str]:
        """Ids of all bookies that can be reached, sorted."""
        return sorted(self._channels)

    def writable(self) -> list[str]:
        """Ids of the bookies that take new ledgers, sorted."""
        return sorted(self._writable)

    def read_only(self) -> list[str]:
        """Ids of the bookies that can be read only, sorted."""
        return sorted(self._channels.keys() - self._writable.keys())

    def quarantined(self) -> list[str]:
        """Ids of the bookies that failed too often lately, sorted."""
        now_s = self._clock.monotonic_s()
        return [bookie_id for bookie_id in self.registered() if self.quarantine.holds(bookie_id, now_s)]

    def note_failure(self, bookie_id: str) -> None:
        """A request to the bookie failed in a way that says something about the bookie."""
        now_s = self._failed_s[bookie_id] = self._clock.monotonic_s()
        self.quarantine.failed(bookie_id, now_s)

    def note_late(self, bookie_id: str) -> None:
        """The bookie was silent while another one stored the same entry: new ensembles and reads prefer others for a while.

        Nothing has failed, so it does not count towards quarantine: a pause that many ledgers see is one pause.
        """
        now_s = self._failed_s[bookie_id] = self._clock.monotonic_s()
        self.health.slow(bookie_id, now_s)

    def note_read_failure(self, bookie_id: str) -> None:
        """As `note_failure`, of a read: others are asked before it for a while."""
        now_s = self._clock.monotonic_s()
        self.health.failed(bookie_id, now_s)
        self.quarantine.failed(bookie_id, now_s)

    def note_damage(self, ledger_id: int, bookie_id: str) -> None:
        """A read failure of the worst kind: the bookie gave a damaged copy, or said that it cannot read its own. Tells `on_damage`."""
        self.note_read_failure(bookie_id)
        self.on_damage(ledger_id, bookie_id)

    def note_slow(self, bookie_id: str) -> None:
        """The bookie kept a reader waiting."""
        self.health.slow(bookie_id, self._clock.monotonic_s())

    def read_order(self, bookies: list[str]) -> list[str]:
        """The bookies in the order in which to read from them; as they come while all of them are well."""
        writable = self._writable
        if not self.health.eventful and all(bookie_id in writable for bookie_id in bookies):
            return bookies
        return self.health.order(bookies, self._clock.monotonic_s(), self._channels.__contains__, writable.__contains__)

    def candidates(self, rng: random.Random) -> list[Candidate]:
        """The writable bookies in random order, weighted by free space if so configured."""
        now_s = self._clock.monotonic_s()
        found = [
            Candidate(
                bookie_id,
                self.location(bookie_id),
                self.quarantine.holds(bookie_id, now_s) or self._failed_lately(bookie_id, now_s),
                self._free_bytes.get(bookie_id, 0),
            )
            for bookie_id in self.writable()
        ]
        if self._by_free_space:
            # Each place is drawn with a chance in proportion to the room (Efraimidis and Spirakis).
            return sorted(found, key=lambda bookie: -math.log(1.0 - rng.random()) / max(bookie.free_bytes, 1))
        rng.shuffle(found)
        return found

    def choose_ensemble(
        self, size: int, write_quorum: int, rng: random.Random, *, at_least: int | None = None
    ) -> tuple[str, ...]:
        """`size` distinct writable bookies, or as few as `at_least` while no more of them work. Raises NotEnoughBookiesError."""
        candidates = self.candidates(rng)
        if at_least is not None:
            working = sum(not candidate.quarantined for candidate in candidates)
            size = max(at_least, min(size, working))
        return self.policy.ensemble(size, write_quorum, candidates)

    def adheres(self, ensemble: Sequence[str], write_quorum: int) -> bool:
        """Whether these bookies, where they stand now, are as the policy wants an ensemble."""
        return self.policy.adheres([self.location(bookie_id) for bookie_id in ensemble], write_quorum)

    def _failed_lately(self, bookie_id: str, now_s: float) -> bool:
        failed_s = self._failed_s.get(bookie_id)
        return failed_s is not None and now_s < failed_s + AVOIDED_S

    def choose_replacement(
        self,
        ensemble: tuple[str, ...],
        index: int,
        write_quorum: int,
        excluded: frozenset[str],
        avoided: frozenset[str],
        rng: random.Random,
    ) -> str | None:
        """A writable bookie for the place of a failed one; None when there is none. `avoided` ones are the last choice."""
        return self.policy.replacement(
            ensemble, index, write_quorum, self.candidates(rng), self._locations, excluded=excluded, avoided=avoided
        )


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

    def add_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: list[bytes],
        master_key: bytes,
        flags: int,
        done: AddDone,
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

    def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> Callable[[], None]:
        done(BOOKIE_UNAVAILABLE, -1, None)
        return lambda: None

    def force_ledger(self, ledger_id: int, done: AddDone) -> None:
        done(BOOKIE_UNAVAILABLE)

    def list_entries(self, ledger_id: int, done: EntriesDone) -> None:
        done(BOOKIE_UNAVAILABLE, None)


_UNREACHABLE: Final = _Unreachable()
