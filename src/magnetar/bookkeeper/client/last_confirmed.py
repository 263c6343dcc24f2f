"""Asking the last ensemble how far a ledger goes, with or without fencing it (BookKeeper ReadLastConfirmedOp, TryReadLastConfirmedOp)."""

from __future__ import annotations

import asyncio
from functools import partial

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, FLAG_FENCE, FLAG_HIGH_PRIORITY, LAST_ENTRY, ReturnCode
from magnetar.bookkeeper.entry_format import unpack_entry, unpack_lac
from magnetar.bookkeeper.errors import DigestMismatchError, LedgerRecoveryError
from magnetar.bookkeeper.quorum import Coverage


class LastConfirmedRead:
    """One question to every bookie of the last segment. Earlier segments hold only confirmed entries and need not be asked.

    `known`: any LAC above it will do, and it will do itself when nobody knows of a higher one.
    """

    def __init__(self, source: LedgerSource, *, fence: bool, known: int | None = None) -> None:
        metadata = source.metadata
        self._source = source
        self._fence = fence
        self._known = known
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
            if self._fence:
                flags = FLAG_FENCE | FLAG_HIGH_PRIORITY
                done = partial(self._on_entry, index)
                channel.read_entry(source.ledger_id, LAST_ENTRY, flags, source.master_key, done)
            else:
                channel.read_lac(source.ledger_id, partial(self._on_lac, index))
        return await self._answer

    def _on_entry(self, index: int, code: int, packed: bytes | None) -> None:
        self._on_lac(index, code, None, packed)

    def _on_lac(self, index: int, code: int, body: bytes | None, packed: bytes | None) -> None:
        """An explicit LAC and the bookie's last entry, which carries one as well: whatever is higher."""
        if self._answer.done():
            return
        source = self._source
        error: LedgerError | None = None
        if code == ReturnCode.OK:
            try:
                if body is not None:
                    self._lac = max(self._lac, unpack_lac(body, source.digest, source.ledger_id))
                if packed is not None:
                    self._lac = max(self._lac, unpack_entry(packed, source.digest, source.ledger_id, None).lac)
            except DigestMismatchError as mismatch:
                source.statistics.digest_mismatches += 1
                error = mismatch
        elif code not in EXPLICIT_NEGATIVES:
            error = answer_error(code, source.ledger_id)
        self._coverage.record(index, known=error is None)
        self._decide(code, error)

    def _decide(self, code: int, error: LedgerError | None) -> None:
        if code == ReturnCode.UNAUTHORIZED and error is not None:
            self._answer.set_exception(error)
        elif self._known is not None:
            if self._lac > self._known or self._coverage.exhausted:
                self._answer.set_result(max(self._lac, self._known))
        elif self._coverage.covered:
            self._answer.set_result(self._lac)
        elif self._coverage.exhausted:
            failure = LedgerRecoveryError(
                f"ledger {self._source.ledger_id}: too few bookies answered; the last said: {error}"
            )
            failure.__cause__ = error
            self._answer.set_exception(failure)
