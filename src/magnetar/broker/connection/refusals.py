"""A refusal inside the command's own response where it has one for failures, else as ERROR."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from magnetar.base.errors import MagnetarError
from magnetar.broker.connection.error_codes import answer_code_of, answer_text_of, text_of
from magnetar.broker.naming import TopicName
from magnetar.broker.transactions.types import TransactionsDisabledError
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

if TYPE_CHECKING:
    from magnetar.broker.connection.session import Session

Form = tuple[BaseCommand, Any, str]
"""The answer, the response within it, and the response's field for the code."""


def refusal(command: BaseCommand, error: Exception, client_version: str) -> bytes:
    """The frame that answers `command` with `error`."""
    form, code = _FORMS.get(command.type), answer_code_of(error, client_version)
    if isinstance(error, TransactionsDisabledError) and command.type != BaseCommand.WATCH_TC_ASSIGNMENTS:
        form = None  # as in Pulsar: the Go client does not look at the error of a response
    if form is None:
        return commands.error(request_id_of(command), code, answer_text_of(error, client_version))
    answer, response, code_field = form(command)
    if command.type not in _NAMED_OTHERWISE:
        response.request_id = request_id_of(command)
    setattr(response, code_field, code)
    setattr(response, "error_message" if code_field == "error_code" else "message", text_of(error))
    return commands.frame(answer)


def remember(session: Session, command: BaseCommand, error: MagnetarError) -> None:
    """Keep for explanations that a client was refused a topic: by a look-up, as a producer or as a consumer."""
    look_up = command.lookupTopic if command.type == BaseCommand.LOOKUP else command.partitionMetadata
    who, name, subscription, topic = "client", "", "", look_up.topic
    if command.type == BaseCommand.PRODUCER:
        who, name, topic = "producer", command.producer.producer_name, command.producer.topic
    elif command.type == BaseCommand.SUBSCRIBE:
        request = command.subscribe
        who, name, subscription, topic = "consumer", request.consumer_name, request.subscription, request.topic
    try:
        topic = str(TopicName.parse(topic))
    except MagnetarError:
        return  # of no topic that anybody can ask about
    context = session.context
    context.refused.remember(topic, who, name, subscription, session.address, error, context.clock.now_ms())


async def remembered(session: Session, command: BaseCommand, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """What `work` begins, whose failure is remembered. It begins with this, so that nothing is left over when this is never run."""
    try:
        await work()
    except MagnetarError as error:
        remember(session, command, error)
        raise


def request_id_of(command: BaseCommand) -> int:
    """The request id of whichever message the command carries."""
    for _, message in command.ListFields():
        request_id = getattr(message, "request_id", None)
        if isinstance(request_id, int):
            return request_id
    return commands.NO_REQUEST_ID


def _lookup(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    answer.lookupTopicResponse.response = CommandLookupTopicResponse.Failed
    return answer, answer.lookupTopicResponse, "error"


def _partitions(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    answer.partitionMetadataResponse.response = CommandPartitionedTopicMetadataResponse.Failed
    return answer, answer.partitionMetadataResponse, "error"


def _schema(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
    return answer, answer.getSchemaResponse, "error_code"


def _new_schema(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    return answer, answer.getOrCreateSchemaResponse, "error_code"


def _consumer_stats(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    return answer, answer.consumerStatsResponse, "error_code"


def _layout(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
    answer.scalableTopicUpdate.session_id = command.scalableTopicLookup.session_id
    return answer, answer.scalableTopicUpdate, "error"


def _assignment(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    return answer, answer.scalableTopicSubscribeResponse, "error"


def _scalable_topics(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    answer.watchScalableTopicsUpdate.watch_id = command.watchScalableTopics.watch_id
    return answer, answer.watchScalableTopicsUpdate, "error"


def _assignments(command: BaseCommand) -> Form:
    answer = BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)
    answer.watchTcAssignmentsUpdate.watch_id = command.watchTcAssignments.watch_id
    return answer, answer.watchTcAssignmentsUpdate, "error"


_NAMED_OTHERWISE = (
    BaseCommand.SCALABLE_TOPIC_LOOKUP,
    BaseCommand.WATCH_SCALABLE_TOPICS,
    BaseCommand.WATCH_TC_ASSIGNMENTS,
)
"""Commands whose answers name the client's number of a session instead of that of a request."""


def _transaction(command: BaseCommand) -> Form:
    """Answers to requests of transactions are alike; those about a transaction name it."""
    kind, response_field, request_field = _TRANSACTION_ANSWERS[command.type]
    answer = BaseCommand(type=kind)  # type: ignore[arg-type]  # the stubs want the enum's own type
    response = getattr(answer, response_field)
    request = getattr(command, request_field)
    if hasattr(request, "txnid_most_bits"):
        response.txnid_most_bits, response.txnid_least_bits = request.txnid_most_bits, request.txnid_least_bits
    return answer, response, "error"


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

_FORMS: dict[int, Callable[[BaseCommand], Form]] = {
    BaseCommand.LOOKUP: _lookup,
    BaseCommand.PARTITIONED_METADATA: _partitions,
    BaseCommand.GET_SCHEMA: _schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: _new_schema,
    BaseCommand.CONSUMER_STATS: _consumer_stats,
    BaseCommand.SCALABLE_TOPIC_LOOKUP: _layout,
    BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: _assignment,
    BaseCommand.WATCH_SCALABLE_TOPICS: _scalable_topics,
    BaseCommand.WATCH_TC_ASSIGNMENTS: _assignments,
    **dict.fromkeys(_TRANSACTION_ANSWERS, _transaction),
}
