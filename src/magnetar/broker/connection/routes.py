"""The handler of each command, and the access check in front of it. A command that is missing here ends the connection.

Access is checked by the command's row of `auth.table` when something is opened, named or moved. SEND, FLOW, ACK and their like act on
what this connection has opened itself; their handlers stay as they are, so a message costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import LARGE_ANSWER_BYTES, SMALL_ANSWER_BYTES
from magnetar.broker.auth.authenticate import NEED_TO_AUTHENTICATE
from magnetar.broker.auth.decide import Access, Resource
from magnetar.broker.auth.table import COMMANDS
from magnetar.broker.connection.handlers import (
    connect,
    consume,
    consumer,
    lookup,
    producer,
    scalable,
    schema,
    send,
    transactions,
)
from magnetar.broker.connection.refusals import refusal, remember
from magnetar.broker.connection.session import Handler, RunHandler, Session
from magnetar.broker.errors import AuthenticationError, AuthorizationError, TopicNotFoundError
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.broker.replicators.names import cluster_of_source, source_of_producer
from magnetar.broker.transactions.coordinators import ASSIGN_TOPIC
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

BEFORE_CONNECT: dict[int, Handler] = {
    BaseCommand.CONNECT: connect.connect,
    BaseCommand.PING: connect.ping,
    BaseCommand.PONG: connect.pong,
}
"""The commands that are served before CONNECT is accepted."""

ROUTES: dict[int, Handler] = {
    BaseCommand.CONNECT: connect.connect,
    BaseCommand.AUTH_RESPONSE: connect.auth_response,
    BaseCommand.PING: connect.ping,
    BaseCommand.PONG: connect.pong,
    BaseCommand.PARTITIONED_METADATA: lookup.partitioned_metadata,
    BaseCommand.LOOKUP: lookup.lookup,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: lookup.topics_of_namespace,
    BaseCommand.PRODUCER: producer.producer,
    BaseCommand.CLOSE_PRODUCER: producer.close_producer,
    BaseCommand.SEND: send.send,
    BaseCommand.SUBSCRIBE: consumer.subscribe,
    BaseCommand.CLOSE_CONSUMER: consumer.close_consumer,
    BaseCommand.UNSUBSCRIBE: consumer.unsubscribe,
    BaseCommand.FLOW: consume.flow,
    BaseCommand.ACK: consume.ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: consume.redeliver,
    BaseCommand.SEEK: consumer.seek,
    BaseCommand.GET_LAST_MESSAGE_ID: consumer.last_message_id,
    BaseCommand.CONSUMER_STATS: consumer.consumer_stats,
    BaseCommand.GET_SCHEMA: schema.get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: schema.get_or_create_schema,
    BaseCommand.SCALABLE_TOPIC_LOOKUP: scalable.lookup,
    BaseCommand.SCALABLE_TOPIC_CLOSE: scalable.close_lookup,
    BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: scalable.subscribe,
    BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE: scalable.unsubscribe,
    BaseCommand.WATCH_SCALABLE_TOPICS: scalable.watch_namespace,
    BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE: scalable.close_namespace_watch,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: transactions.connect_coordinator,
    BaseCommand.WATCH_TC_ASSIGNMENTS: transactions.watch_assignments,
    BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE: transactions.close_assignments,
    BaseCommand.NEW_TXN: transactions.new_transaction,
    BaseCommand.ADD_PARTITION_TO_TXN: transactions.add_partitions,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: transactions.add_subscriptions,
    BaseCommand.END_TXN: transactions.end,
    BaseCommand.END_TXN_ON_PARTITION: transactions.end_on_partition,
    BaseCommand.END_TXN_ON_SUBSCRIPTION: transactions.end_on_subscription,
}

RUNS: dict[bytes, RunHandler] = {
    bytes((8, BaseCommand.SEND)): send.send_run,
    bytes((8, BaseCommand.ACK)): consume.ack_run,
}
"""The commands of which consecutive ones are handled together."""

Demand = tuple[Access, Resource]


def guarded(routes: Mapping[int, Handler]) -> dict[int, Handler]:
    """The same commands, each with the access check of its row. A command without a row ends the connection like an unknown one."""
    found: dict[int, Handler] = {}
    for kind, handler in routes.items():
        access = COMMANDS.get(BaseCommand.Type.Name(kind))  # type: ignore[arg-type]  # the stubs want the enum's own type
        if access in (Access.OPEN, Access.OWN):
            found[kind] = handler
        elif access is not None:
            answer_bytes = LARGE_ANSWER_BYTES if kind in _LARGE_ANSWERS else SMALL_ANSWER_BYTES
            found[kind] = partial(_guard, access, handler, answer_bytes)
    return found


_LARGE_ANSWERS = (BaseCommand.GET_TOPICS_OF_NAMESPACE, BaseCommand.GET_SCHEMA)


def _guard(
    access: Access, handler: Handler, answer_bytes: int, session: Session, command: BaseCommand, rest: bytes
) -> None:
    name = BaseCommand.Type.Name(command.type)
    session.spawn(_checked(access, handler, session, command, rest), name, answer_bytes)


async def _checked(access: Access, handler: Handler, session: Session, command: BaseCommand, rest: bytes) -> None:
    try:
        if session.principal is None:
            raise AuthenticationError(NEED_TO_AUTHENTICATE)
        for wanted, resource in demands(access, session, command):
            await _demand(session, wanted, resource)
    except MagnetarError as error:
        remember(session, command, error)
        session.write(refusal(command, error, session.client_version))
        return
    if session.closed:
        return
    with session.requests.collected() as works:  # they belong to this request and must not wait for another turn
        try:
            handler(session, command, rest)
        except MagnetarError as error:
            session.fail(error)
    for work in works:
        await work


async def _demand(session: Session, access: Access, resource: Resource) -> None:
    """A tenant that does not exist is reported as such, as Pulsar does: clients end their call with TopicNotFound."""
    authorizer = session.context.security.authorizer
    try:
        await authorizer.check(session.principal, access, resource)
    except AuthorizationError:
        if resource.topic is not None and not await authorizer.tenant_exists(resource.tenant):
            raise TopicNotFoundError(f"Tenant {resource.tenant} does not exist") from None
        raise


def demands(access: Access, session: Session, command: BaseCommand) -> list[Demand]:
    """The resources that a command touches, each with the access it requires. Raises InvalidTopicNameError."""
    if access in (Access.AUTHENTICATED, Access.SOMEWHERE):
        return [(access, Resource())]
    return [
        (access if wanted is None else wanted, resource)
        for wanted, resource in _TOUCHES[command.type](session, command)
    ]


Touched = list[tuple[Access | None, Resource]]


def _topic(text: str, subscription: str = "") -> Touched:
    return [(None, Resource.of_topic(TopicName.parse(text), subscription))]


def _producer(session: Session, command: BaseCommand) -> Touched:
    """A producer with an initial subscription (a dead letter topic's) creates it, which requires the access of SUBSCRIBE. A replicator's
    name says that another cluster sends, which requires REPLICATE."""
    request = command.producer
    touched = _topic(request.topic)
    source = source_of_producer(request.producer_name)
    if source is not None:
        touched.append(
            (Access.REPLICATE, Resource.of_topic(TopicName.parse(request.topic), source=cluster_of_source(source)))
        )
    if request.initial_subscription_name:
        name = TopicName.parse(request.topic)
        touched.append((Access.CONSUME, Resource.of_topic(name, request.initial_subscription_name)))
    return touched


def _consumer(session: Session, consumer_id: int) -> Touched:
    """Checked again on what the consumer reads: a grant may have been revoked since it subscribed. An unknown consumer touches nothing."""
    consumer = session.consumers.get(consumer_id)
    if consumer is None or consumer.subscription is None:
        return []
    return [(None, Resource.of_topic(session.consumer_topics[consumer_id].name, consumer.subscription.name))]


def _subscriptions(session: Session, command: BaseCommand) -> Touched:
    named = command.addSubscriptionToTxn.subscription
    return [part for each in named for part in _topic(each.topic, each.subscription)]


def _partitioned_metadata(session: Session, command: BaseCommand) -> Touched:
    return _lookup(command.partitionMetadata.topic)


def _lookup(text: str) -> Touched:
    """Every role may look up the transaction coordinators."""
    name = TopicName.parse(text, scalable=True)
    wanted = Access.AUTHENTICATED if name.partitioned_name == ASSIGN_TOPIC else None
    return [(wanted, Resource.of_topic(name))]


def _scalable(text: str, subscription: str = "") -> Touched:
    return [(None, Resource.of_topic(TopicName.parse(text, scalable=True), subscription))]


_TOUCHES: dict[int, Callable[[Session, BaseCommand], Touched]] = {
    BaseCommand.PARTITIONED_METADATA: _partitioned_metadata,
    BaseCommand.LOOKUP: lambda session, command: _lookup(command.lookupTopic.topic),
    BaseCommand.GET_TOPICS_OF_NAMESPACE: lambda session, command: [
        (None, Resource.of_namespace(NamespaceName.parse(command.getTopicsOfNamespace.namespace)))
    ],
    BaseCommand.PRODUCER: _producer,
    BaseCommand.SUBSCRIBE: lambda session, command: _topic(command.subscribe.topic, command.subscribe.subscription),
    BaseCommand.UNSUBSCRIBE: lambda session, command: _consumer(session, command.unsubscribe.consumer_id),
    BaseCommand.SEEK: lambda session, command: _consumer(session, command.seek.consumer_id),
    BaseCommand.GET_LAST_MESSAGE_ID: lambda session, command: _consumer(session, command.getLastMessageId.consumer_id),
    BaseCommand.CONSUMER_STATS: lambda session, command: _consumer(session, command.consumerStats.consumer_id),
    BaseCommand.GET_SCHEMA: lambda session, command: _topic(command.getSchema.topic),
    BaseCommand.GET_OR_CREATE_SCHEMA: lambda session, command: _topic(command.getOrCreateSchema.topic),
    BaseCommand.SCALABLE_TOPIC_LOOKUP: lambda session, command: _scalable(command.scalableTopicLookup.topic),
    BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: lambda session, command: _scalable(
        command.scalableTopicSubscribe.topic, command.scalableTopicSubscribe.subscription
    ),
    BaseCommand.WATCH_SCALABLE_TOPICS: lambda session, command: [
        (None, Resource.of_namespace(NamespaceName.parse(command.watchScalableTopics.namespace)))
    ],
    BaseCommand.ADD_PARTITION_TO_TXN: lambda session, command: [
        part for topic in command.addPartitionToTxn.partitions for part in _topic(topic)
    ],
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: _subscriptions,
    BaseCommand.END_TXN_ON_PARTITION: lambda session, command: [(None, Resource())],
    BaseCommand.END_TXN_ON_SUBSCRIPTION: lambda session, command: [(None, Resource())],
}
"""Function by command that finds the topics, namespaces and subscriptions in it. None as access means the row's own."""
