"""TC_CLIENT_CONNECT, NEW_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN, END_TXN, and the two END_TXN_ON_ of other brokers;
WATCH_TC_ASSIGNMENTS, by which clients of Pulsar 5 find the coordinators.

Failures are answered in the response's own `error`; the guard's refusals take the same form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import COORDINATOR_WATCHES_PER_CONNECTION_MAX
from magnetar.base.tasks import REPORTED
from magnetar.broker.connection.refusals import refusal
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.transactions.coordinators import NOT_ENABLED
from magnetar.broker.transactions.types import TransactionsDisabledError, TxnId
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import COMMIT, BaseCommand, TcAssignmentsSnapshot

logger = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 1.0
"""How often a client that follows the coordinators is told what has changed."""

_ASSIGNMENTS: Final = "coordinators"


def _run(session: Session, command: BaseCommand, work: Coroutine[Any, Any, BaseCommand], name: str) -> None:
    session.spawn(_answered(session, command, work), name)


async def _answered(session: Session, command: BaseCommand, work: Coroutine[Any, Any, BaseCommand]) -> None:
    try:
        session.write(commands.frame(await work))
    except Exception as error:
        if not isinstance(error, MagnetarError):
            logger.exception("transaction request failed address=%s", session.address)
        session.write(refusal(command, error, session.client_version))


def acting_role(session: Session) -> str | None:
    """The role whose transactions the connection may use; None for all of them."""
    return session.context.security.authorizer.owner(session.principal)


def connect_coordinator(session: Session, command: BaseCommand, rest: bytes) -> None:
    _run(session, command, _connect(session, command), "connect coordinator")


async def _connect(session: Session, command: BaseCommand) -> BaseCommand:
    request = command.tcClientConnectRequest
    await session.context.transactions.check_owned(request.tc_id)
    answer = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
    answer.tcClientConnectResponse.request_id = request.request_id
    return answer


def watch_assignments(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.spawn(_watch_assignments(session, command), "watch coordinators")


async def _watch_assignments(session: Session, command: BaseCommand) -> None:
    """A client that gives a number once more begins anew with it."""
    key = (_ASSIGNMENTS, command.watchTcAssignments.watch_id)
    try:
        if not session.context.transactions.enabled:
            raise TransactionsDisabledError(NOT_ENABLED)
        if key not in session.watches and _watch_count(session) >= COORDINATOR_WATCHES_PER_CONNECTION_MAX:
            raise NotAllowedError(
                f"this connection has {COORDINATOR_WATCHES_PER_CONNECTION_MAX} watches of coordinators; close one of them first"
            )
        _end_watch(session, key)
        watch = session.watches[key] = AssignmentsWatch(session, command.watchTcAssignments.watch_id)
        await watch.tell()
    except Exception as error:
        _end_watch(session, key)
        if not isinstance(error, MagnetarError):
            logger.exception("coordinators not told address=%s", session.address)
        session.write(refusal(command, error, session.client_version))


def close_assignments(session: Session, command: BaseCommand, rest: bytes) -> None:
    _end_watch(session, (_ASSIGNMENTS, command.watchTcAssignmentsClose.watch_id))


def _watch_count(session: Session) -> int:
    return sum(kind == _ASSIGNMENTS for kind, _ in session.watches)


def _end_watch(session: Session, key: tuple[str, int]) -> None:
    watch = session.watches.pop(key, None)
    if watch is not None:
        watch.end()


class AssignmentsWatch:
    """The broker of each coordinator: all of them at once, and again whenever it has become another one.

    A coordinator without a broker is that of the broker which decides, where the client's first request has it taken up.
    """

    def __init__(self, session: Session, watch_id: int) -> None:
        self._session = session
        self._watch_id = watch_id
        self._told: TcAssignmentsSnapshot | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    async def tell(self) -> None:
        """Say it if it has changed, and look again after a while. Raises MagnetarError for the first time only."""
        try:
            found = await self._look()
        except MagnetarError as error:
            if self._told is None:
                raise
            logger.info("coordinators not looked up address=%s error=%s", self._session.address, error)
        else:
            if found != self._told and not self._ended and not self._session.closed:
                self._told = found
                answer = BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)
                answer.watchTcAssignmentsUpdate.watch_id = self._watch_id
                answer.watchTcAssignmentsUpdate.snapshot.CopyFrom(found)
                self._session.write(commands.frame(answer))
        if not self._ended and not self._session.closed:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._due)

    def _due(self) -> None:
        if not self._ended and not self._session.closed:
            self._session.context.scope.spawn(self.tell(), "coordinators changed", REPORTED)

    async def _look(self) -> TcAssignmentsSnapshot:
        addresses = await self._session.context.coordinator_addresses()
        found = TcAssignmentsSnapshot(parallelism=len(addresses))
        for number, address in enumerate(addresses):
            assignment = found.assignments.add(tc_id=number)
            if address.service_url:
                assignment.broker_service_url = address.service_url
            if address.service_url_tls:
                assignment.broker_service_url_tls = address.service_url_tls
        return found


def new_transaction(session: Session, command: BaseCommand, rest: bytes) -> None:
    _run(session, command, _new(session, command), "new transaction")


async def _new(session: Session, command: BaseCommand) -> BaseCommand:
    request = command.newTxn
    coordinator = await session.context.transactions.get(request.tc_id)
    owner = session.principal.role if session.principal is not None else ""
    txn = await coordinator.new(request.txn_ttl_millis, owner)
    answer = BaseCommand(type=BaseCommand.NEW_TXN_RESPONSE)
    return _filled(answer, answer.newTxnResponse, request.request_id, txn)


def add_partitions(session: Session, command: BaseCommand, rest: bytes) -> None:
    _run(session, command, _add_partitions(session, command), "add partitions to transaction")


async def _add_partitions(session: Session, command: BaseCommand) -> BaseCommand:
    request = command.addPartitionToTxn
    txn = _txn(request)
    coordinator = await session.context.transactions.get(txn.most)
    await coordinator.add_partitions(txn, list(request.partitions), acting_role(session))
    answer = BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)
    return _filled(answer, answer.addPartitionToTxnResponse, request.request_id, txn)


def add_subscriptions(session: Session, command: BaseCommand, rest: bytes) -> None:
    _run(session, command, _add_subscriptions(session, command), "add subscriptions to transaction")


async def _add_subscriptions(session: Session, command: BaseCommand) -> BaseCommand:
    request = command.addSubscriptionToTxn
    txn = _txn(request)
    coordinator = await session.context.transactions.get(txn.most)
    named = [(each.topic, each.subscription) for each in request.subscription]
    await coordinator.add_subscriptions(txn, named, acting_role(session))
    answer = BaseCommand(type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)
    return _filled(answer, answer.addSubscriptionToTxnResponse, request.request_id, txn)


def end(session: Session, command: BaseCommand, rest: bytes) -> None:
    _run(session, command, _end(session, command), "end transaction")


async def _end(session: Session, command: BaseCommand) -> BaseCommand:
    request = command.endTxn
    txn = _txn(request)
    coordinator = await session.context.transactions.get(txn.most)
    await coordinator.end(txn, _commits(request), acting_role(session))
    answer = BaseCommand(type=BaseCommand.END_TXN_RESPONSE)
    return _filled(answer, answer.endTxnResponse, request.request_id, txn)


def end_on_partition(session: Session, command: BaseCommand, rest: bytes) -> None:
    _run(session, command, _end_on_partition(session, command), "end transaction on partition")


async def _end_on_partition(session: Session, command: BaseCommand) -> BaseCommand:
    request = command.endTxnOnPartition
    txn, low = _txn(request), request.txnid_least_bits_of_low_watermark
    await session.context.participants.end_on_partition(request.topic, txn, _commits(request), low)
    answer = BaseCommand(type=BaseCommand.END_TXN_ON_PARTITION_RESPONSE)
    return _filled(answer, answer.endTxnOnPartitionResponse, request.request_id, txn)


def end_on_subscription(session: Session, command: BaseCommand, rest: bytes) -> None:
    _run(session, command, _end_on_subscription(session, command), "end transaction on subscription")


async def _end_on_subscription(session: Session, command: BaseCommand) -> BaseCommand:
    request = command.endTxnOnSubscription
    txn, low = _txn(request), request.txnid_least_bits_of_low_watermark
    where = request.subscription
    participants = session.context.participants
    await participants.end_on_subscription(where.topic, where.subscription, txn, _commits(request), low)
    answer = BaseCommand(type=BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE)
    return _filled(answer, answer.endTxnOnSubscriptionResponse, request.request_id, txn)


def _txn(request: Any) -> TxnId:
    return TxnId(request.txnid_most_bits, request.txnid_least_bits)


def _commits(request: Any) -> bool:
    """Raises NotAllowedError: an action that is missing parses as COMMIT."""
    if not request.HasField("txn_action"):
        raise NotAllowedError("the request does not say whether to commit or to abort")
    return bool(request.txn_action == COMMIT)


def _filled(answer: BaseCommand, response: Any, request_id: int, txn: TxnId) -> BaseCommand:
    response.request_id = request_id
    response.txnid_most_bits = txn.most
    response.txnid_least_bits = txn.least
    return answer
