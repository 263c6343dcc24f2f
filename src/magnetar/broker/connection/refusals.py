"""A refusal inside the command's own response where it has one for failures, else as ERROR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar.broker.connection.error_codes import code_of, text_of
from magnetar.broker.errors import InvalidTopicNameError, TopicNotFoundError
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)


def refusal(command: BaseCommand, error: Exception) -> bytes:
    """The frame that answers `command` with `error`."""
    form = _FORMS.get(command.type)
    if form is not None:
        return commands.frame(form(command, error))
    return commands.error(request_id_of(command), code_of(error), text_of(error))


def request_id_of(command: BaseCommand) -> int:
    """The request id of whichever message the command carries."""
    for _, message in command.ListFields():
        request_id = getattr(message, "request_id", None)
        if isinstance(request_id, int):
            return request_id
    return commands.NO_REQUEST_ID


def _lookup(command: BaseCommand, error: Exception) -> BaseCommand:
    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    answer.lookupTopicResponse.response = CommandLookupTopicResponse.Failed
    return _filled(answer, answer.lookupTopicResponse, "error", command, _final(error))


def _partitions(command: BaseCommand, error: Exception) -> BaseCommand:
    answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    answer.partitionMetadataResponse.response = CommandPartitionedTopicMetadataResponse.Failed
    return _filled(answer, answer.partitionMetadataResponse, "error", command, _final(error))


def _final(error: Exception) -> Exception:
    """InvalidTopicName is retried by the C++ client until it times out; TopicNotFound ends the call and says as much."""
    return TopicNotFoundError(str(error)) if isinstance(error, InvalidTopicNameError) else error


def _schema(command: BaseCommand, error: Exception) -> BaseCommand:
    answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
    return _filled(answer, answer.getSchemaResponse, "error_code", command, error)


def _new_schema(command: BaseCommand, error: Exception) -> BaseCommand:
    answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    return _filled(answer, answer.getOrCreateSchemaResponse, "error_code", command, error)


def _consumer_stats(command: BaseCommand, error: Exception) -> BaseCommand:
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    return _filled(answer, answer.consumerStatsResponse, "error_code", command, error)


def _transaction(command: BaseCommand, error: Exception) -> BaseCommand:
    """Answers to requests of transactions are alike; those about a transaction name it."""
    kind, response_field, request_field = _TRANSACTION_ANSWERS[command.type]
    answer = BaseCommand(type=kind)  # type: ignore[arg-type]  # the stubs want the enum's own type
    response = getattr(answer, response_field)
    request = getattr(command, request_field)
    if hasattr(request, "txnid_most_bits"):
        response.txnid_most_bits, response.txnid_least_bits = request.txnid_most_bits, request.txnid_least_bits
    return _filled(answer, response, "error", command, error)


def _filled(answer: BaseCommand, response: Any, code_field: str, command: BaseCommand, error: Exception) -> BaseCommand:
    response.request_id = request_id_of(command)
    setattr(response, code_field, code_of(error))
    setattr(response, "error_message" if code_field == "error_code" else "message", text_of(error))
    return answer


_TRANSACTION_ANSWERS: dict[int, tuple[int, str, str]] = {
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: (
        BaseCommand.TC_CLIENT_CONNECT_RESPONSE,
        "tcClientConnectResponse",
        "tcClientConnectRequest",
    ),
    BaseCommand.NEW_TXN: (BaseCommand.NEW_TXN_RESPONSE, "newTxnResponse", "newTxn"),
    BaseCommand.ADD_PARTITION_TO_TXN: (
        BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE,
        "addPartitionToTxnResponse",
        "addPartitionToTxn",
    ),
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: (
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        "addSubscriptionToTxnResponse",
        "addSubscriptionToTxn",
    ),
    BaseCommand.END_TXN: (BaseCommand.END_TXN_RESPONSE, "endTxnResponse", "endTxn"),
    BaseCommand.END_TXN_ON_PARTITION: (
        BaseCommand.END_TXN_ON_PARTITION_RESPONSE,
        "endTxnOnPartitionResponse",
        "endTxnOnPartition",
    ),
    BaseCommand.END_TXN_ON_SUBSCRIPTION: (
        BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        "endTxnOnSubscriptionResponse",
        "endTxnOnSubscription",
    ),
}

_FORMS: dict[int, Callable[[BaseCommand, Exception], BaseCommand]] = {
    BaseCommand.LOOKUP: _lookup,
    BaseCommand.PARTITIONED_METADATA: _partitions,
    BaseCommand.GET_SCHEMA: _schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: _new_schema,
    BaseCommand.CONSUMER_STATS: _consumer_stats,
    **dict.fromkeys(_TRANSACTION_ANSWERS, _transaction),
}
