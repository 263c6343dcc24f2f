"""Acknowledgements within transactions, and what happens to a subscription when one ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.position_key import key_of
from magnetar.broker.dispatch.sharing import SharingDispatcher
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.types import AckDone, AckId
from magnetar.broker.transactions.pending_records import ack_of
from magnetar.broker.transactions.pending_state import PendingTransaction
from magnetar.broker.transactions.txn_id import TxnId
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
    sharing = subscription.members.sharing
    if cumulative and sharing is not None:
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
    if sharing is not None:
        for ack in acks:
            sharing.acknowledged(consumer, key_of(*ack.position), pending.left_of(ack))
        subscription.members.pump.wake()


async def end(subscription: Subscription, txn: TxnId, commit: bool, low_water_mark: int) -> None:
    """Durable on return. Raises why it could not be stored."""
    pending = subscription.pending_acks
    if pending is None:
        return
    for aborted in await pending.end(txn, commit, low_water_mark):
        await _deliver_again(subscription, aborted)
    if subscription.members.leftover:
        subscription.members.leftover_changed()
    subscription.tell_if_ended()


async def _deliver_again(subscription: Subscription, aborted: PendingTransaction) -> None:
    members = subscription.members
    sharing = members.sharing
    if sharing is None:
        members.pump.rewind()
        return
    for position in sorted(aborted.individual):
        await _requeue(subscription, sharing, position)
    if aborted.cumulative is not None:  # acknowledged while the subscription was an Exclusive or Failover one
        await _requeue_upto(subscription, sharing, aborted.cumulative.position)
    members.pump.wake()


async def _requeue_upto(subscription: Subscription, sharing: SharingDispatcher, last: Position) -> None:
    ledger, position = subscription.ledger, subscription.cursor.mark_delete_position
    for count in itertools.count(1):
        position = ledger.next_position(position)
        if position > last:
            return
        await _requeue(subscription, sharing, position)
        if count % POSITIONS_PER_TURN == 0:
            await asyncio.sleep(0)


async def _requeue(subscription: Subscription, sharing: SharingDispatcher, position: Position) -> None:
    """What the cursor has not read again by itself is redelivered; of a batch that somebody holds in part, all that is left."""
    cursor = subscription.cursor
    slot = 0
    if isinstance(sharing, KeySharedDispatcher):
        try:
            slot = metadata_of(await subscription.ledger.read_entry(position)).slot
        except EntryNotFoundError:
            return
    if cursor.is_acknowledged(position) or position >= cursor.read_position:
        return
    if subscription.members.sharing is not sharing:
        return  # another type came meanwhile, and with it everything is read again
    key = key_of(*position)
    holder = sharing.holder_of(key)
    if holder is not None:
        sharing.take_from(holder, [key])
    else:
        sharing.counts.increment(key)
        sharing.requeue([(key, slot)])
