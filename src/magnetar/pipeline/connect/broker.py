"""Topics, partitions and ends as the broker tells them through the official client. One client per process and connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import pulsar

from magnetar.pipeline.connect.admin_rest import AdminRest
from magnetar.pipeline.connect.continuity import Verdict, closed, verdict
from magnetar.pipeline.connect.errors import (
    AdminUnreachableError,
    DataLossError,
    OffsetError,
    ReadStalledError,
    TopicMissingError,
    TopicReplacedError,
)
from magnetar.pipeline.connect.offsets import EARLIEST, Offsets, Position
from magnetar.pipeline.connect.options import Connection, ReadOptions, Times, full_name
from magnetar.pipeline.connect.raw_connection import RawConnectionError, connect, is_supported
from magnetar.pipeline.connect.topic_end import TopicEnd

END_TIMEOUT_MS: Final = 30_000
"""For the last message of a topic, which the broker has said is there."""

TOPIC_WAIT_S: Final = 1.0
"""Between two looks for a topic that is waited for."""

RECONNECT_WAIT_S: Final = 0.2
"""Between two attempts to reach a broker."""

T = TypeVar("T")

_clients: dict[Connection, pulsar.Client] = {}
_lock = threading.Lock()


def shared_client(connection: Connection) -> pulsar.Client:
    """Kept until the process ends: Spark uses its Python workers again, and connecting costs more than a small task."""
    with _lock:
        if connection not in _clients:
            _clients[connection] = open_client(connection)
        return _clients[connection]


def open_client(connection: Connection) -> pulsar.Client:
    options: dict[str, Any] = {
        "operation_timeout_seconds": max(connection.operation_timeout_ms // 1000, 1),
        # The console logger writes to stdout, into what commands print.
        "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"),
        "tls_allow_insecure_connection": connection.tls_allow_insecure,
        "tls_validate_hostname": connection.tls_validate_hostname,
    }
    tuned = {
        "connection_timeout_ms": connection.connection_timeout_ms,
        "io_threads": connection.io_threads,
        "listener_name": connection.listener_name,
    }
    options |= {name: value for name, value in tuned.items() if value is not None}
    if connection.tls_trust_certs:
        options["tls_trust_certs_file_path"] = connection.tls_trust_certs
    if connection.auth_plugin:
        options["authentication"] = _authentication(connection.auth_plugin, connection.auth_params or "")
    return pulsar.Client(connection.service_url, **options)


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


def is_transient(error: BaseException) -> bool:
    """Whether it says that a broker cannot be reached, or does not have the topic yet, and nothing about what it was asked."""
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


class Topics:
    """What the driver's side has to know before it can plan."""

    __slots__ = ("_client", "_closed", "_ends", "_keeps_ends", "_known", "_options", "_tails", "_there", "admin")

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
        self.admin = AdminRest(options.connection) if options.connection.admin_url else None

    def partitions(self) -> list[str]:
        """Full names of all partitions of all topics of the options, as they are now."""
        names: Iterable[str] = self._options.topics
        if self._options.pattern is not None and self.admin is not None:
            names = self.admin.matching_topics(self._options.pattern)
        return sorted(part for name in names for part in self._partitions_of(name))

    def check_there(self) -> None:
        """Raises TopicMissingError for a topic of the options that does not exist, before something opens it: a broker that creates topics
        would make an empty one of a misspelt name."""
        if self._options.wait_for_topics or not is_supported(self._options.connection):
            return
        with suppress(RawConnectionError):  # the official client's errors say what is wrong
            connection, _ = connect(self._options.connection)
            try:
                missing = [topic for topic in self._options.topics if not connection.exists(topic)]
            finally:
                connection.close()
            if missing:
                raise TopicMissingError(
                    f"topic does not exist: {', '.join(missing)}; correct the name, or create it first (magnetar topics create)"
                )

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
        if self._keeps_ends and is_supported(self._options.connection):
            with suppress(RawConnectionError):  # the official client's errors say what is wrong
                at = self.kept_end(topic).ask()
                if at is not None and at < self._known.get(topic, EARLIEST):
                    raise TopicReplacedError(_replaced(topic, self._known[topic], at))
                if at is not None or topic in self._known:
                    self._known[topic] = max(at or EARLIEST, self._known.get(topic, EARLIEST))
                    return self._known[topic]
            self._known[topic] = max(self._end_by_client(topic), self._known.get(topic, EARLIEST))
            return self._known[topic]
        return self._end_by_client(topic)

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
        for end in self._ends.values():
            end.close()
        self._ends.clear()
        for reader, _ in self._tails.values():
            reader.close()
        self._tails.clear()

    def ends(self, topics: Iterable[str]) -> Offsets:
        return {topic: self.end(topic) for topic in topics}

    def first(self, topic: str) -> Position | None:
        """Of the first message that is still there; None when there is none."""
        return self._first_of(open_reader(self._client, topic, EARLIEST, 1), topic)

    def at_time(self, topic: str, time_ms: int) -> Position:
        """Of the first message published at or after a time, else the end."""
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
            whole = topic.rpartition("-partition-")[0] or topic
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
        named = {} if isinstance(wanted, str) else {full_name(topic): value for topic, value in wanted.items()}
        found: Offsets = {}
        used = {name for topic in among for name in (topic, topic.rpartition("-partition-")[0])}
        for topic in topics:
            whole = topic.rpartition("-partition-")[0] or topic
            key = topic if topic in named else whole
            used.add(key)
            value = wanted if isinstance(wanted, str) else named.get(key, default)
            if isinstance(value, Position) and key != topic:
                raise OffsetError(f"{option}: {key} has partitions; give a position for each, such as {topic}")
            found[topic] = value if isinstance(value, Position) else self.end(topic) if value == "latest" else EARLIEST
        if unknown := sorted(set(named) - used):
            raise OffsetError(f"{option} names a topic that is not read: {unknown[0]}; read are: {', '.join(topics)}")
        return found

    def check_loss(self, starts: Mapping[str, Position]) -> Offsets:
        """The same positions, moved up to what is still there; DataLossError unless failOnDataLoss=false."""
        found = dict(starts)
        for topic, start in starts.items():
            judged = "whole" if start <= EARLIEST or self._is_held() else self._judge(topic, start)
            if judged == "whole":
                continue
            first = self.first(topic)
            if first is None or first.ledger <= start.ledger:
                continue
            if self._options.fail_on_data_loss:
                raise DataLossError(_loss(topic, start, first, judged == "lost", self.admin is not None))
            found[topic] = first
        return found

    def check_replaced(self, starts: Mapping[str, Position], ends: Mapping[str, Position]) -> None:
        """Raises TopicReplacedError for a topic that ends before the position that reading is to go on at. A topic without messages has
        no end that could tell."""
        for topic, end in ends.items():
            if EARLIEST < end < starts.get(topic, EARLIEST):
                raise TopicReplacedError(_replaced(topic, starts[topic], end))

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
                raise DataLossError(_loss(topic, start, first, True, self.admin is not None))

    def _is_held(self) -> bool:
        """Whether a subscription keeps what is not read."""
        return self._options.subscription is not None or self._options.held_by is not None

    def _judge(self, topic: str, start: Position) -> Verdict:
        if self.admin is None:
            return "lost" if start.batch else "unknown"
        ledgers = self.admin.ledgers(topic)
        known = self._closed.get(topic, {}).get(start.ledger)
        self._closed[topic] = closed(ledgers) | ({} if known is None else {start.ledger: known})
        return verdict(start, ledgers, known)


def _replaced(topic: str, start: Position, end: Position) -> str:
    return (
        f"{topic}: reading was to go on at {start.document()}, but the topic ends at {end.document()}: it was deleted and made again, or "
        "its storage was set back, and its messages are others than those that were read. To read it from its start, set "
        "failOnDataLoss=false for a pipeline's source and run it again (what its views hold stays); another query begins with a new "
        "checkpoint. To keep what was read apart from what is new, give the new topic another name"
    )


def _loss(topic: str, start: Position, first: Position, is_sure: bool, has_admin: bool) -> str:
    what = (
        "what lay between was deleted"
        if is_sure
        else "its ledger was deleted, and whether there was more in it cannot be told"
    )
    look = "" if is_sure or has_admin else " (a running query can tell, with admin.url)"
    return (
        f"{topic}: reading was to go on at {start.document()}, but {what}{look}; the first message there is {first.document()}. Keep "
        "ledgers until they are read, with retention or predefinedSubscription, or set failOnDataLoss=false to go on there"
    )


def _next(reader: pulsar.Reader, topic: str) -> pulsar.Message:
    try:
        return reader.read_next(END_TIMEOUT_MS)
    except pulsar.Timeout:
        raise ReadStalledError(f"{topic}: the broker announced a message and did not deliver it") from None


def _authentication(plugin: str, params: str) -> pulsar.Authentication:
    name = plugin.rpartition(".")[2].lower()
    if "token" in name:
        value = params.removeprefix("token:")
        if params.startswith("file:"):
            path = params.removeprefix("file:").removeprefix("//")
            return pulsar.AuthenticationToken(lambda: open(path, encoding="utf-8").read().strip())
        return pulsar.AuthenticationToken(value)
    if name == "authenticationtls":
        pairs = dict(pair.split(":", 1) for pair in params.split(","))
        return pulsar.AuthenticationTLS(pairs["tlsCertFile"], pairs["tlsKeyFile"])
    return pulsar.Authentication(plugin, params)
