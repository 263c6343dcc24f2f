"""Traced messages on their way into a topic: each is an entry that goes by itself, and whose operation tells how it ended."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError, client_text
from magnetar.bookkeeper.ports import WatchedRun
from magnetar.broker.dispatch.entry_metadata import from_message_metadata
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.publish import PublishOp
from magnetar.broker.topics.registry import AnyTopic
from magnetar.broker.topics.replicated_publish import ReplicatedOp
from magnetar.broker.topics.transactions import TransactionPublishOp
from magnetar.broker.tracing.following import TopicFollower
from magnetar.broker.tracing.trace import Kind, Trace
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

Told = Callable[[PublishOp, MagnetarError | None, int, int], None]


class _Traced(PublishOp):
    """Tells how it ended, before its receipt leaves. The classes below have the slot: of several bases only one may have any."""

    __slots__ = ()

    told: Told

    def done(self, error: MagnetarError | None, ledger_id: int, entry_id: int, count: int) -> None:
        self.told(self, error, ledger_id, entry_id)
        super().done(error, ledger_id, entry_id, count)


class TracedOp(_Traced):
    __slots__ = ("told",)


class TracedReplicatedOp(_Traced, ReplicatedOp):
    __slots__ = ("told",)


class TracedTransactionOp(_Traced, TransactionPublishOp):
    __slots__ = ("told",)


class TraceOnlyOp(PublishOp):
    """Answered like a message, counted nowhere."""

    marker = True

    __slots__ = ()


def watched(trace: Trace, data: bytes) -> list[bytes]:
    """The entry as a run whose copies are watched."""
    return WatchedRun([data], trace)


def telling(trace: Trace, topic: AnyTopic, metadata: MessageMetadata, payload_bytes: int, clock: Clock) -> Told:
    """What the operation of a traced message tells: the trace goes on with what subscriptions do."""
    slot = from_message_metadata(metadata, payload_bytes).slot

    def told(op: PublishOp, error: MagnetarError | None, ledger_id: int, entry_id: int) -> None:
        trace.complete = error is not None or op.deduplicated or not isinstance(topic, PersistentTopic)
        if error is not None:
            trace.note(Kind.REFUSED, client_text(error))
        elif op.deduplicated:
            trace.note(Kind.REPEATED, "deduplication: the topic has it already")
        elif not isinstance(topic, PersistentTopic):
            trace.note(Kind.PASSED_ON, "the topic is not persistent: to the consumers that can take it now")
        else:
            trace.position = Position(ledger_id, entry_id)
            trace.note(Kind.STORED, f"message {ledger_id}:{entry_id}")
            follower_of(topic, clock).follow(trace, trace.position, slot)

    return told


def follower_of(topic: PersistentTopic, clock: Clock) -> TopicFollower:
    """The topic keeps it, so that it ends with the topic."""
    follower = topic.follower
    if not isinstance(follower, TopicFollower):
        follower = topic.follower = TopicFollower(topic, clock)
    return follower
