"""One fencing read of one entry during a recovery, which finds out whether it exists."""

from __future__ import annotations

import asyncio
from functools import partial

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, FLAG_FENCE, FLAG_HIGH_PRIORITY, ReturnCode
from magnetar.bookkeeper.entry_format import UnpackedEntry, unpack_entry
from magnetar.bookkeeper.errors import DigestMismatchError, LedgerRecoveryError
from magnetar.bookkeeper.quorum import EntryVote, Verdict

_READ_FLAGS = FLAG_FENCE | FLAG_HIGH_PRIORITY


class RecoveryRead:
    """Asks the whole write set at once; the first sufficient proof decides. `start` it once, then await `answer`, or `cancel` it."""

    def __init__(self, source: LedgerSource, ensemble: tuple[str, ...], entry_id: int) -> None:
        self._source = source
        self._ensemble = ensemble
        self._entry_id = entry_id
        self._vote = EntryVote(source.metadata.write_quorum, source.metadata.ack_quorum)
        self.answer: asyncio.Future[tuple[bytes, UnpackedEntry] | None] = asyncio.get_running_loop().create_future()
        """The entry, packed as it was found and checked; None when it provably was never confirmed."""

    def start(self) -> None:
        source = self._source
        for index in source.write_sets[self._entry_id % len(source.write_sets)]:
            channel = source.bookies.channel(self._ensemble[index])
            done = partial(self._on_answer, index)
            channel.read_entry(source.ledger_id, self._entry_id, _READ_FLAGS, source.master_key, done)

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        if not self.answer.done():
            self.answer.cancel()
        elif not self.answer.cancelled():
            self.answer.exception()

    def _on_answer(self, index: int, code: int, packed: bytes | None) -> None:
        if self.answer.done():
            return
        source = self._source
        error: LedgerError | None = None
        if code == ReturnCode.OK and packed is not None:
            try:
                entry = unpack_entry(packed, source.digest, source.ledger_id, self._entry_id)
            except DigestMismatchError as mismatch:
                error, verdict = mismatch, self._vote.unknown(index)
                source.bookies.note_damage(source.ledger_id, self._ensemble[index])
            else:
                self._vote.present(index)
                self.answer.set_result((packed, entry))
                return
        elif code in EXPLICIT_NEGATIVES:
            verdict = self._vote.absent(index)
        else:
            error, verdict = answer_error(code, source.ledger_id, self._entry_id), self._vote.unknown(index)
            if code == ReturnCode.IO_ERROR:
                source.bookies.note_damage(source.ledger_id, self._ensemble[index])
        if verdict is Verdict.ABSENT:
            self.answer.set_result(None)
        elif verdict is Verdict.UNDECIDABLE:
            text = f"ledger {source.ledger_id} entry {self._entry_id}: it cannot be decided whether it exists"
            failure = LedgerRecoveryError(
                f"{text} (the last bookie said: {error or 'no'}); open the ledger again later"
            )
            self.answer.set_exception(failure)
