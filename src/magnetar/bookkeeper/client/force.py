"""Making what a ledger's bookies have acknowledged durable (BookKeeper ForceLedgerOp): for bookies that answer before their fsync."""

from __future__ import annotations

import asyncio
from functools import partial

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.codes import ReturnCode


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
