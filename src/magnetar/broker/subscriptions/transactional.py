"""Acknowledgements within transactions, and what happens to a subscription when one ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.position_key import key_of
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.subscriptions.acks import AckDone, AckId
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.transactions.pending_records import ack_of
from magnetar.broker.transactions.pending_state import PendingTransaction
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.errors import EntryNotFoundError
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription

POSITIONS_PER_TURN = 1000
"""Positions delivered again before other connections get their turn."""


def acknowledge(
    subscription: Subscription,
    consumer: Consumer,
    txn: TxnId,
    ids: Sequence[AckId],
    cumulative: bool,
    done: AckDone | None,
) -> None:
    """`done` once it is durable. Raises TransactionConflictError, NotAllowedError; then nothing has changed."""
    pending = subscription.pending_acks
    if pending is None:
        raise NotAllowedError(f"transaction {txn} has not named the subscription {subscription.name}")
    dispatcher = subscription.dispatch.dispatcher
    if cumulative and dispatcher.holds_entries:
        raise NotAllowedError("cumulative acknowledgement is not allowed on a subscription that shares its messages")
    index = subscription.ledger.index
    acks = [
        ack_of(Position(ledger_id, entry_id), ack_set, batch_size)
        for ledger_id, entry_id, ack_set, batch_size in ids
        if 0 <= entry_id < index.entries_in(ledger_id)
    ]
    if not acks:
        if done is not None:
            done(None)
        return
    pending.acknowledge(txn, acks, cumulative, done)
    consumer.messages_acked += len(acks)
    if dispatcher.holds_entries:
        for ack in acks:
            dispatcher.acknowledged(consumer, key_of(*ack.position), pending.left_of(ack))
        subscription.dispatch.pump.wake()


async def end(subscription: Subscription, txn: TxnId, commit: bool, low_water_mark: int) -> None:
    """Durable on return. Raises why it could not be stored."""
    pending = subscription.pending_acks
    if pending is None:
        return
    for aborted in await pending.end(txn, commit, low_water_mark):
        await _deliver_again(subscription, aborted)
    dispatcher = subscription.dispatch.dispatcher
    if dispatcher.leftover:
        dispatcher.leftover_changed()
    subscription.tell_if_ended()


async def _deliver_again(subscription: Subscription, aborted: PendingTransaction) -> None:
    pump, dispatcher = subscription.dispatch.pump, subscription.dispatch.dispatcher
    if not dispatcher.holds_entries:
        pump.rewind()
        return
    for position in sorted(aborted.individual):
        await _requeue(subscription, dispatcher, position)
    if aborted.cumulative is not None:  # acknowledged while the subscription was an Exclusive or Failover one
        await _requeue_upto(subscription, dispatcher, aborted.cumulative.position)
    pump.wake()


async def _requeue_upto(subscription: Subscription, dispatcher: Dispatcher, last: Position) -> None:
    ledger, position = subscription.ledger, subscription.cursor.mark_delete_position
    for count in itertools.count(1):
        position = ledger.next_position(position)
        if position > last:
            return
        await _requeue(subscription, dispatcher, position)
        if count % POSITIONS_PER_TURN == 0:
            await asyncio.sleep(0)


async def _requeue(subscription: Subscription, dispatcher: Dispatcher, position: Position) -> None:
    """Deliver `position` again unless the cursor will read it anyway."""
    cursor = subscription.cursor
    slot = 0
    if dispatcher.keyed:
        try:
            slot = metadata_of(await subscription.ledger.read_entry(position)).slot
        except EntryNotFoundError:
            return
    if cursor.is_acknowledged(position) or position >= cursor.read_position:
        return
    if subscription.dispatch.dispatcher is dispatcher:  # else another type came meanwhile, and everything is read again
        dispatcher.requeue_entry(key_of(*position), slot)
