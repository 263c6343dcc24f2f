"""What is not served yet, each refused in the form that ends the client's call at once instead of hanging it."""

from __future__ import annotations

from magnetar.broker.connection.session import Session
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError

NO_TRANSACTIONS = "this server has no transactions yet"


def connect_transaction_coordinator(session: Session, command: BaseCommand, rest: bytes) -> None:
    answer = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
    answer.tcClientConnectResponse.request_id = command.tcClientConnectRequest.request_id
    answer.tcClientConnectResponse.error = ServerError.NotAllowedError
    answer.tcClientConnectResponse.message = NO_TRANSACTIONS
    session.write(commands.frame(answer))


def new_transaction(session: Session, command: BaseCommand, rest: bytes) -> None:
    answer = BaseCommand(type=BaseCommand.NEW_TXN_RESPONSE)
    answer.newTxnResponse.request_id = command.newTxn.request_id
    answer.newTxnResponse.error = ServerError.NotAllowedError
    answer.newTxnResponse.message = NO_TRANSACTIONS
    session.write(commands.frame(answer))
