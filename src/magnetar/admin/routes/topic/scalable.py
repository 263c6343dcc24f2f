"""Scalable topics: create, look at, split, merge, subscribe, delete; and their single segments, for the brokers that control them."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.context import check_storage
from magnetar.admin.documents.internal_stats import internal_stats
from magnetar.admin.documents.scalable import (
    AutoScalePolicy,
    ClusterPlaces,
    ScalableTopicMetadata,
    ScalableTopicStats,
    ScaleDecision,
    SegmentPlaces,
    SegmentStats,
)
from magnetar.admin.documents.topics import (
    InternalStats,
    ReplicatedCluster,
    ReplicatedSubscriptionsStatus,
    ReplicatedSubscriptionState,
)
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.policy_checks import truth
from magnetar.admin.redirects import redirect
from magnetar.admin.routes.topic.topics import properties_of
from magnetar.admin.routing import ADMIN, Handler, Route
from magnetar.admin.topic_access import as_persistent
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import NotAllowedError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.naming import PERSISTENT, SCALABLE, SEGMENT, TopicName, subscription_name
from magnetar.broker.scalable.assignment import withheld
from magnetar.broker.scalable.autoscale import as_document
from magnetar.broker.scalable.records import QUEUE, STREAM, TopicRecord
from magnetar.broker.scalable.segments import LEGACY, OwnSegments, segment_name
from magnetar.broker.scalable.service import ScalableTopics
from magnetar.broker.scalable.snapshots import Vector, vector_as_json, vector_from_json
from magnetar.managed_ledger.position import Position

_TIMESTAMP = {"timestamp": int}


def _service(call: Call) -> ScalableTopics:
    if not call.broker.config.settings.scalable_topics_enabled:
        raise NotAllowedError("scalable topics are switched off on this server (scalableTopicsEnabled)")
    return call.broker.scalable


async def _record(call: Call) -> TopicRecord:
    """Raises TopicNotFoundError."""
    record = await _service(call).records.get(call.topic)
    if record is None:
        raise TopicNotFoundError(f"Scalable topic {call.topic} does not exist")
    return record


@documented(answer=list[str], query={"property": str})
async def names(call: Call) -> Response:
    """Complete names; `property=name=value`, which may be repeated, only of topics that have all of these properties."""
    await call.broker.namespaces.policies(call.namespace)
    wanted = {}
    for text in call.request.query_params.getlist("property"):
        name, separator, value = text.partition("=")
        if not separator:
            raise BadRequestError(f"property must be name=value, not '{text[:40]}'")
        wanted[name] = value
    return as_json(await _service(call).records.names(call.namespace, wanted))


@documented(body=dict[str, str] | None, query={"numInitialSegments": int})
async def create(call: Call) -> Response:
    """Create a scalable topic, of one segment unless `numInitialSegments` says more. The body holds its properties."""
    properties = properties_of(await call.json())
    count = call.query_number("numInitialSegments", 1)
    check_storage(call.admin.storage)
    await _service(call).create(call.topic, count, properties)
    return done()


@documented("The layout of a scalable topic and its properties.", answer=ScalableTopicMetadata)
async def get(call: Call) -> Response:
    return as_json((await _record(call)).as_json())


@documented(query=FORCE)
async def delete(call: Call) -> Response:
    """Delete a scalable topic with all its segments; with `force` also while somebody is connected."""
    await _service(call).delete(call.topic, call.flag("force"))
    return done()


@documented("Segments, and consumers by subscription.", answer=ScalableTopicStats)
async def stats(call: Call) -> Response:
    return as_json(await _service(call).statistics(call.topic))


@documented(errors=(409,))
async def split(call: Call) -> Response:
    """Split an active segment into two halves. Answers when producers may use them."""
    controller = await _service(call).controller(call.topic)
    await controller.split(call.number("segmentId"))
    return done()


@documented(errors=(409,))
async def merge(call: Call) -> Response:
    """Merge two adjacent active segments into one."""
    controller = await _service(call).controller(call.topic)
    await controller.merge(call.number("segmentId1"), call.number("segmentId2"))
    return done()


@documented(query=FORCE, errors=(409,))
async def migrate(call: Call) -> Response:
    """Make the classic topic of that name a scalable one, without copying. Its partitions become sealed segments, which keep their messages
    and subscriptions; new segments take what comes. Answers when they do. With `force` also while classic clients are connected."""
    check_storage(call.admin.storage)
    await _service(call).migrations.migrate(call.topic, call.flag("force"))
    return done()


@documented("A topic's own policy of splits and merges.", answer=AutoScalePolicy, may_be_unset=True)
async def get_policy(call: Call) -> Response:
    policy = (await _record(call)).policy
    return done() if policy is None else as_json(dict(policy))


@documented(
    "Set a topic's own policy of splits and merges: what it leaves out is as in its namespace's, or the broker's settings.",
    body=AutoScalePolicy,
)
async def set_policy(call: Call) -> Response:
    policy = await call.body_as(AutoScalePolicy)
    given = {name: value for name, value in msgspec.to_builtins(policy).items() if value is not None}
    await _service(call).set_policy(call.topic, given)
    return done()


@documented("Remove a topic's own policy of splits and merges.")
async def remove_policy(call: Call) -> Response:
    await _service(call).set_policy(call.topic, None)
    return done()


@documented(answer=ScaleDecision)
async def explain(call: Call) -> Response:
    """Whether the topic would be split or merged now, and why (Pulsar has no such route)."""
    controller = await _service(call).controller(call.topic)
    found = await controller.decision()
    waiting = {
        each.name: {str(segment): ancestors for segment, ancestors in withheld(controller.layout, each.drained).items()}
        for each in controller.subscriptions
        if each.kind == STREAM
    }
    document = {"segmentIds": list(found.segment_ids), "reason": found.reason, "blocked": found.blocked}
    in_force = await controller.policy()
    policy = {"policy": as_document(in_force.values), "policySources": dict(in_force.sources)}
    return as_json({**document, "withheld": waiting, **policy})


def _kind(call: Call) -> str:
    kind = call.query("type", QUEUE).upper()
    if kind not in (STREAM, QUEUE):
        raise BadRequestError(f"type must be {STREAM} or {QUEUE}")
    return kind


@documented(query={"type": Literal["STREAM", "QUEUE"]})
async def put_subscription(call: Call) -> Response:
    """Create a subscription, which begins with the next message, in all segments."""
    kind = _kind(call)
    await _service(call).subscriptions.create(call.topic, call.subscription, kind)
    return done()


@documented()
async def delete_subscription(call: Call) -> Response:
    """Delete a subscription from all segments; its consumers are disconnected."""
    await _check_subscription(call)
    await _service(call).delete_subscription(call.topic, call.subscription)
    return done()


async def _check_subscription(call: Call) -> None:
    await _record(call)
    if call.subscription not in await _service(call).records.subscriptions(call.topic):
        raise SubscriptionNotFoundError(f"Subscription {call.subscription} not found")


@documented(query=_TIMESTAMP)
async def seek(call: Call) -> Response:
    """Go to the first messages published at or after `timestamp` (ms since 1970)."""
    await _check_subscription(call)
    await _service(call).seek(call.topic, call.subscription, call.query_number("timestamp", 0))
    return done()


@documented()
async def skip_all(call: Call) -> Response:
    """Acknowledge everything in all segments."""
    await _check_subscription(call)
    await _service(call).skip_all(call.topic, call.subscription)
    return done()


@documented(answer=SegmentStats)
async def segment_stats(call: Call) -> Response:
    """Rates, clients and backlog of one segment."""
    record = await _record(call)
    segment = record.layout.segments.get(call.number("segmentId"))
    if segment is None:
        raise TopicNotFoundError(f"Segment {call.number('segmentId')} of {call.topic} does not exist")
    return as_json(await _service(call).segments.stats(segment_name(call.topic, segment)))


@documented()
async def drained(call: Call) -> Response:
    """A broker tells the topic's controller that a subscription has acknowledged everything in a sealed segment."""
    controller = await _service(call).controller(call.topic)
    controller.drained(call.number("segmentId"), call.subscription)
    return done()


# ---- Other clusters of a replicated topic


@documented(answer=list[ReplicatedSubscriptionsStatus])
async def replication_status(call: Call) -> Response:
    """The last snapshot across clusters, missing clusters, what a failover would repeat now. Positions name segments."""
    replicated = (await _service(call).controller(call.topic)).replicated
    if replicated is None:
        return as_json([])
    found = await replicated.status()
    status = ReplicatedSubscriptionsStatus(
        topic=str(call.topic),
        cluster=found.cluster,
        enabled=found.enabled,
        snapshot_frequency_millis=found.interval_ms,
        clusters=[ReplicatedCluster(**each._asdict()) for each in found.clusters],
        pending_snapshot=found.pending,
        last_snapshot_position=found.snapshot_at,
        last_snapshot_timestamp=found.snapshot_ms or None,
        last_snapshot_age_millis=found.age_ms,
        subscriptions=[
            ReplicatedSubscriptionState(
                subscription=each.name,
                mark_delete_position=each.acknowledged,
                told_position=each.told,
                next_snapshot_position=None,
                would_repeat_messages=each.would_repeat,
                reason=each.reason,
                places_elsewhere=dict(each.elsewhere),
            )
            for each in found.subscriptions
        ],
    )
    return as_json([msgspec.to_builtins(status)])


@documented(answer=dict[str, bool])
async def get_replicated(call: Call) -> Response:
    """Whether the subscription is replicated."""
    await _check_subscription(call)
    return as_json({str(call.topic): call.subscription in await _service(call).records.replicated(call.topic)})


@documented(body=bool)
async def set_replicated(call: Call) -> Response:
    """true or false: from now on the subscription's place follows it to the topic's other clusters, or does not."""
    await _check_subscription(call)
    replicated = truth("the body", await call.json())
    if replicated and not (await call.broker.namespaces.effective_of(call.topic)).replicated_subscriptions.enabled:
        raise NotAllowedError("replicated subscriptions are switched off: see enableReplicatedSubscriptions")
    await _service(call).records.set_replicated(call.topic, call.subscription, replicated)
    return done()


def _vector(document: object) -> Vector:
    try:
        return vector_from_json(document)
    except ValueError as error:
        raise BadRequestError(str(error)) from None


@documented(
    "What another cluster is told of a topic's segments here.",
    body=list[list[int]] | None,
    answer=ClusterPlaces,
    errors=(405,),
)
async def cluster_places(call: Call) -> Response:
    """Where the active segments end, or the places in the body; and whether `cluster` has everything before them."""
    body = await call.json()
    asked = None if body is None else _vector(body)
    places, arrived = await _service(call).cluster_requests.places(call.topic, call.params["cluster"], asked)
    return as_json({"places": vector_as_json(places), "arrived": arrived})


@documented(body=list[list[int]], query={"type": Literal["STREAM", "QUEUE"]})
async def follow_cluster(call: Call) -> Response:
    """A replicated subscription has acknowledged everything before these places of this cluster, in `cluster`. It follows, or is made."""
    cluster, subscription, kind = call.params["cluster"], call.subscription, _kind(call)
    safe = _vector(await call.json())
    check_storage(call.admin.storage)
    await _service(call).cluster_requests.follow(call.topic, cluster, subscription, kind, safe)
    return done()


# ---- Single segments: what the controller of a topic asks the brokers of its segments


def _own(call: Call) -> OwnSegments:
    return _service(call).segments.own


def _segment(call: Call) -> TopicName:
    """Raises InvalidTopicNameError."""
    if call.params["descriptor"] == LEGACY:
        return TopicName(PERSISTENT, call.topic.tenant, call.topic.namespace, call.topic.local_name)
    return TopicName.parse(f"{SEGMENT}://{call.namespace}/{call.topic.local_name}/{call.params['descriptor']}")


@documented("Create a segment, with cursors for the subscriptions that the body lists.", body=list[str] | None)
async def create_segment(call: Call) -> Response:
    name = _segment(call)
    body = await call.json()
    subscriptions = body if body is not None else []
    if not isinstance(subscriptions, list) or not all(isinstance(each, str) for each in subscriptions):
        raise BadRequestError('expected names of subscriptions: ["a", "b"]')
    subscriptions = [subscription_name(each) for each in subscriptions]
    await call.broker.namespaces.policies(name.namespace_name)
    check_storage(call.admin.storage)
    await _own(call).create(name, subscriptions)
    return done()


@documented(answer=str, query={"authoritative": bool})
async def segment_broker(call: Call) -> Response:
    """The broker that serves a segment. Where nobody does, it is placed as for a client's lookup."""
    found = await call.broker.lookup.find(_segment(call), call.flag("authoritative"))
    if found.redirect:
        return redirect(call.request, found.address, authoritative=found.authoritative)
    return as_json(found.address.broker_id)


@documented("Let a segment take no more messages.")
async def terminate_segment(call: Call) -> Response:
    await _own(call).terminate(_segment(call))
    return done()


@documented("Delete a segment with its messages.", query=FORCE)
async def delete_segment(call: Call) -> Response:
    await _own(call).delete(_segment(call), call.flag("force"))
    return done()


@documented("Rates, clients and backlog of a segment.", answer=SegmentStats)
async def own_segment_stats(call: Call) -> Response:
    return as_json(await _own(call).stats(_segment(call)))


@documented(answer=InternalStats)
async def segment_internal_stats(call: Call) -> Response:
    """A segment's ledgers and cursors."""
    return as_json(internal_stats(as_persistent(await call.broker.topics.get(_segment(call), create=False))))


@documented("Durable subscriptions of a segment.", answer=list[str])
async def segment_subscriptions(call: Call) -> Response:
    return as_json(await _own(call).subscriptions(_segment(call)))


@documented(query={"earliest": bool})
async def put_segment_subscription(call: Call) -> Response:
    """Create a subscription in a segment: from its first message on unless `earliest` is false."""
    await _own(call).subscribe(_segment(call), call.subscription, call.flag("earliest", True))
    return done()


@documented("Delete a subscription from a segment.")
async def delete_segment_subscription(call: Call) -> Response:
    await _own(call).unsubscribe(_segment(call), call.subscription)
    return done()


@documented("Entries of a segment that a subscription has not acknowledged.", answer=int)
async def backlog(call: Call) -> Response:
    return as_json(await _own(call).backlog(_segment(call), call.subscription))


@documented("Entries of a segment that other clusters have not got yet, by cluster.", answer=dict[str, int])
async def unsent(call: Call) -> Response:
    return as_json(await _own(call).unsent(_segment(call)))


@documented(
    "The end of a segment, how far other clusters have it, and how far its subscriptions are.", answer=SegmentPlaces
)
async def segment_places(call: Call) -> Response:
    return as_json((await _own(call).places(_segment(call))).as_json())


@documented(body=list[int] | None, query={"cluster": str})
async def follow_in_segment(call: Call) -> Response:
    """Another cluster has consumed everything before the position (ledger, entry) in the body, or everything of a sealed segment."""
    subscription, body = call.subscription, await call.json()
    if body is not None and not (isinstance(body, list) and len(body) == 2 and all(type(each) is int for each in body)):
        raise BadRequestError("expected ledger and entry: [1, 2], or null")
    upto = None if body is None else Position(*body)
    await _own(call).follow(_segment(call), subscription, call.query("cluster", ""), upto)
    return done()


@documented("Go to the first message published at or after `timestamp`.", query=_TIMESTAMP)
async def seek_segment(call: Call) -> Response:
    await _own(call).seek(_segment(call), call.subscription, call.query_number("timestamp", 0))
    return done()


@documented("Acknowledge everything in a segment.")
async def skip_segment(call: Call) -> Response:
    await _own(call).skip_all(_segment(call), call.subscription)
    return done()


_SCALABLE = f"{ADMIN}/scalable/{{tenant}}/{{namespace}}"
_TOPIC = f"{_SCALABLE}/{{topic}}"
_SUBSCRIPTION = f"{_TOPIC}/subscriptions/{{subscription}}"
_CLUSTER = f"{_TOPIC}/clusters/{{cluster}}"
_SEGMENT = f"{ADMIN}/segments/{{tenant}}/{{namespace}}/{{topic}}/{{descriptor}}"
_CURSOR = f"{_SEGMENT}/subscription/{{subscription}}"


def _route(method: str, path: str, access: Access, handler: Handler) -> Route:
    return Route(method, path, access, handler, {"domain": SCALABLE})


# As in Pulsar, layouts are changed by superusers; segments are the business of brokers, which are superusers.
ROUTES = (
    _route("GET", _SCALABLE, Access.NAMESPACE, names),
    _route("PUT", _TOPIC, Access.TENANT, create),
    _route("GET", _TOPIC, Access.LOOKUP, get),
    _route("DELETE", _TOPIC, Access.TENANT, delete),
    _route("GET", f"{_TOPIC}/stats", Access.LOOKUP, stats),
    _route("GET", f"{_TOPIC}/autoScalePolicy", Access.LOOKUP, get_policy),
    _route("POST", f"{_TOPIC}/autoScalePolicy", Access.TENANT, set_policy),
    _route("DELETE", f"{_TOPIC}/autoScalePolicy", Access.TENANT, remove_policy),
    _route("GET", f"{_TOPIC}/explain", Access.LOOKUP, explain),
    _route("POST", f"{_TOPIC}/split/{{segmentId}}", Access.SUPERUSER, split),
    _route("POST", f"{_TOPIC}/merge/{{segmentId1}}/{{segmentId2}}", Access.SUPERUSER, merge),
    _route("POST", f"{_TOPIC}/migrate", Access.SUPERUSER, migrate),
    _route("PUT", _SUBSCRIPTION, Access.CONSUME, put_subscription),
    _route("DELETE", _SUBSCRIPTION, Access.CONSUME, delete_subscription),
    _route("GET", f"{_TOPIC}/replicatedSubscriptions", Access.LOOKUP, replication_status),
    _route("GET", f"{_SUBSCRIPTION}/replicatedSubscriptionStatus", Access.CONSUME, get_replicated),
    _route("POST", f"{_SUBSCRIPTION}/replicatedSubscriptionStatus", Access.CONSUME, set_replicated),
    _route("POST", f"{_SUBSCRIPTION}/seek", Access.CONSUME, seek),
    _route("POST", f"{_SUBSCRIPTION}/skip-all", Access.CONSUME, skip_all),
    _route("GET", f"{_TOPIC}/segments/{{segmentId}}/stats", Access.LOOKUP, segment_stats),
    _route("POST", f"{_TOPIC}/segments/{{segmentId}}/subscription/{{subscription}}/drained", Access.SUPERUSER, drained),
    _route("POST", f"{_CLUSTER}/places", Access.REPLICATE, cluster_places),
    _route("POST", f"{_CLUSTER}/subscriptions/{{subscription}}", Access.REPLICATE, follow_cluster),
    _route("PUT", _SEGMENT, Access.SUPERUSER, create_segment),
    _route("GET", f"{_SEGMENT}/broker", Access.SUPERUSER, segment_broker),
    _route("POST", f"{_SEGMENT}/terminate", Access.SUPERUSER, terminate_segment),
    _route("DELETE", _SEGMENT, Access.SUPERUSER, delete_segment),
    _route("GET", f"{_SEGMENT}/stats", Access.SUPERUSER, own_segment_stats),
    _route("GET", f"{_SEGMENT}/unsent", Access.SUPERUSER, unsent),
    _route("GET", f"{_SEGMENT}/internalStats", Access.LOOKUP, segment_internal_stats),
    _route("GET", f"{_SEGMENT}/subscriptions", Access.SUPERUSER, segment_subscriptions),
    _route("PUT", _CURSOR, Access.SUPERUSER, put_segment_subscription),
    _route("DELETE", _CURSOR, Access.SUPERUSER, delete_segment_subscription),
    _route("GET", f"{_CURSOR}/backlog", Access.SUPERUSER, backlog),
    _route("GET", f"{_SEGMENT}/places", Access.SUPERUSER, segment_places),
    _route("POST", f"{_CURSOR}/follow", Access.SUPERUSER, follow_in_segment),
    _route("POST", f"{_CURSOR}/seek", Access.SUPERUSER, seek_segment),
    _route("POST", f"{_CURSOR}/skip-all", Access.SUPERUSER, skip_segment),
)
