"""Numbered rows into a scalable topic: each to the segment of its key's hash, also when segments split and merge in the middle.

A row is in the topic if the segment that has its place on the ring now, or one that had it before, holds its number or a higher one of the
same producer name: the rows of a range are sent in the order of their numbers. So a repeated task leaves out what is there, whatever
became of the segments.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

import pulsar

from magnetar.client.scalable.layout import Layout, Segment, hash_of, place_of
from magnetar.pipeline.connect.errors import TopicMissingError, WriteError
from magnetar.pipeline.connect.options import WriteOptions
from magnetar.pipeline.connect.raw.connection import RECONNECT_WAIT_S, RawConnectionError, is_supported
from magnetar.pipeline.connect.segments.lane import Row, SealedError, SegmentLane, open_producer
from magnetar.pipeline.connect.segments.layout_watch import LayoutWatch
from magnetar.wire.pulsar.PulsarApi_pb2 import ServerError

LAYOUT_TIMEOUT_S: Final = 60.0
"""From the moment that a segment takes no more messages to the layout that says which others do."""
KNOWN_MAX: Final = 10_000
"""Last numbers of sealed segments that a process remembers."""

_sealed: dict[tuple[str, str, str], int] = {}
"""By service URL, segment and producer name: these do not change any more."""


def create_topic(options: WriteOptions, topic: str) -> None:
    """Unless it is there, and where its namespace allows that. Raises WriteError."""
    SegmentSender(options, "", pulsar.schema.BytesSchema(), topic).close()


class SegmentSender:
    """One task's producers of one scalable topic. Raises WriteError."""

    def __init__(self, options: WriteOptions, name: str, schema: pulsar.schema.Schema, topic: str) -> None:
        if not is_supported(options.connection):
            raise WriteError(f"{topic}: a scalable topic is written with a token, with TLS or without authentication")
        self._options = options
        self._name = name
        self._schema = schema
        self._topic = topic
        self._patience_s = (options.send_timeout_ms or options.connection.operation_timeout_ms) / 1000
        self._watch = LayoutWatch(options.connection, topic, create=True)
        self._layout = self._asked()
        self._lanes: dict[int, SegmentLane] = {}
        self._before: dict[int, list[tuple[Segment, int]]] = {}
        """By segment, those that had a part of its range before, each with the last number that it holds."""

    def send(self, content: bytes | None, fields: dict[str, Any]) -> None:
        """As `Sender` gives it: with `sequence_id`, `partition_key`, `properties` and `event_timestamp`."""
        key, sequence = fields["partition_key"], fields["sequence_id"]
        key_hash = None if key is None else hash_of(key)
        # A row without a key has a place as well, which a repeated task finds again.
        at = hash_of(str(sequence)) if key_hash is None else key_hash
        self._add(Row(sequence, at, key_hash, content, fields))

    def finish(self) -> None:
        """Until the broker has all of it."""
        while True:
            try:
                for lane in list(self._lanes.values()):
                    lane.finish()
                return
            except SealedError:
                self._follow()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._watch.close()

    # ---- Routing

    def _add(self, row: Row) -> None:
        while True:
            try:
                lane = self._lane(self._layout.at(row.place))
                if self._is_there(lane.segment, row) or row.sequence <= lane.last():
                    return
                lane.make_room(row)
            except SealedError:
                self._follow()
                continue
            lane.add(row)
            return

    def _lane(self, segment: Segment) -> SegmentLane:
        if segment.id not in self._lanes:
            self._lanes[segment.id] = SegmentLane(self._options, self._name, self._schema, segment, self._patience_s)
            former = [self._layout.segments[each] for each in self._layout.ancestors(segment.id)]
            self._before[segment.id] = [
                (each, self._last_of(each))
                for each in former
                if each.start <= segment.end and each.end >= segment.start
            ]
        return self._lanes[segment.id]

    def _is_there(self, segment: Segment, row: Row) -> bool:
        place = place_of(row.place)
        return any(row.sequence <= last and each.start <= place <= each.end for each, last in self._before[segment.id])

    def _follow(self) -> None:
        """A segment takes no more messages: what is not known to be stored goes, in its order, to those that do."""
        sealed: set[int] = set()
        for lane in self._lanes.values():
            with suppress(SealedError):
                lane.settle()
                continue
            sealed.add(lane.segment.id)
        self._layout = self._settled(sealed)
        left: list[Row] = []
        for number in [each for each in self._lanes if not self._is_active(each)]:
            lane = self._lanes.pop(number)
            del self._before[number]
            lane.close()
            last = self._last_of(lane.segment)
            left += [row for row in lane.unconfirmed() if row.sequence > last]
        for row in sorted(left, key=lambda each: each.sequence):
            self._add(row)

    def _is_active(self, number: int) -> bool:
        segment = self._layout.segments.get(number)
        return segment is not None and segment.active

    def _settled(self, sealed: set[int]) -> Layout:
        """The layout that has others in the place of these; it may follow in a moment."""
        give_up_s = time.monotonic() + LAYOUT_TIMEOUT_S
        while True:
            self._layout = self._asked()
            if not any(self._is_active(number) for number in sealed):
                return self._layout
            if time.monotonic() >= give_up_s:
                raise WriteError(
                    f"{self._topic}: segments {sorted(sealed)} take no more messages, and no others have their ranges after "
                    f"{LAYOUT_TIMEOUT_S:.0f} s; look at `magnetar scalable-topics explain {self._topic}`"
                )
            time.sleep(RECONNECT_WAIT_S)

    def _asked(self) -> Layout:
        give_up_s = time.monotonic() + self._patience_s
        while True:
            try:
                return self._watch.layout()
            except TopicMissingError as error:
                raise WriteError(str(error)) from error
            except RawConnectionError as error:
                if time.monotonic() >= give_up_s:
                    raise WriteError(f"{self._topic}: its layout cannot be asked for: {error}") from error
                time.sleep(RECONNECT_WAIT_S)

    def _last_of(self, segment: Segment) -> int:
        """The highest number of this producer name in a sealed segment; -1 where that cannot be known: it is deleted, or nothing is
        deduplicated, or the broker is not magnetar's."""
        key = (self._options.connection.service_url, segment.topic, self._name)
        if key not in _sealed:
            found = self._ask_last(segment.topic)
            if len(_sealed) >= KNOWN_MAX:
                _sealed.clear()
            _sealed[key] = found
        return _sealed[key]

    def _ask_last(self, topic: str) -> int:
        give_up_s = time.monotonic() + self._patience_s
        while True:
            try:
                held, answer = open_producer(self._options, self._name, None, topic, asks_only=True)
                held.close()
                return int(answer.last_sequence_id)
            except RawConnectionError as error:
                if error.code in (ServerError.TopicTerminatedError, ServerError.TopicNotFound):
                    return -1
                if time.monotonic() >= give_up_s:
                    raise WriteError(f"{topic}: what it holds cannot be asked for: {error}") from error
                time.sleep(RECONNECT_WAIT_S)
