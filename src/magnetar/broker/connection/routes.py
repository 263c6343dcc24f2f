"""Which handler takes which command. A type that is missing here ends the connection."""

from __future__ import annotations

from magnetar.broker.connection.handlers import (
    connect,
    consume,
    lookup,
    producer,
    schema,
    seek,
    send,
    subscribe,
    transactions,
)
from magnetar.broker.connection.session import Handler
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

BEFORE_CONNECT: dict[int, Handler] = {
    BaseCommand.CONNECT: connect.connect,
    BaseCommand.PING: connect.ping,
    BaseCommand.PONG: connect.pong,
}
"""Until CONNECT is accepted nothing else is served."""

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
    BaseCommand.SUBSCRIBE: subscribe.subscribe,
    BaseCommand.CLOSE_CONSUMER: subscribe.close_consumer,
    BaseCommand.UNSUBSCRIBE: subscribe.unsubscribe,
    BaseCommand.FLOW: consume.flow,
    BaseCommand.ACK: consume.ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: consume.redeliver,
    BaseCommand.SEEK: seek.seek,
    BaseCommand.GET_LAST_MESSAGE_ID: seek.last_message_id,
    BaseCommand.CONSUMER_STATS: seek.consumer_stats,
    BaseCommand.GET_SCHEMA: schema.get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: schema.get_or_create_schema,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: transactions.connect_coordinator,
    BaseCommand.NEW_TXN: transactions.new_transaction,
    BaseCommand.ADD_PARTITION_TO_TXN: transactions.add_partitions,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: transactions.add_subscriptions,
    BaseCommand.END_TXN: transactions.end,
    BaseCommand.END_TXN_ON_PARTITION: transactions.end_on_partition,
    BaseCommand.END_TXN_ON_SUBSCRIPTION: transactions.end_on_subscription,
}
