"""Commands of scalable topics over a raw connection."""

from __future__ import annotations

from typing import Any

from magnetar.wire.pulsar import PulsarApi_pb2 as pb
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.raw import RawClient


class ScalableClient(RawClient):
    """Answers and pushes are returned as the message inside the command."""

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__(port, **options)
        self._sessions: set[int] = set()

    def layout(self, topic: str, session_id: int | None = None, **fields: Any) -> pb.CommandScalableTopicUpdate:
        """SCALABLE_TOPIC_LOOKUP and its answer; what other sessions are pushed meanwhile is passed over.

        With `session_id` the layout is watched from now on. An answer is known by nothing but that number, so that of a session which is
        there already could be a layout that was pushed to it before: each is asked once, and closed at once where none is named.
        """
        watched = session_id is not None
        session_id = max(self._sessions, default=0) + 1 if session_id is None else session_id
        assert session_id not in self._sessions, f"session {session_id} was asked for before"
        self._sessions.add(session_id)
        request = {"topic": topic, "session_id": session_id, **fields}
        self.send(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP, scalableTopicLookup=request))
        while True:
            answer = self.pushed_layout()
            if answer.session_id == session_id:
                break
        if not watched:
            self.send(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE, scalableTopicClose={"session_id": session_id}))
        return answer

    def pushed_layout(self) -> pb.CommandScalableTopicUpdate:
        return self.until(BaseCommand.SCALABLE_TOPIC_UPDATE).scalableTopicUpdate

    def consume(
        self, topic: str, name: str, consumer_id: int = 1, subscription: str = "s", kind: str = "STREAM"
    ) -> pb.CommandScalableTopicSubscribeResponse:
        """SCALABLE_TOPIC_SUBSCRIBE and its answer."""
        request = {
            "topic": topic,
            "subscription": subscription,
            "consumer_name": name,
            "consumer_id": consumer_id,
            "consumer_type": kind,
            "request_id": self.request_id(),
        }
        self.send(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE, scalableTopicSubscribe=request))
        return self.until(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE).scalableTopicSubscribeResponse

    def assigned(self) -> list[int]:
        """The segments of the next SCALABLE_TOPIC_ASSIGNMENT_UPDATE."""
        pushed = self.until(BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE).scalableTopicAssignmentUpdate
        return [each.segment_id for each in pushed.assignment.segments]

    def leave(self, consumer_id: int = 1) -> None:
        """SCALABLE_TOPIC_UNSUBSCRIBE."""
        request = {"consumer_id": consumer_id, "request_id": self.request_id()}
        self.send(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE, scalableTopicUnsubscribe=request))
        self.until(BaseCommand.SUCCESS)

    def watch(self, namespace: str, watch_id: int = 1, **fields: Any) -> None:
        """WATCH_SCALABLE_TOPICS."""
        request = {"namespace": namespace, "watch_id": watch_id, **fields}
        self.send(BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS, watchScalableTopics=request))

    def listed(self) -> pb.CommandWatchScalableTopicsUpdate:
        return self.until(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE).watchScalableTopicsUpdate


def segments_of(update: pb.CommandScalableTopicUpdate) -> dict[int, tuple[int, int, str]]:
    """(first hash, last hash, state) by segment."""
    return {
        each.segment_id: (each.hash_start, each.hash_end, pb.SegmentState.Name(each.state))
        for each in update.dag.segments
    }
