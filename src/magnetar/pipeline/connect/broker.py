"""Topics, partitions and ends as the broker tells them through the official client. One client per process and connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import pulsar

from magnetar.client.scalable.layout import Layout
from magnetar.pipeline.connect import segment_order
from magnetar.pipeline.connect.admin_rest import AdminRest, LedgerSize
from magnetar.pipeline.connect.client_options import open_client
from magnetar.pipeline.connect.continuity import Verdict, closed, loss_text, replaced_text, verdict
from magnetar.pipeline.connect.errors import (
    AdminRequestError,
    AdminUnreachableError,
    DataLossError,
    OffsetError,
    OptionError,
    ReadStalledError,
    TopicMissingError,
    TopicReplacedError,
)
from magnetar.pipeline.connect.offsets import EARLIEST, Offsets, Position
from magnetar.pipeline.connect.options import Connection, ReadOptions, Times, offset_name
from magnetar.pipeline.connect.raw.connection import RECONNECT_WAIT_S, RawConnectionError, connect, is_supported
from magnetar.pipeline.connect.raw.topic_end import Told, TopicEnd
from magnetar.pipeline.connect.segment_order import is_scalable, is_segment, whole_topic
from magnetar.pipeline.connect.segments.layout_watch import LayoutWatch
from magnetar.pipeline.connect.segments.reads import first_message
from magnetar.wire.pulsar.PulsarApi_pb2 import ServerError

END_TIMEOUT_MS: Final = 30_000
"""For the last message of a topic, which the broker has said is there."""

TOPIC_WAIT_S: Final = 1.0
"""Between two looks for a topic that is waited for."""

T = TypeVar("T")

_clients: dict[Connection, pulsar.Client] = {}
_lock = threading.Lock()


def shared_client(connection: Connection) -> pulsar.Client:
    """Kept until the process ends: Spark uses its Python workers again, and connecting costs more than a small task."""
    with _lock:
        if connection not in _clients:
            _clients[connection] = open_client(connection)
        return _clients[connection]


def id_position(message_id: Any) -> Position:
    """Of the message with this id; the client says -1 for the batch index of a message that is not in a batch."""
    return Position(message_id.ledger_id(), message_id.entry_id(), max(message_id.batch_index(), 0))


def open_reader(client: pulsar.Client, topic: str, start: Position, queue: int = 1000) -> pulsar.Reader:
    """A reader whose first message is the first one at or behind `start`."""
    at = pulsar.MessageId.earliest if start <= EARLIEST else pulsar.MessageId(-1, *start)
    return client.create_reader(topic, at, receiver_queue_size=queue, start_message_id_inclusive=True)


_TRANSIENT: Final = (
    pulsar.BrokerMetadataError,
    pulsar.BrokerPersistenceError,
    pulsar.ConnectError,
    pulsar.LookupError,
    pulsar.NotConnected,
    pulsar.ServiceUnitNotReady,
    pulsar.Timeout,
    pulsar.TooManyLookupRequestException,
    AdminUnreachableError,
)


_REFUSED: Final = (
    ServerError.AuthenticationError,
    ServerError.AuthorizationError,
    ServerError.InvalidTopicName,
    ServerError.NotAllowedError,
)


def is_transient(error: BaseException) -> bool:
    """Whether it says that a broker cannot be reached, or does not have the topic yet, and nothing about what it was asked."""
    if isinstance(error, RawConnectionError):
        return error.code not in _REFUSED
    return isinstance(error, _TRANSIENT)


def patiently(options: ReadOptions, ask: Callable[[], T]) -> T:
    """What `ask` gives once brokers answer: a broker that is started again does not end a query. `ask` may be called several times.

    Raises ReadStalledError when no broker answers for pollTimeoutMs, and at once whatever waiting does not mend.
    """
    give_up_s = time.monotonic() + options.poll_timeout_ms / 1000
    while True:
        try:
            return ask()
        except Exception as error:
            if not is_transient(error):
                raise
            if time.monotonic() >= give_up_s:
                raise ReadStalledError(
                    f"no broker answers at {options.connection.service_url} within pollTimeoutMs={options.poll_timeout_ms}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            time.sleep(RECONNECT_WAIT_S)


class Goal(NamedTuple):
    """Where a query that ends by itself ends. `layouts`: of the scalable topics when that was fixed."""

    ends: Offsets
    layouts: tuple[Layout, ...] = ()


class Topics:
    """What the driver's side has to know before it can plan."""

    __slots__ = (
        "_client",
        "_closed",
        "_ends",
        "_final",
        "_keeps_ends",
        "_known",
        "_layouts",
        "_options",
        "_tails",
        "_there",
        "_watches",
        "admin",
    )

    def __init__(self, options: ReadOptions, *, keeps_ends: bool = False) -> None:
        """`keeps_ends`: with a connection of its own to the end of each topic, for who asks many times a second."""
        self._options = options
        self._keeps_ends = keeps_ends
        self._client = shared_client(options.connection)
        self._tails: dict[str, tuple[pulsar.Reader, Position]] = {}
        self._ends: dict[str, TopicEnd] = {}
        self._known: dict[str, Position] = {}
        """By topic, the end as it was seen last."""
        self._closed: dict[str, dict[int, int]] = {}
        """By topic, entries of its closed ledgers when the admin API was asked last."""
        self._there: set[str] = set()
        """Topics without partitions that were waited for."""
        self._watches: dict[str, LayoutWatch] = {}
        self._layouts: dict[str, Layout] = {}
        """Of scalable topics, as they were when partitions were asked for last."""
        self._final: Offsets = {}
        """Ends of sealed segments, which stay."""
        self.admin = AdminRest(options.connection) if options.connection.admin_url else None

    def partitions(self, *, create: bool = True) -> list[str]:
        """Full names of all partitions of all topics of the options, as they are now. Of a scalable topic the segments, sealed ones too;
        without `create` one that is not there has none."""
        names: Iterable[str] = self._options.topics
        if self._options.pattern is not None and self.admin is not None:
            names = self.admin.matching_topics(self._options.pattern)
        found = [part for name in names if not is_scalable(name) for part in self._partitions_of(name)]
        for name in filter(is_scalable, names):
            try:
                found += [each.topic for each in self._follow(name, create).segments.values()]
            except TopicMissingError:
                if create:
                    raise
        return sorted(found)

    def _follow(self, topic: str, create: bool) -> Layout:
        """The layout of a scalable topic. Raises TopicMissingError, unless the topic is waited for."""
        if not is_supported(self._options.connection):
            raise OptionError(f"{topic}: a scalable topic is read with a token, with TLS or without authentication")
        waits = self._options.wait_for_topics
        if topic not in self._watches:
            self._watches[topic] = LayoutWatch(self._options.connection, topic, create=create and not waits)
        while True:
            try:
                self._layouts[topic] = self._watches[topic].layout()
                return self._layouts[topic]
            except TopicMissingError:
                self._final.clear()  # another topic of that name has segments of the same names
                if not create:
                    del self._watches[topic]
                if not waits or not create:
                    raise
                time.sleep(TOPIC_WAIT_S)

    def _of_classic_topics(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not any(self._has(layout, name) for layout in self._layouts.values())]

    @staticmethod
    def _has(layout: Layout, name: str) -> bool:
        return any(each.topic == name for each in layout.segments.values())

    def check_there(self) -> None:
        """Raises TopicMissingError for a topic of the options that does not exist, before something opens it: a broker that creates topics
        would make an empty one of a misspelt name."""
        if self._options.wait_for_topics or not is_supported(self._options.connection):
            return
        with suppress(RawConnectionError):  # the official client's errors say what is wrong
            connection, _ = connect(self._options.connection)
            try:
                classic = [topic for topic in self._options.topics if not is_scalable(topic)]
                missing = [topic for topic in classic if not connection.exists(topic)]
            finally:
                connection.close()
            if missing:
                raise TopicMissingError(
                    f"topic does not exist: {', '.join(missing)}; correct the name, or create it first (magnetar topics create)"
                )
        for topic in filter(is_scalable, self._options.topics):
            watch = LayoutWatch(self._options.connection, topic, create=False)
            try:
                patiently(self._options, watch.layout)
            finally:
                watch.close()

    def _partitions_of(self, topic: str) -> list[str]:
        while True:
            try:
                found: list[str] = self._client.get_topic_partitions(topic)
                if self._options.wait_for_topics and found == [topic] and topic not in self._there:
                    # A broker that creates no topics calls one that is not there unpartitioned, and says so when it is opened.
                    # Created between the two requests it may have partitions, which the first one could not name, and which
                    # a broker says by refusing to open the topic itself.
                    refused: pulsar.NotAllowedError | None = None
                    try:
                        open_reader(self._client, topic, EARLIEST, 1).close()
                    except pulsar.NotAllowedError as error:
                        refused = error
                    found = self._client.get_topic_partitions(topic)
                    if refused is not None and found == [topic]:
                        raise refused
                    self._there.add(topic)
                return found
            except pulsar.TopicNotFound:  # nothing else is waited for: a wrong credential would never end
                if not self._options.wait_for_topics:
                    raise
                time.sleep(TOPIC_WAIT_S)

    def end(self, topic: str) -> Position:
        """Behind the entry of the last message; EARLIEST when there is none. Costs one request while nothing is added, and always with
        `keeps_ends`."""
        if is_segment(topic):
            return self._end_of_segment(topic)
        if self._keeps_ends and is_supported(self._options.connection):
            with suppress(RawConnectionError):  # the official client's errors say what is wrong
                at = self.kept_end(topic).ask()
                if at is not None and at < self._known.get(topic, EARLIEST):
                    raise TopicReplacedError(replaced_text(topic, self._known[topic], at))
                if at is not None or topic in self._known:
                    self._known[topic] = max(at or EARLIEST, self._known.get(topic, EARLIEST))
                    return self._known[topic]
            self._known[topic] = max(self._end_by_client(topic), self._known.get(topic, EARLIEST))
            return self._known[topic]
        return self._end_by_client(topic)

    def _end_of_segment(self, topic: str) -> Position:
        """The official client does not open segments."""
        sealed = any(
            each.topic == topic and not each.active
            for layout in self._layouts.values()
            for each in layout.segments.values()
        )
        if sealed and topic in self._final:
            return self._final[topic]
        found = self.kept_end(topic).ask() or EARLIEST
        self._final.pop(topic, None)
        if sealed:
            self._final[topic] = found
            self._ends.pop(topic).close()
        return found

    def told_by(self, topics: Iterable[str]) -> list[Told]:
        """What tells when something is added to these, or a scalable topic has other segments. Raises RawConnectionError."""
        layouts = self._layouts.values()
        there = {each.topic: each.active for layout in layouts for each in layout.segments.values()}
        kept: list[Told] = [
            self.kept_end(topic)
            for topic in topics
            if there.get(topic, not any(segment_order.belongs_to(layout, topic) for layout in layouts))
        ]
        return [*kept, *self._watches.values()]

    def kept_end(self, topic: str) -> TopicEnd:
        """The connection that is asked for a topic's end, and tells when something is added. For who `is_supported`."""
        if topic not in self._ends:
            self._ends[topic] = TopicEnd(self._options.connection, topic)
        return self._ends[topic]

    def _end_by_client(self, topic: str) -> Position:
        held = self._tails.get(topic)
        if held is not None:
            if not held[0].has_message_available():
                return held[1]
            held[0].close()
            del self._tails[topic]
        reader = self._client.create_reader(
            topic, pulsar.MessageId.latest, receiver_queue_size=1, start_message_id_inclusive=True
        )
        last = held[1] if held is not None else EARLIEST
        try:
            while reader.has_message_available():
                at = id_position(_next(reader, topic).message_id())
                last = max(last, Position(at.ledger, at.entry + 1))
        except BaseException:
            reader.close()
            raise
        self._tails[topic] = (reader, last)
        return last

    def close(self) -> None:
        """What is open at the ends of topics; the client is the process's."""
        told: list[Told] = [*self._ends.values(), *self._watches.values()]
        for end in told:
            end.close()
        self._ends.clear()
        self._watches.clear()
        for reader, _ in self._tails.values():
            reader.close()
        self._tails.clear()

    def ends(self, topics: Iterable[str]) -> Offsets:
        return {topic: self.end(topic) for topic in topics}

    def begin(self, default: str) -> Offsets:
        """Where a stream begins, by the options or else at `default`: of scalable topics the segments that may be read first."""
        names = self.partitions()
        if not self._layouts:
            return self.starts(names, default)
        found = self.starts(self._of_classic_topics(names), default, names)
        given = self._options.starting if isinstance(self._options.starting, dict) else {}
        named = {offset_name(name): at for name, at in given.items()}
        for layout in self._layouts.values():
            # A segment that is gone keeps its place: whether all of it was read is asked when reading goes on.
            kept = {
                name: at if isinstance(at, Position) else self.end(name) if at == "latest" else EARLIEST
                for name, at in named.items()
                if name not in self._layouts and (isinstance(at, Position) or self._has(layout, name))
            }
            found |= segment_order.begin(
                layout, kept, lambda name: self.starts([name], default, (*names, *named))[name], self.end
            )
        return found

    def goes_on(self, starts: Offsets) -> Offsets:
        """The same positions with what has come since at its beginning: partitions, and segments that may be read now."""
        names = self.partitions()
        found = {name: EARLIEST for name in self._of_classic_topics(names)} | starts
        for layout in self._layouts.values():
            self._check_gone(layout, starts)
            found = segment_order.with_children(layout, segment_order.without_gone(layout, found), self.end)
        return found

    def released_ends(self, starts: Offsets) -> Offsets:
        """Where the topics end that may be read from `starts` on. Raises DataLossError for a segment that was deleted before all of it was
        read."""
        names = self.partitions()
        if not self._layouts:
            return self.ends(names)
        found = self.ends(self._of_classic_topics(names))
        for layout in self._layouts.values():
            self._check_gone(layout, starts)
            found |= segment_order.released(layout, starts, self.end)
        return found

    def ends_as_planned(self, starts: Offsets, goal: Goal) -> Offsets:
        """The same by a goal."""
        if not goal.layouts:
            return goal.ends
        segments = {each.topic for layout in goal.layouts for each in layout.segments.values()}
        found = {name: end for name, end in goal.ends.items() if name not in segments}
        for layout in goal.layouts:
            self._check_gone(layout, starts)
            found |= segment_order.released(layout, starts, goal.ends.__getitem__)
        return found

    def goal(self) -> Goal:
        """All that is there now."""
        names = self.partitions()
        return Goal(self.ends(names), tuple(self._layouts.values()))

    def within(self, names: Iterable[str]) -> list[str]:
        """Those of which a batch read may take anything, by the segments that startingOffsets and endingOffsets name. Raises DataLossError
        for a segment that was deleted."""
        first = self._options.starting if isinstance(self._options.starting, dict) else {}
        last = self._options.ending if isinstance(self._options.ending, dict) else {}
        starts, ends = ({offset_name(name): at for name, at in each.items()} for each in (first, last))
        left = set(names)
        for layout in self._layouts.values():
            left -= segment_order.outside(layout, starts, ends)
            for name, at in starts.items():
                gone = segment_order.belongs_to(layout, name) and not self._has(layout, name)
                if gone and isinstance(at, Position) and at > EARLIEST and ends.get(name) != at:
                    self._is_gone(name, at)
        return sorted(left)

    def closed_by(self, offsets: Offsets, goal: Goal | None = None) -> Offsets:
        """Offsets as they are written down: with the segments that come next, and without those that were deleted."""
        for layout in self._layouts.values() if goal is None else goal.layouts:
            end = self.end if goal is None else goal.ends.__getitem__
            offsets = segment_order.with_children(layout, segment_order.without_gone(layout, offsets), end)
        return offsets

    def _check_gone(self, layout: Layout, starts: Offsets) -> None:
        if self._is_held():
            return  # a segment goes when every subscription has all of it
        for name in segment_order.unproven(layout, starts):
            if starts[name] < self._final.get(name, Position(2**63, 0)):
                self._is_gone(name, starts[name])

    def _is_gone(self, segment: str, at: Position) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{segment}: reading was to go on at {at.document()}, but the segment was deleted, and whether there was more in it "
                "cannot be told. Keep segments until they are read, with retention or predefinedSubscription, or set "
                "failOnDataLoss=false to go on with the segments that followed it"
            )

    def ledger_sizes(self, topic: str) -> list[LedgerSize] | None:
        """By the admin API, in order; None where it is not asked, or does not say it of segments, as Apache's does not."""
        if self.admin is None or not is_segment(topic):
            return None if self.admin is None else self.admin.ledger_sizes(topic)
        try:
            return self.admin.ledger_sizes(topic)
        except AdminUnreachableError:
            raise
        except AdminRequestError:
            return None

    def unread(self, starts: Offsets) -> Offsets:
        """Where what is not read begins, by partition and segment, also of segments that wait for their ancestors."""
        if not any(map(is_scalable, self._options.topics)):
            return starts
        self.partitions()
        found = starts
        for layout in self._layouts.values():
            found = segment_order.unread(layout, segment_order.without_gone(layout, found))
        return found

    def first(self, topic: str) -> Position | None:
        """Of the first message that is still there; None when there is none."""
        if is_segment(topic):
            return first_message(self._options, topic)
        return self._first_of(open_reader(self._client, topic, EARLIEST, 1), topic)

    def at_time(self, topic: str, time_ms: int) -> Position:
        """Of the first message published at or after a time, else the end."""
        if is_segment(topic):
            return first_message(self._options, topic, time_ms) or self.end(topic)
        reader = open_reader(self._client, topic, EARLIEST, 1)
        try:
            reader.seek(time_ms)
        except BaseException:
            reader.close()
            raise
        return self._first_of(reader, topic, time_ms) or self.end(topic)

    def at_times(self, topics: Iterable[str], times: Times, default: str) -> Offsets:
        """Where these times are; a topic that has none begins or ends at `default`, `earliest` or `latest`."""
        found: Offsets = {}
        for topic in topics:
            whole = whole_topic(topic)
            at = times if isinstance(times, int) else times.get(topic, times.get(whole))
            if at is not None:
                found[topic] = self.at_time(topic, at)
            else:
                found[topic] = self.end(topic) if default == "latest" else EARLIEST
        return found

    def _first_of(self, reader: pulsar.Reader, topic: str, time_ms: int = 0) -> Position | None:
        try:
            while reader.has_message_available():
                message = _next(reader, topic)
                if message.publish_timestamp() >= time_ms:
                    return id_position(message.message_id())
            return None
        finally:
            reader.close()

    def starts(self, topics: Iterable[str], default: str, among: Iterable[str] = ()) -> Offsets:
        """Where reading begins, by startingOffsets or startingTime, else by `default`: earliest or latest."""
        topics = list(topics)
        if self._options.starting_time_ms is not None:
            return self.at_times(topics, self._options.starting_time_ms, default)
        return self.resolve(topics, self._options.starting or default, "startingOffsets", default, among)

    def resolve(
        self,
        topics: Iterable[str],
        wanted: str | Mapping[str, Position | str],
        option: str,
        default: str,
        among: Iterable[str] = (),
    ) -> Offsets:
        """Words become positions; a JSON offset may name a partition, or a topic for all of its partitions.

        `among`: topics that it may name as well.
        """
        topics = list(topics)
        named = {} if isinstance(wanted, str) else {offset_name(topic): value for topic, value in wanted.items()}
        found: Offsets = {}
        used = {name for topic in among for name in (topic, whole_topic(topic))}
        for topic in topics:
            whole = whole_topic(topic)
            key = topic if topic in named else whole
            used.add(key)
            value = wanted if isinstance(wanted, str) else named.get(key, default)
            if isinstance(value, Position) and key != topic:
                parts = "segments" if is_segment(topic) else "partitions"
                raise OffsetError(f"{option}: {key} has {parts}; give a position for each, such as {topic}")
            found[topic] = value if isinstance(value, Position) else self.end(topic) if value == "latest" else EARLIEST
        used |= {name for name in named if any(segment_order.belongs_to(each, name) for each in self._layouts.values())}
        if unknown := sorted(set(named) - used):
            raise OffsetError(f"{option} names a topic that is not read: {unknown[0]}; read are: {', '.join(topics)}")
        return found

    def check_loss(self, starts: Mapping[str, Position]) -> Offsets:
        """The same positions, moved up to what is still there; DataLossError unless failOnDataLoss=false."""
        found = dict(starts)
        if any(map(is_segment, starts)) and not self._layouts:
            self.partitions()
        for topic, start in starts.items():
            if any(
                segment_order.belongs_to(each, topic) and not self._has(each, topic) for each in self._layouts.values()
            ):
                continue  # a segment that was deleted: `_check_gone` says whether that was too early
            judged = "whole" if start <= EARLIEST or self._is_held() else self._judge(topic, start)
            if judged == "whole":
                continue
            first = self.first(topic)
            if first is None or first.ledger <= start.ledger:
                continue
            if self._options.fail_on_data_loss:
                raise DataLossError(loss_text(topic, start, first, judged == "lost", self.admin is not None))
            found[topic] = first
        return found

    def check_replaced(self, starts: Mapping[str, Position], ends: Mapping[str, Position]) -> None:
        """Raises TopicReplacedError for a topic that ends before the position that reading is to go on at. A topic without messages has
        no end that could tell."""
        for topic, end in ends.items():
            if EARLIEST < end < starts.get(topic, EARLIEST):
                raise TopicReplacedError(replaced_text(topic, starts[topic], end))

    def check_seen(
        self, starts: Mapping[str, Position], seen: Mapping[str, Position], ends: Mapping[str, Position]
    ) -> None:
        """Raises DataLossError for a topic whose messages up to `seen`, its end when it was asked last, were not read and went with
        their ledgers: as when it is deleted and made again. Asks only where the end lies in another ledger by now."""
        for topic, end in ends.items():
            start, last = starts.get(topic, EARLIEST), seen.get(topic, EARLIEST)
            if not self._options.fail_on_data_loss or not EARLIEST < start < last or end.ledger <= last.ledger:
                continue
            first = self.first(topic)
            if first is not None and first.ledger > last.ledger:
                raise DataLossError(loss_text(topic, start, first, True, self.admin is not None))

    def _is_held(self) -> bool:
        """Whether a subscription keeps what is not read."""
        return self._options.subscription is not None or self._options.held_by is not None

    def _judge(self, topic: str, start: Position) -> Verdict:
        sizes = self.ledger_sizes(topic)
        if sizes is None:
            return "lost" if start.batch else "unknown"
        ledgers = [(each.ledger, each.entries) for each in sizes]
        known = self._closed.get(topic, {}).get(start.ledger)
        self._closed[topic] = closed(ledgers) | ({} if known is None else {start.ledger: known})
        return verdict(start, ledgers, known)


def _next(reader: pulsar.Reader, topic: str) -> pulsar.Message:
    try:
        return reader.read_next(END_TIMEOUT_MS)
    except pulsar.Timeout:
        raise ReadStalledError(f"{topic}: the broker announced a message and did not deliver it") from None
