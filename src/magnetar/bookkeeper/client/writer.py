"""The one writer of an open ledger: entry ids, LAC and length, and the way of an entry to its bookies and back.

The message path: plain calls only. One small object per run of entries is the callback, its place in the queue and its state. Where
entries take turns among the bookies of the ensemble each bookie gets its share of the run. What happens when a bookie fails is decided in
`ensemble_change` and carried out by a task per change (BookKeeper LedgerHandle).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, cycle
from typing import ClassVar, Final

from magnetar.base.errors import BadVersionError, LedgerError, MetadataError
from magnetar.base.tasks import FATAL
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.context import ClientContext
from magnetar.bookkeeper.client.ensemble_change import FATAL_CODES, Change, EnsembleChanges
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.client.metadata_change import write_change
from magnetar.bookkeeper.client.pending_adds import PendingAdd, PendingAdds
from magnetar.bookkeeper.client.range_read import RangeDone, RangeRead
from magnetar.bookkeeper.client.reader import range_error
from magnetar.bookkeeper.client.writer_timers import WriterTimers
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import pack_run
from magnetar.bookkeeper.errors import LedgerBusyError, LedgerClosedError, LedgerFencedError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.ports import AddWatch, BookieChannel, WatchedRun
from magnetar.bookkeeper.quorum import turns_of

AppendDone = Callable[[LedgerError | None], None]

RunDone = Callable[[LedgerError | None, int], None]
"""`done(error, count)`: the answer to so many entries, the next ones of those appended."""

PENDING_ADDS_MAX: Final = 100_000
"""Entries of one ledger under way: `append` refuses more with LedgerBusyError, and the writer goes on. Callers bound bytes earlier."""

OVERLOAD_RETRIES_MAX: Final = 20
"""Tries of one overloaded bookie that nobody can replace before it fails the writer: about 14 s."""

HEDGED_CHANGES_MAX: Final = 64
"""Ensemble changes of one client that replace silent bookies at the same time: further ledgers wait for their next tick, so that one
bookie's pause does not become a storm of metadata writes."""

_OVERLOAD_PAUSE_FIRST_S = 0.01
_OVERLOAD_PAUSE_MAX_S = 1.0
_READ_ONLY = int(ReturnCode.READ_ONLY)
_TOO_MANY_REQUESTS = int(ReturnCode.TOO_MANY_REQUESTS)


class LedgerWriter:
    """Created by `BookKeeperClient.create_ledger`. `ledger_id`; `last_add_pushed` (LAP): id of the newest append; `length`: payload
    bytes including those under way; `closed`: no append is accepted any more."""

    __slots__ = (
        "_changes",
        "_channels",
        "_context",
        "_digest",
        "_ensemble",
        "_error",
        "_first_bookie",
        "_master_key",
        "_only_channel",
        "_pending",
        "_sets_of_turn",
        "_shares",
        "_source",
        "_timers",
        "_version",
        "closed",
        "last_add_pushed",
        "ledger_id",
        "length",
    )

    def __init__(self, source: LedgerSource, version: int, context: ClientContext) -> None:
        metadata, config = source.metadata, context.config
        self.ledger_id = source.ledger_id
        self.last_add_pushed = -1
        self.length = 0
        self.closed = False
        self._source = source
        self._version = version
        self._context = context
        self._digest = source.digest
        self._master_key = source.master_key
        self._error: LedgerError | None = None
        self._pending: PendingAdds[_Add] = PendingAdds(metadata.write_quorum, metadata.ack_quorum)
        self._ensemble = metadata.last_segment.ensemble
        self._first_bookie = self._ensemble[0]
        self._changes = EnsembleChanges(self._ensemble, config.ensemble_changes_max)
        self._channels = self._channels_of(self._ensemble)
        wanted = WriterTimers.wanted(config, metadata.write_quorum)
        self._timers = WriterTimers(self, context) if wanted else None
        alone = metadata.ensemble_size == 1 and self._timers is None
        bits, self._shares = turns_of(metadata.ensemble_size, metadata.write_quorum)
        """Shares by index, and by the turn of a run's first entry: whether the bookie there gets an entry, for so many in a row."""
        self._sets_of_turn = bits if source.striped else bits[:1]
        """Bit sets of indexes: where an entry goes whose turn it is; one where all go to the same bookies."""
        self._only_channel: BookieChannel | None = self._channels[0] if alone else None
        """Set while there is one bookie and nothing special: the short way."""

    @property
    def last_add_confirmed(self) -> int:
        """LAC: every entry up to it is on Qa bookies and its `done` has been called."""
        return self._pending.lac

    @property
    def pending_count(self) -> int:
        """Entries whose `done` has not been called yet."""
        return self._pending.count

    @property
    def changing_ensemble(self) -> bool:
        """A bookie is being replaced; nothing is confirmed until that is done."""
        return self._pending.changing

    @property
    def metadata(self) -> LedgerMetadata:
        return self._source.metadata

    def append(self, payload: bytes, done: AppendDone) -> int:
        """Send one entry; answers its id. `done(error)` runs in entry order, after the entry is durable on Qa bookies.

        When the writer is closed or has failed, answers -1 after `done(error)`. One failed append fails the writer: all later
        pending ones fail with it, and whoever owns the ledger closes it and goes on in a new one. Only LedgerBusyError (too much
        is under way; answers -1 as well) leaves the writer as it is.
        """
        return self.append_run([payload], lambda error, count: done(error))

    def append_run(self, payloads: list[bytes], done: RunDone) -> int:
        """Send entries as `append` does; answers the id of the first one. `done` may come in pieces."""
        if self.closed:
            done(self._refusal, len(payloads))
            return -1
        first = self.last_add_pushed + 1
        count = len(payloads)
        if first + count - 1 - self._pending.lac > PENDING_ADDS_MAX:
            text = f"ledger {self.ledger_id}: {PENDING_ADDS_MAX} entries are under way; wait for some"
            done(LedgerBusyError(text), count)
            return -1
        ledger_id, pending, before = self.ledger_id, self._pending, self.length
        packed, self.length = pack_run(ledger_id, first, pending.lac, before, payloads, self._digest)
        self.last_add_pushed += count
        size_bytes = self.length - before
        if type(payloads) is WatchedRun:
            add: _Add = _WatchedAdd(first, self._ensemble, size_bytes, packed, done, self).followed(payloads.watch)
        else:
            add = _Add(first, self._ensemble, size_bytes, packed, done, self)
        if self._only_channel is not None:
            pending.push(add)
            self._only_channel.add_run(ledger_id, range(first, first + count), packed, self._master_key, 0, add.replied)
        else:
            self._send(add)
        return first

    @property
    def _refusal(self) -> LedgerError:
        return self._error or LedgerClosedError(f"ledger {self.ledger_id} is closed")

    def read(self, first: int, last: int, max_bytes: int, done: RangeDone) -> None:
        """Payloads of confirmed entries, as `LedgerReader.read`; works on after close."""
        if not 0 <= first <= last <= self._pending.lac:
            done(range_error(self.ledger_id, first, last, self._pending.lac), [])
        else:
            RangeRead(self._source, first, last, max_bytes, done).start()

    async def close(self) -> None:
        """Fail what is pending and close the ledger at the last confirmed entry. Also after a failure, to seal what is there.

        Raises LedgerFencedError when a recovery has closed it elsewhere, NoSuchLedgerError when it was deleted.
        """
        self._stop(LedgerClosedError(f"ledger {self.ledger_id} was closed while the entry was under way"))
        manager = self._context.manager
        metadata = self._source.metadata
        while metadata.state is not LedgerState.CLOSED:
            closed = metadata.closed(self.last_add_confirmed, self.length)
            try:
                self._version = await manager.write(self.ledger_id, closed, self._version)
                metadata = closed
            except BadVersionError:
                # IN_RECOVERY is closed by us all the same: our LAC is what clients were told, and a recovery adopts a closed ledger.
                # An ensemble change of ours may have come in between, too.
                metadata, self._version = await manager.read(self.ledger_id)
        if (metadata.last_entry_id, metadata.length) != (self.last_add_confirmed, self.length):
            raise LedgerFencedError(
                f"ledger {self.ledger_id} was closed at entry {metadata.last_entry_id} by another client, "
                f"this writer is at {self.last_add_confirmed}"
            )
        self._source.metadata = metadata

    async def force(self) -> None:
        """What is confirmed when this is called is durable on all bookies that have it when this returns. Raises LedgerError.

        Ours are so already when they acknowledge; this is for bookies with journalSyncData=false.
        """
        await force_ledger(self._source)

    def fail(self, error: LedgerError) -> None:
        """Give up: what is pending fails with `error`, nothing more is accepted. Close still seals what is confirmed."""
        self._stop(error)

    def send_lac(self) -> None:
        """Tell the bookies of the LAC's write set how far reading may go (explicit LAC). Answers are not waited for."""
        lac = self._pending.lac
        body = self._source.packed_lac(lac)
        write_sets = self._source.write_sets
        for index in write_sets[lac % len(write_sets)]:
            self._channels[index].write_lac(self.ledger_id, body, self._master_key, _ignore)

    def replace_silent(self) -> None:
        """The oldest entry has waited too long: replace the bookies that are silent while another one stored it.

        Nothing happens when none stored it (then a slow disk or network is everybody's, or this process stood still), when an
        ensemble change runs already, or when no other bookie is there. A bookie that answers late is ignored as any replaced one.
        """
        add, statistics = self._pending.oldest, self._context.statistics
        if self.closed or self._changes.running or add is None or not add.acks:
            return
        if statistics.hedged_changes_under_way >= HEDGED_CHANGES_MAX:
            return
        now_s = self._context.clock.monotonic_s()
        heard = add.acks | add.failures
        late = 0
        for write_set in add.write_sets:
            if write_set & add.acks:
                late |= write_set & ~heard
        silent = [index for index in range(len(self._ensemble)) if late >> index & 1]
        for index in silent:
            self._source.bookies.note_late(self._ensemble[index])
            self._changes.failed(index, self._ensemble[index], now_s)
        if silent:
            self._change_ensemble(hedged=True)

    # ---- Sending

    def _write_sets(self, first: int, count: int) -> tuple[int, ...]:
        """The bit sets of those of some entries, each once."""
        bits = self._sets_of_turn
        turns = len(bits)
        if turns == 1:
            return (bits[0],)
        return tuple(bits[entry_id % turns] for entry_id in range(first, first + min(count, turns)))

    def _channels_of(self, ensemble: tuple[str, ...]) -> list[BookieChannel]:
        return [self._source.bookies.channel(bookie_id) for bookie_id in ensemble]

    def _send(self, add: _Add) -> None:
        """The long way: to each bookie of the write set."""
        if self._changes.waiting and not self._changes.running and not self._context.config.delay_ensemble_change:
            self._change_ensemble()
        if self._timers is not None:
            self._timers.sent(add.entry_id + add.count - 1, self._pending.lac)
        self._pending.push(add)
        for index in self._indexes(add):
            self._send_to(add, index)

    def _indexes(self, add: _Add) -> Sequence[int]:
        """Of the bookies that get something of it."""
        if len(add.write_sets) > 1:
            return [index for index in range(len(self._ensemble)) if any(bits >> index & 1 for bits in add.write_sets)]
        write_sets = self._source.write_sets
        return write_sets[add.entry_id % len(write_sets)]

    def _send_to(self, add: _Add, index: int) -> None:
        """What of it is for the bookie at this index."""
        first, entries = add.entry_id, add.packed
        entry_ids: Sequence[int] = range(first, first + add.count)
        if len(add.write_sets) > 1:
            shares = self._shares[index]
            share = shares[first % len(shares)]
            entry_ids = list(compress(entry_ids, cycle(share)))
            entries = list(compress(entries, cycle(share)))
        done = add.reply(add, index, self._ensemble[index]).replied
        self._channels[index].add_run(self.ledger_id, entry_ids, entries, self._master_key, 0, done)

    # ---- Answers

    def _on_reply(self, add: _Add, index: int, bookie_id: str, code: int) -> None:
        if self._ensemble[index] != bookie_id:
            return
        if code == 0:
            if self._pending.acknowledge(add, index):
                self._complete()
        elif not self.closed:
            self._on_failure(add, index, bookie_id, code)

    def _complete(self) -> None:
        pending = self._pending
        while (add := pending.pop_completed()) is not None:
            add.done(None, add.count)

    def _on_failure(self, add: _Add, index: int, bookie_id: str, code: int) -> None:
        """One bookie failed one entry: the writer ends, or the bookie is replaced now, later, or not at all."""
        if code in FATAL_CODES:
            self._stop(answer_error(code, self.ledger_id, add.entry_id))
            return
        now_s = self._context.clock.monotonic_s()
        self._source.bookies.note_failure(bookie_id)
        add.code = code
        out_of_reach = self._pending.reject(add, index)
        changes = self._changes
        # An entry that was confirmed without this bookie waits for nobody: the next one brings the failure up.
        late = add.entry_id <= self._pending.lac
        delay = self._context.config.delay_ensemble_change and code != _READ_ONLY and not out_of_reach
        if late or delay:
            changes.failed_later(index, bookie_id, now_s)
            return
        changes.failed(index, bookie_id, now_s)
        if not changes.running and not self._change_ensemble() and out_of_reach:
            self._without_replacement(add)

    def _without_replacement(self, add: _Add) -> None:
        """The ack quorum of an entry is out of reach and no other bookie is there: only an overloaded one may be asked again."""
        if add.code != _TOO_MANY_REQUESTS or add.retries >= OVERLOAD_RETRIES_MAX:
            self._stop(answer_error(add.code, self.ledger_id, add.entry_id))
            return
        pause = min(_OVERLOAD_PAUSE_FIRST_S * 2**add.retries, _OVERLOAD_PAUSE_MAX_S)
        add.retries += 1
        self._context.statistics.add_retries += 1
        asyncio.get_running_loop().call_later(pause, self._send_again, add)

    def _send_again(self, add: _Add) -> None:
        if self.closed or add.complete:
            return
        for index in range(len(self._ensemble)):
            if add.failures >> index & 1:
                self._send_to(add, index)

    # ---- Ensemble change

    def _change_ensemble(self, *, hedged: bool = False) -> bool:
        """Start to replace the failed bookies; False when none of them can be. `hedged`: they were silent, not failed."""
        change = self._plan()
        if change is None:
            return False
        self._changes.begin()
        self._pending.begin_change()
        # Counted here and not in the task: other ledgers decide before that runs.
        self._context.statistics.hedged_changes_under_way += hedged
        try:
            change_run = self._run_hedged_change(change) if hedged else self._run_change(change)
            self._context.scope.spawn(change_run, f"ensemble change of ledger {self.ledger_id}", FATAL)
        except RuntimeError:
            self._context.statistics.hedged_changes_under_way -= hedged
            self._stop(LedgerClosedError(f"ledger {self.ledger_id}: its client has ended"))
        return True

    def _plan(self) -> Change | None:
        context = self._context

        def choose(ensemble: tuple[str, ...], index: int, excluded: frozenset[str]) -> str | None:
            return context.bookies.choose_replacement(
                ensemble, index, self._source.metadata.write_quorum, excluded, self._changes.past_failures, context.rng
            )

        return self._changes.plan(self._pending.lac, context.clock.monotonic_s(), choose)

    async def _run_hedged_change(self, change: Change) -> None:
        try:
            await self._run_change(change)
            self._context.statistics.hedged_changes += 1
        finally:
            self._context.statistics.hedged_changes_under_way -= 1

    async def _run_change(self, change: Change | None) -> None:
        """Metadata first; failures that come meanwhile are another round; then resend and confirm."""
        context, changes = self._context, self._changes
        started_s = context.clock.monotonic_s()
        replaced = 0
        while change is not None:
            try:
                metadata, version = await write_change(
                    context.manager, self.ledger_id, self._source.metadata, self._version, change
                )
            except asyncio.CancelledError:
                self._stop(LedgerClosedError(f"ledger {self.ledger_id}: its client has ended"))
                raise
            except (LedgerError, MetadataError) as error:
                context.statistics.ensemble_change_failures += 1
                self._stop(_as_ledger_error(self.ledger_id, error))
                return
            if self.closed:
                return
            self._source.metadata, self._version = metadata, version
            replaced += len(change.replacements)
            more = changes.landed(metadata.last_segment.ensemble)
            change = self._plan() if more else None
        context.statistics.changed(context.clock.monotonic_s() - started_s, replaced)
        self._resume()

    def _resume(self) -> None:
        """The metadata says where entries go: first all pending adds are looked at again, then sent, then confirmed."""
        pending = self._pending
        ensemble = self._ensemble = self._changes.ensemble
        self._channels = self._channels_of(ensemble)
        self._only_channel = None
        self._changes.end()
        for add, stale in pending.end_change(ensemble):
            for index in self._indexes(add):
                if stale >> index & 1 and not self.closed:
                    self._send_to(add, index)
        self._complete()
        if not self._changes.running:
            for add in pending.hopeless():
                self._without_replacement(add)

    def _stop(self, error: LedgerError) -> None:
        """No append from now on; those pending fail, in order."""
        if self.closed:
            return
        self.closed = True
        self._error = error
        if self._timers is not None:
            self._timers.stop()
        adds = self._pending.drain()
        self.length -= sum(add.size for add in adds)
        self.last_add_pushed = self._pending.lac
        for add in adds:
            add.done(error, add.count)


class _Add(PendingAdd):
    """One run. With a single bookie its method is the bookie's callback; otherwise each replica has a `_Reply`."""

    reply: ClassVar[type[_Reply]]
    """The kind of its answers from several bookies."""

    __slots__ = ("code", "done", "packed", "retries", "size", "writer")

    def __init__(
        self,
        entry_id: int,
        ensemble: tuple[str, ...],
        size: int,
        packed: list[bytes],
        done: RunDone,
        writer: LedgerWriter,
    ) -> None:
        self.entry_id = entry_id
        self.count = len(packed)
        self.ensemble = ensemble
        self.write_sets = writer._write_sets(entry_id, self.count)
        self.acks = 0
        self.failures = 0
        self.complete = False
        self.code = 0
        self.retries = 0
        self.size = size
        self.packed = packed
        self.done = done
        self.writer = writer

    def replied(self, code: int) -> None:
        """The answer to the short way, which ends with the first ensemble change: whoever answers is the ledger's first bookie."""
        writer = self.writer
        if code == 0 and writer._only_channel is not None:
            if writer._pending.acknowledge(self, 0):
                writer._complete()
        else:
            writer._on_reply(self, 0, writer._first_bookie, code)


class _Reply:
    """The answer of the bookie at one index of the ensemble to one add."""

    __slots__ = ("add", "bookie_id", "index")

    def __init__(self, add: _Add, index: int, bookie_id: str) -> None:
        self.add = add
        self.index = index
        self.bookie_id = bookie_id

    def replied(self, code: int) -> None:
        self.add.writer._on_reply(self.add, self.index, self.bookie_id, code)


_Add.reply = _Reply


class _WatchedAdd(_Add):
    """A run that somebody follows."""

    __slots__ = ("watch",)

    def followed(self, watch: AddWatch) -> _WatchedAdd:
        """Itself, with who follows it."""
        self.watch = watch
        writer = self.writer
        bookies = [self.ensemble[index] for index in writer._indexes(self)]
        watch.sent(writer.ledger_id, self.entry_id, bookies)
        return self

    def replied(self, code: int) -> None:
        self.watch.answered(self.writer._first_bookie, code)
        super().replied(code)


class _WatchedReply(_Reply):
    __slots__ = ()

    add: _WatchedAdd

    def replied(self, code: int) -> None:
        self.add.watch.answered(self.bookie_id, code)
        super().replied(code)


_WatchedAdd.reply = _WatchedReply


def _as_ledger_error(ledger_id: int, error: LedgerError | MetadataError) -> LedgerError:
    if isinstance(error, LedgerError):
        return error
    failure = LedgerError(f"ledger {ledger_id}: its ensemble could not be changed: {error}")
    failure.__cause__ = error
    return failure


def _ignore(code: int) -> None:
    """Explicit LACs are a courtesy to readers."""


async def force_ledger(source: LedgerSource) -> None:
    """Every bookie of the last ensemble has what it acknowledged on disk when this returns: all of them, no quorum is enough.

    Raises the LedgerError of the first that could not say so.
    """
    answers: list[asyncio.Future[None]] = []
    for bookie_id in source.metadata.last_segment.ensemble:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers.append(answer)
        done = partial(_on_answer, source.ledger_id, answer)
        source.bookies.channel(bookie_id).force_ledger(source.ledger_id, done)
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, LedgerError):
            raise outcome


def _on_answer(ledger_id: int, answer: asyncio.Future[None], code: int) -> None:
    if answer.done():
        return
    if code == ReturnCode.OK:
        answer.set_result(None)
    else:
        answer.set_exception(answer_error(code, ledger_id))
