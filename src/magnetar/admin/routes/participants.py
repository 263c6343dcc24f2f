"""What a transaction's coordinator at another broker asks of topics here. Between brokers only; Pulsar's have commands for it."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import done
from magnetar.admin.call import Call
from magnetar.admin.operation import documented
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.cluster_participants import PARTICIPANTS_TARGET
from magnetar.broker.transactions.types import TxnId


class ParticipantRequest(msgspec.Struct, rename="camel"):
    """Without `commit` the topic (or its subscription) is to get ready; with it, to carry out the outcome."""

    topic: str
    subscription: str | None = None
    commit: bool | None = None
    most_sig_bits: int = 0
    least_sig_bits: int = 0
    low_water_mark: int = 0


@documented(body=ParticipantRequest, errors=(404, 503))
async def take_part(call: Call) -> Response:
    """A step of a transaction, from the broker that coordinates it. For brokers only."""
    request = await call.body_as(ParticipantRequest)
    own, topic, subscription = call.broker.participants.own, request.topic, request.subscription
    if request.commit is None:
        if subscription is None:
            await own.prepare_partition(topic)
        else:
            await own.prepare_subscription(topic, subscription)
        return done()
    txn = TxnId(request.most_sig_bits, request.least_sig_bits)
    if subscription is None:
        await own.end_on_partition(topic, txn, request.commit, request.low_water_mark)
    else:
        await own.end_on_subscription(topic, subscription, txn, request.commit, request.low_water_mark)
    return done()


ROUTES = (Route("POST", PARTICIPANTS_TARGET, Access.SUPERUSER, take_part),)
