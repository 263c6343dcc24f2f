"""The one writer of an open ledger: entry ids, LAC and length, and the way of an entry to its bookies and back.

The message path: plain calls only. One small object per entry is the callback, its place in the queue and its state.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.base.errors import BadVersionError, LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.pending_adds import PendingAdd, PendingAdds
from magnetar.bookkeeper.client.range_read import LedgerSource, RangeDone, RangeRead
from magnetar.bookkeeper.client.reader import range_error
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import pack_entry
from magnetar.bookkeeper.errors import LedgerClosedError, LedgerFencedError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

AppendDone = Callable[[LedgerError | None], None]

_FATAL = frozenset({int(ReturnCode.FENCED), int(ReturnCode.UNAUTHORIZED)})
"""Answers after which no bookie's opinion matters: this writer is done."""


class LedgerWriter:
    """Created by `BookKeeperClient.create_ledger`. `ledger_id`; `last_add_pushed`: id of the newest append; `length`: payload bytes
    including those under way; `closed`: no append is accepted any more."""

    __slots__ = (
        "_channels",
        "_digest",
        "_error",
        "_manager",
        "_master_key",
        "_only_channel",
        "_pending",
        "_source",
        "_version",
        "closed",
        "last_add_pushed",
        "ledger_id",
        "length",
    )

    def __init__(self, source: LedgerSource, version: int, manager: LedgerManager) -> None:
        metadata = source.metadata
        self.ledger_id = source.ledger_id
        self.last_add_pushed = -1
        self.length = 0
        self.closed = False
        self._source = source
        self._version = version
        self._manager = manager
        self._digest = source.digest
        self._master_key = source.master_key
        self._error: LedgerError | None = None
        self._pending: PendingAdds[_Add] = PendingAdds(metadata.write_quorum, metadata.ack_quorum)
        self._channels = [source.bookies.channel(bookie_id) for bookie_id in metadata.last_segment.ensemble]
        self._only_channel = self._channels[0] if metadata.ensemble_size == 1 else None

    @property
    def last_add_confirmed(self) -> int:
        """Every entry up to it is on Qa bookies and its `done` has been called."""
        return self._pending.lac

    @property
    def pending_count(self) -> int:
        """Appends whose `done` has not been called yet."""
        return len(self._pending)

    @property
    def metadata(self) -> LedgerMetadata:
        return self._source.metadata

    def append(self, payload: bytes, done: AppendDone) -> int:
        """Send one entry; answers its id. `done(error)` runs in entry order, after the entry is durable on Qa bookies.

        When the writer is closed or has failed, answers -1 after `done(error)`. One failed append fails the writer: all later
        pending ones fail with it, and whoever owns the ledger closes it and goes on in a new one.
        """
        if self.closed:
            done(self._error or LedgerClosedError(f"ledger {self.ledger_id} is closed"))
            return -1
        entry_id = self.last_add_pushed + 1
        self.last_add_pushed = entry_id
        size = len(payload)
        length = self.length = self.length + size
        pending = self._pending
        packed = pack_entry(self.ledger_id, entry_id, pending.lac, length, payload, self._digest)
        add = _Add(entry_id, size, packed, done, self)
        pending.push(add)
        if self._only_channel is not None:
            self._only_channel.add_entry(self.ledger_id, entry_id, packed, self._master_key, 0, add.replied)
        else:
            self._send(add)
        return entry_id

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
        metadata = self._source.metadata
        while metadata.state is not LedgerState.CLOSED:
            closed = metadata.closed(self.last_add_confirmed, self.length)
            try:
                self._version = await self._manager.write(self.ledger_id, closed, self._version)
                metadata = closed
            except BadVersionError:
                # IN_RECOVERY is closed by us all the same: our LAC is what clients were told, and a recovery adopts a closed ledger.
                metadata, self._version = await self._manager.read(self.ledger_id)
        if (metadata.last_entry_id, metadata.length) != (self.last_add_confirmed, self.length):
            raise LedgerFencedError(
                f"ledger {self.ledger_id} was closed at entry {metadata.last_entry_id} by another client, "
                f"this writer is at {self.last_add_confirmed}"
            )
        self._source.metadata = metadata

    def _send(self, add: _Add) -> None:
        write_sets = self._source.write_sets
        for index in write_sets[add.entry_id % len(write_sets)]:
            self._channels[index].add_entry(
                self.ledger_id, add.entry_id, add.packed, self._master_key, 0, _Reply(add, index).replied
            )

    def _on_reply(self, add: _Add, index: int, code: int) -> None:
        if code == 0:
            if self._pending.acknowledge(add, index):
                self._complete()
        elif (code in _FATAL or self._pending.reject(add, index)) and not self.closed:
            self._stop(answer_error(code, self.ledger_id, add.entry_id))

    def _complete(self) -> None:
        pending = self._pending
        while (add := pending.pop_completed()) is not None:
            add.done(None)

    def _stop(self, error: LedgerError) -> None:
        """No append from now on; those pending fail, in order."""
        if self.closed:
            return
        self.closed = True
        self._error = error
        adds = self._pending.drain()
        self.length -= sum(add.size for add in adds)
        self.last_add_pushed = self._pending.lac
        for add in adds:
            add.done(error)


class _Add(PendingAdd):
    """One append. With a single bookie its method is the bookie's callback; otherwise each replica has a `_Reply`."""

    __slots__ = ("done", "packed", "size", "writer")

    def __init__(self, entry_id: int, size: int, packed: bytes, done: AppendDone, writer: LedgerWriter) -> None:
        self.entry_id = entry_id
        self.acks = 0
        self.failures = 0
        self.complete = False
        self.size = size
        self.packed = packed
        self.done = done
        self.writer = writer

    def replied(self, code: int) -> None:
        self.writer._on_reply(self, 0, code)


class _Reply:
    """The answer of the bookie at one index of the ensemble to one add."""

    __slots__ = ("add", "index")

    def __init__(self, add: _Add, index: int) -> None:
        self.add = add
        self.index = index

    def replied(self, code: int) -> None:
        self.add.writer._on_reply(self.add, self.index, code)
