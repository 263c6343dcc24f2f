"""The table of what every command of the binary protocol requires. Routes of the admin API declare theirs in `admin/routes`.

A command without a row is denied to everybody; a test holds the rows against the commands that are handled, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.broker.auth.decide import Access

COMMANDS: Mapping[str, Access] = {
    # ---- The connection itself; refused in other ways before CONNECT
    "CONNECT": Access.OPEN,
    "AUTH_RESPONSE": Access.OPEN,
    "PING": Access.OPEN,
    "PONG": Access.OPEN,
    # ---- Names
    "PARTITIONED_METADATA": Access.LOOKUP,
    "LOOKUP": Access.LOOKUP,
    "GET_TOPICS_OF_NAMESPACE": Access.NAMESPACE,
    # ---- Producing
    "PRODUCER": Access.PRODUCE,
    "SEND": Access.OWN,
    "CLOSE_PRODUCER": Access.OWN,
    # ---- Consuming
    "SUBSCRIBE": Access.CONSUME,
    "FLOW": Access.OWN,
    "ACK": Access.OWN,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": Access.OWN,
    "CLOSE_CONSUMER": Access.OWN,
    "UNSUBSCRIBE": Access.CONSUME,
    "SEEK": Access.CONSUME,
    "GET_LAST_MESSAGE_ID": Access.CONSUME,
    "CONSUMER_STATS": Access.CONSUME,
    # ---- Schemas
    "GET_SCHEMA": Access.LOOKUP,
    "GET_OR_CREATE_SCHEMA": Access.PRODUCE,
    # ---- Scalable topics
    "SCALABLE_TOPIC_LOOKUP": Access.LOOKUP,
    "SCALABLE_TOPIC_CLOSE": Access.OWN,
    "SCALABLE_TOPIC_SUBSCRIBE": Access.CONSUME,
    "SCALABLE_TOPIC_UNSUBSCRIBE": Access.OWN,
    "WATCH_SCALABLE_TOPICS": Access.NAMESPACE,
    "WATCH_SCALABLE_TOPICS_CLOSE": Access.OWN,
    # ---- Transactions
    "TC_CLIENT_CONNECT_REQUEST": Access.AUTHENTICATED,
    "WATCH_TC_ASSIGNMENTS": Access.AUTHENTICATED,
    "WATCH_TC_ASSIGNMENTS_CLOSE": Access.OWN,
    "NEW_TXN": Access.SOMEWHERE,
    "ADD_PARTITION_TO_TXN": Access.PRODUCE,
    "ADD_SUBSCRIPTION_TO_TXN": Access.CONSUME,
    "END_TXN": Access.AUTHENTICATED,  # and the coordinator asks for the owner
    "END_TXN_ON_PARTITION": Access.SUPERUSER,
    "END_TXN_ON_SUBSCRIPTION": Access.SUPERUSER,
}
"""Access by the name of the command's type in BaseCommand."""
