"""FLOW, ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES: plain calls into the subscription.

Consecutive acknowledgements of one consumer that arrived together are handed over as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import RUN_ENTRIES_MAX
from magnetar.broker.connection.error_codes import code_of, text_of
from magnetar.broker.connection.handlers.consumer import signed
from magnetar.broker.connection.handlers.transactions import acting_role
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import ServiceNotReadyError, TransactionNotFoundError
from magnetar.broker.subscriptions import transactional
from magnetar.broker.subscriptions.acks import AckId, AckType
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.transactions.types import TxnId
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.frequent import take_acks
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandAck

_INDIVIDUAL, _CUMULATIVE = AckType.INDIVIDUAL, AckType.CUMULATIVE


def flow(session: Session, command: BaseCommand, rest: bytes) -> None:
    """FLOW for a consumer that is gone was on its way when it went."""
    request = command.flow
    consumer = session.consumers.get(request.consumer_id)
    if consumer is not None and consumer.subscription is not None:
        consumer.subscription.flow(consumer, request.messagePermits)


def ack_run(session: Session, frames: deque[Frame], entries_max: int) -> int:
    """Acknowledge what the plain ACKs of one consumer say with which `frames` begins; answers how many frames were taken off.

    Plain: whole entries, one by one, without answer, transaction or properties. 0: the first frame is not.
    """
    found = take_acks(frames, entries_max, RUN_ENTRIES_MAX)
    if found is None:
        return 0
    consumer_id, ids, taken = found
    consumer = session.consumers.get(consumer_id)
    if consumer is not None and consumer.subscription is not None:
        consumer.subscription.acknowledge(consumer, _INDIVIDUAL, ids)
    return taken


def ack(session: Session, command: BaseCommand, rest: bytes) -> None:
    """One ACK of any kind."""
    request = command.ack
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None or consumer.subscription is None:
        return
    ids = [
        (message_id.ledgerId, signed(message_id.entryId), message_id.ack_set or None, message_id.batch_size)
        for message_id in request.message_id
    ]
    if request.HasField("validation_error"):
        session.spawn(consumer.subscription.entries_discarded(consumer, ids), "entries discarded")
    if request.txnid_least_bits:
        _ack_in_transaction(session, consumer, request, ids)
        return
    consumer.subscription.acknowledge(
        consumer,
        _CUMULATIVE if request.ack_type == CommandAck.Cumulative else _INDIVIDUAL,
        ids,
        AckReceipt(session, request.consumer_id, request.request_id) if request.HasField("request_id") else None,
        {pair.key: pair.value for pair in request.properties} if request.properties else None,
    )


def _ack_in_transaction(session: Session, consumer: Consumer, request: CommandAck, ids: Sequence[AckId]) -> None:
    """Refused unless somebody will end the transaction: it is open, and has named the subscription."""
    txn = TxnId(request.txnid_most_bits, request.txnid_least_bits)
    done = None
    if request.HasField("request_id"):
        done = AckReceipt(session, request.consumer_id, request.request_id, txn)
    subscription, topic = consumer.subscription, session.consumer_topics[request.consumer_id]
    transactions, name, who = session.context.transactions, str(topic.name), acting_role(session)
    cumulative = request.ack_type == CommandAck.Cumulative

    def carry_out() -> bool:
        """False while the transaction's coordinator has to be asked."""
        if not isinstance(subscription, Subscription) or not isinstance(topic, PersistentTopic):
            raise TransactionNotFoundError(f"{name} is not persistent: transactions cannot acknowledge there")
        allowed = transactions.allows(txn, name, subscription.name, who, topic.transactions.grants)
        if allowed is False:
            raise TransactionNotFoundError(
                f"transaction {txn} is not open, belongs to another role, or has not named the subscription"
            )
        if allowed:
            transactional.acknowledge(subscription, consumer, txn, ids, cumulative, done)
        return allowed is True

    async def learn_and_carry_out() -> None:
        assert isinstance(topic, PersistentTopic)
        try:
            await transactions.learn(txn.most, name, topic.transactions.grants)
            if not carry_out():
                raise ServiceNotReadyError(f"the coordinator of transaction {txn} is moving; try again")
        except MagnetarError as error:
            if done is not None:
                done(error)

    try:
        if not carry_out():
            ids = [(*each[:2], list(each[2]) if each[2] else None, each[3]) for each in ids]  # of the frame, else
            session.spawn(learn_and_carry_out(), "acknowledge in a transaction")
    except MagnetarError as error:
        if done is not None:
            done(error)


class AckReceipt:
    """Answers ACK_RESPONSE once the acknowledgement is durable."""

    __slots__ = ("_consumer_id", "_request_id", "_session", "_txn")

    def __init__(self, session: Session, consumer_id: int, request_id: int, txn: TxnId | None = None) -> None:
        self._session = session
        self._consumer_id = consumer_id
        self._request_id = request_id
        self._txn = txn

    def __call__(self, error: MagnetarError | None) -> None:
        if self._session.closed:
            return
        code = None if error is None else code_of(error)
        text = "" if error is None else text_of(error)
        self._session.write(commands.ack_response(self._consumer_id, self._request_id, code, text, self._txn))


def redeliver(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.redeliverUnacknowledgedMessages
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None or consumer.subscription is None:
        return
    positions = [(message_id.ledgerId, message_id.entryId) for message_id in request.message_ids]
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
    consumer.subscription.redeliver(consumer, positions or None, epoch)
