"""Commands of scalable topics (PIP-460): layouts and namespaces that are followed, and consumers at a topic's controller.

A client first looks `topic://` up (LOOKUP), then asks here for the layout, which is pushed again whenever it changes. Messages go to the
segments by PRODUCER and SUBSCRIBE like any others.
"""

from __future__ import annotations

import asyncio
import logging

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.base.limits import SCALABLE_WATCHES_PER_CONNECTION_MAX
from magnetar.base.tasks import REPORTED
from magnetar.broker.connection.context import topics_hash
from magnetar.broker.connection.refusals import refusal
from magnetar.broker.connection.session import Session, Watch
from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.naming import SCALABLE, NamespaceName, TopicName, cursor_name, subscription_name
from magnetar.broker.scalable.controller import FINISH_FIRST_S, TopicController
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.broker.scalable.records import CHECKPOINT, STREAM
from magnetar.broker.scalable.segments import segment_name
from magnetar.broker.scalable.service import LayoutView
from magnetar.wire.pulsar import PulsarApi_pb2 as pb
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

logger = logging.getLogger(__name__)

NAMESPACE_COALESCED_S = 0.05
"""Changes of a namespace's topics within this time are told together."""

_LAYOUT, _CONSUMER, _NAMESPACE = "layout", "scalable consumer", "scalable topics"


def _check(session: Session, key: tuple[str, int]) -> None:
    """Raises NotAllowedError where scalable topics are switched off, or the connection has too many watches."""
    if not session.context.config.settings.scalable_topics_enabled:
        raise NotAllowedError("scalable topics are switched off on this server (scalableTopicsEnabled)")
    if len(session.watches) >= SCALABLE_WATCHES_PER_CONNECTION_MAX and key not in session.watches:
        raise NotAllowedError(f"more than {SCALABLE_WATCHES_PER_CONNECTION_MAX} watches on one connection")


def _end(session: Session, key: tuple[str, int]) -> Watch | None:
    watch = session.watches.pop(key, None)
    if watch is not None:
        watch.end()
    return watch


def _begin(session: Session, key: tuple[str, int], watch: Watch) -> None:
    """A client that gives a number once more begins anew with it."""
    _end(session, key)
    session.watches[key] = watch


def _refuse(session: Session, command: BaseCommand, error: Exception) -> None:
    if not isinstance(error, MagnetarError):
        logger.error("request of a scalable topic failed address=%s", session.address, exc_info=error)
    session.write(refusal(command, error, session.client_version))


# ---- Layouts


def lookup(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.spawn(_lookup(session, command), "scalable topic lookup")


async def _lookup(session: Session, command: BaseCommand) -> None:
    request = command.scalableTopicLookup
    key = (_LAYOUT, request.session_id)
    try:
        _check(session, key)
        name = TopicName.parse(request.topic, scalable=True)
        watch = LayoutWatch(session, command, TopicName(SCALABLE, name.tenant, name.namespace, name.local_name))
        _begin(session, key, watch)
        view = await session.context.scalable.resolve(name, request.create_if_missing)
    except Exception as error:
        _end(session, key)
        _refuse(session, command, error)
        return
    watch.changed(view)


def close_lookup(session: Session, command: BaseCommand, rest: bytes) -> None:
    _end(session, (_LAYOUT, command.scalableTopicClose.session_id))


class LayoutWatch:
    """The layout of one topic, pushed whenever it is another one."""

    def __init__(self, session: Session, command: BaseCommand, topic: TopicName) -> None:
        self._session = session
        self._command = command
        self._session_id = command.scalableTopicLookup.session_id
        self._told: pb.ScalableTopicDAG | None = None
        self._synthetic = False
        self._unlisten = session.context.scalable.listen(topic, self.changed)

    def end(self) -> None:
        self._unlisten()

    def changed(self, view: LayoutView | None) -> None:
        if self._session.closed:
            return
        if view is None:
            if self._told is not None and not self._synthetic:
                self._session.watches.pop((_LAYOUT, self._session_id), None)
                self.end()
                _refuse(self._session, self._command, TopicNotFoundError("the scalable topic was deleted"))
            return
        self._synthetic = view.synthetic
        dag = layout_message(view)
        if dag == self._told:
            return
        self._told = dag
        answer = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
        update = answer.scalableTopicUpdate
        update.session_id = self._session_id
        update.resolved_topic_name = str(view.topic)
        update.dag.CopyFrom(dag)
        self._session.write(commands.frame(answer))


def layout_message(view: LayoutView) -> pb.ScalableTopicDAG:
    """The layout as clients read it, with both addresses of every broker that is known."""
    dag = pb.ScalableTopicDAG(epoch=view.layout.epoch)
    for number in sorted(view.layout.segments):
        segment = view.layout.segments[number]
        told = dag.segments.add(
            segment_id=segment.id,
            hash_start=segment.start,
            hash_end=segment.end,
            state=pb.ACTIVE if segment.active else pb.SEALED,
            parent_ids=segment.parents,
            child_ids=segment.children,
            created_at_epoch=segment.created_epoch,
            created_at_ms=segment.created_ms,
            entry_bucket_splits=segment.bucket_splits,
        )
        if not segment.active:
            told.sealed_at_epoch, told.sealed_at_ms = segment.sealed_epoch, segment.sealed_ms
        if segment.legacy_topic is not None:
            told.legacy_topic_name = segment.legacy_topic
    for number, broker in view.brokers.items():
        address = dag.segment_brokers.add(segment_id=number, broker_url=broker.service_url)
        if broker.service_url_tls:
            address.broker_url_tls = broker.service_url_tls
    if view.controller is not None:
        dag.controller_broker_url = view.controller.service_url
        if view.controller.service_url_tls:
            dag.controller_broker_url_tls = view.controller.service_url_tls
    return dag


# ---- Consumers


def subscribe(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.spawn(_subscribe(session, command), "scalable topic subscribe")


async def _subscribe(session: Session, command: BaseCommand) -> None:
    request = command.scalableTopicSubscribe
    key = (_CONSUMER, request.consumer_id)
    try:
        _check(session, key)
        name = TopicName.parse(request.topic, scalable=True)
        topic = TopicName(SCALABLE, name.tenant, name.namespace, name.local_name)
        subscription, consumer = subscription_name(request.subscription), cursor_name(request.consumer_name)
        controller = await session.context.scalable.controller(topic)
        link = ScalableConsumer(session, request.request_id, request.consumer_id, topic, controller)
        kind = CHECKPOINT if request.consumer_type == pb.CHECKPOINT else STREAM
        await controller.subscribe(subscription, kind, consumer, link)
    except Exception as error:
        _refuse(session, command, error)
        return
    if session.closed:
        controller.left(link)
        return
    session.watches[key] = link


def unsubscribe(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.scalableTopicUnsubscribe
    session.request(
        _unsubscribe(session, request.consumer_id, request.request_id), request.request_id, "scalable topic unsubscribe"
    )


async def _unsubscribe(session: Session, consumer_id: int, request_id: int) -> None:
    """May be repeated: a consumer that is not known has left."""
    link = session.watches.pop((_CONSUMER, consumer_id), None)
    if isinstance(link, ScalableConsumer):
        await link.controller.unsubscribe(consumer_id, link)
    session.write(commands.success(request_id))


class ScalableConsumer:
    """Implements `ConsumerLink`. Its first assignment is the answer to its request."""

    def __init__(
        self, session: Session, request_id: int, consumer_id: int, topic: TopicName, controller: TopicController
    ) -> None:
        self._session = session
        self._request_id = request_id
        self._consumer_id = consumer_id
        self._topic = topic
        self._answered = False
        self.controller = controller

    @property
    def consumer_id(self) -> int:
        return self._consumer_id

    def assigned(self, layout: SegmentLayout, segment_ids: tuple[int, ...]) -> None:
        if self._session.closed:
            return
        assignment = assignment_message(self._topic, layout, segment_ids)
        if self._answered:
            answer = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
            answer.scalableTopicAssignmentUpdate.consumer_id = self._consumer_id
            answer.scalableTopicAssignmentUpdate.assignment.CopyFrom(assignment)
        else:
            answer = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
            answer.scalableTopicSubscribeResponse.request_id = self._request_id
            answer.scalableTopicSubscribeResponse.assignment.CopyFrom(assignment)
        self._answered = True
        self._session.write(commands.frame(answer))

    def disconnect(self) -> None:
        self._session.close("the controller of a scalable topic has changed")

    def end(self) -> None:
        self.controller.left(self)


def assignment_message(
    topic: TopicName, layout: SegmentLayout, segment_ids: tuple[int, ...]
) -> pb.ScalableConsumerAssignment:
    """Without bucket ranges: each segment is its consumer's alone."""
    assignment = pb.ScalableConsumerAssignment(layout_epoch=layout.epoch)
    for number in segment_ids:
        segment = layout.segments[number]
        assignment.segments.add(
            segment_id=number,
            hash_start=segment.start,
            hash_end=segment.end,
            segment_topic=str(segment_name(topic, segment)),
        )
    return assignment


# ---- Topics of a namespace


def watch_namespace(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.spawn(_watch_namespace(session, command), "watch scalable topics")


async def _watch_namespace(session: Session, command: BaseCommand) -> None:
    request = command.watchScalableTopics
    key = (_NAMESPACE, request.watch_id)
    try:
        _check(session, key)
        watch = NamespaceWatch(session, command)
        _begin(session, key, watch)
        await watch.tell_all()
    except Exception as error:
        _end(session, key)
        _refuse(session, command, error)


def close_namespace_watch(session: Session, command: BaseCommand, rest: bytes) -> None:
    _end(session, (_NAMESPACE, command.watchScalableTopicsClose.watch_id))


class NamespaceWatch:
    """The scalable topics of a namespace that have certain properties: all of them at first, then what comes and goes."""

    def __init__(self, session: Session, command: BaseCommand) -> None:
        request = command.watchScalableTopics
        self._session = session
        self._watch_id = request.watch_id
        self._namespace = NamespaceName.parse(request.namespace)
        self._properties = {pair.key: pair.value for pair in request.property_filters}
        self._hash = request.current_hash
        self._told: set[str] = set()
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._telling = asyncio.Lock()
        self._unlisten = session.context.scalable.listen_to_namespace(self._namespace, self._changed)

    def end(self) -> None:
        self._ended = True
        self._unlisten()
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self) -> None:
        self._tell_in(NAMESPACE_COALESCED_S)

    def _tell_in(self, pause_s: float) -> None:
        if self._timer is None and not self._ended:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._session.closed:
            self._session.context.scope.spawn(self._tell_changes(), "scalable topics changed", REPORTED)

    async def _names(self) -> set[str]:
        context = self._session.context
        await context.namespaces.policies(self._namespace)
        return set(await context.scalable.records.names(self._namespace, self._properties))

    async def tell_all(self) -> None:
        """Nothing is said to a client that knows the list already."""
        async with self._telling:
            self._told = await self._names()
            listed = sorted(self._told)
            if self._hash and self._hash == topics_hash([",".join(listed).encode()]):
                return
            answer, update = self._update()
            update.snapshot.topics.extend(listed)
            update.snapshot.SetInParent()
            self._session.write(commands.frame(answer))

    async def _tell_changes(self) -> None:
        async with self._telling:
            try:
                names = await self._names()
            except MetadataError as error:
                logger.info("scalable topics not listed yet namespace=%s error=%s", self._namespace, error)
                self._tell_in(FINISH_FIRST_S)
                return
            if self._ended:
                return
            removed, added = sorted(self._told - names), sorted(names - self._told)
            if not removed and not added:
                return
            self._told = names
            answer, update = self._update()
            update.diff.removed.extend(removed)
            update.diff.added.extend(added)
            self._session.write(commands.frame(answer))

    def _update(self) -> tuple[BaseCommand, pb.CommandWatchScalableTopicsUpdate]:
        answer = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        answer.watchScalableTopicsUpdate.watch_id = self._watch_id
        return answer, answer.watchScalableTopicsUpdate
