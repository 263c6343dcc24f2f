"""Asking the last ensemble how far a ledger goes, with or without fencing it (BookKeeper ReadLastConfirmedOp)."""

from __future__ import annotations

import asyncio
from functools import partial

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.range_read import LedgerSource
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, FLAG_FENCE, FLAG_HIGH_PRIORITY, LAST_ENTRY, ReturnCode
from magnetar.bookkeeper.entry_format import unpack_entry
from magnetar.bookkeeper.errors import DigestMismatchError, LedgerRecoveryError
from magnetar.bookkeeper.quorum import Coverage


class LastConfirmedRead:
    """One question to every bookie of the last segment. Earlier segments hold only confirmed entries and need not be asked."""

    def __init__(self, source: LedgerSource, *, fence: bool) -> None:
        metadata = source.metadata
        self._source = source
        self._flags = FLAG_FENCE | FLAG_HIGH_PRIORITY if fence else 0
        self._coverage = Coverage(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        # The last segment may hold nothing yet; what comes before it is confirmed (BookKeeper issue 2615).
        self._lac = metadata.last_segment.first_entry_id - 1
        self._answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """The LAC: at least every entry whose confirmation its writer had told the bookies of.

        Decides as soon as the answers cover every ack quorum: a bookie that never answers holds nothing up. Raises
        LedgerUnauthorizedError, or LedgerRecoveryError when all have answered and too few could say.
        """
        source = self._source
        for index, bookie_id in enumerate(source.metadata.last_segment.ensemble):
            channel = source.bookies.channel(bookie_id)
            channel.read_entry(
                source.ledger_id, LAST_ENTRY, self._flags, source.master_key, partial(self._on_answer, index)
            )
        return await self._answer

    def _on_answer(self, index: int, code: int, packed: bytes | None) -> None:
        if self._answer.done():
            return
        source = self._source
        error: LedgerError | None = None
        if code == ReturnCode.OK and packed is not None:
            try:
                self._lac = max(self._lac, unpack_entry(packed, source.digest, source.ledger_id, None).lac)
            except DigestMismatchError as mismatch:
                error = mismatch
        elif code not in EXPLICIT_NEGATIVES:
            error = answer_error(code, source.ledger_id)
        self._coverage.record(index, known=error is None)
        if code == ReturnCode.UNAUTHORIZED and error is not None:
            self._answer.set_exception(error)
        elif self._coverage.covered:
            self._answer.set_result(self._lac)
        elif self._coverage.exhausted:
            failure = LedgerRecoveryError(
                f"ledger {source.ledger_id}: too few bookies answered; the last said: {error}"
            )
            failure.__cause__ = error
            self._answer.set_exception(failure)
