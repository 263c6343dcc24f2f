"""Sources as a driver sees them: rows as a stream or a range, positions, and the broker told of what is finished."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import functions as F

from magnetar.pipeline.connect.acknowledge import Acknowledger
from magnetar.pipeline.connect.broker import Topics, patiently
from magnetar.pipeline.connect.errors import TopicReplacedError
from magnetar.pipeline.connect.offsets import EARLIEST, Position, from_document, to_document, total_lag
from magnetar.pipeline.connect.options import ReadOptions, read_options
from magnetar.pipeline.connect.reading.columns import schema_for
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.source.dead_letters import DeadLetters
from magnetar.pipeline.views.source.frame import decode, raw_columns
from magnetar.pipeline.views.source.native_rows import NativeRows, json_messages
from magnetar.pipeline.views.source.options import reader_options, sends_dead_letters
from magnetar.pipeline.views.source.tail import Tail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

SOURCE: Final = "_source"
"""Which source a row of the one query is from, where there are several."""

_OWN: Final = ("startingoffsets", "startingtime", "predefinedsubscription", "subscriptionprefix")
"""Options that say where a pipeline begins and what it tells the broker; the manifest does so afterwards."""

Positions = Mapping[str, Any]
"""Offsets of a source as its manifest holds them."""


class Sources(Protocol):
    """Where the rows of a pipeline come from."""

    def positions(self, source: CreateSource, known: Positions | None) -> dict[str, Any]:
        """Where reading goes on: `known`, and what has come since at its beginning; without `known` where the options say."""
        ...

    def stream(
        self, spark: SparkSession, sources: Mapping[str, CreateSource], start: Mapping[str, Positions]
    ) -> DataFrame:
        """All sources as one stream, in this order, from these positions; with SOURCE when there are several."""
        ...

    def range(self, spark: SparkSession, source: CreateSource, start: Positions, end: Positions) -> DataFrame:
        """The rows between two positions of a source, as `decoded` takes them."""
        ...

    def decoded(self, raw: DataFrame, source: CreateSource, counted: Observation | str | None = None) -> DataFrame:
        """A source's rows of a batch of the stream: its columns, `_row_id` and `_change`. `counted` as in `decode`."""
        ...

    def dead_letters(self, raw: DataFrame, source: CreateSource) -> DeadLetters | None:
        """What sends the messages of a batch that are left out to where they belong; None for a source of which none is sent."""
        ...

    def acknowledge(self, source: CreateSource, positions: Positions) -> None:
        """Everything before them is finished for good."""
        ...

    def tail(self, sources: Mapping[str, CreateSource]) -> Tail | None:
        """What says where the sources end, for a driver that reads ranges of them; None where only `stream` does."""
        ...

    def reading(self, source: CreateSource) -> tuple[ReadOptions, StructType]:
        """How a task reads a range of a source that has a tail, and the columns that `decoded` takes."""
        ...

    def native(self, source: CreateSource, names: Mapping[str, str]) -> NativeRows | None:
        """How tasks read a source that has a tail by themselves, its columns under other `names`; None where Spark has to."""
        ...

    def close(self) -> None: ...


class TopicSources:
    """Topics of a broker. A source without a subscription of its own gets `magnetar-PIPELINE-SOURCE`: what is not read is kept for it."""

    def __init__(self, pipeline: str, former_names: Mapping[str, str] | None = None) -> None:
        """`former_names`: by source that was renamed, the name by which its subscription is called."""
        self._pipeline = pipeline
        self._former_names = former_names or {}
        self._acknowledgers: dict[str, Acknowledger] = {}

    def positions(self, source: CreateSource, known: Positions | None) -> dict[str, Any]:
        topics = Topics(self._options(source))
        try:
            if source.is_written:  # which makes its topic
                self.acknowledge(source, to_document(dict.fromkeys(topics.partitions(), EARLIEST)))
            if known is None:
                return to_document(topics.begin("latest"))
            names = topics.partitions()
            goes_on = from_document(known)
            for name in set(names) & set(goes_on):
                try:
                    topics.check_replaced(goes_on, {name: topics.end(name)})
                except TopicReplacedError:
                    if self._options(source).fail_on_data_loss:
                        raise
                    goes_on[name] = EARLIEST
            return to_document(topics.goes_on(goes_on))
        finally:
            topics.close()

    def stream(
        self, spark: SparkSession, sources: Mapping[str, CreateSource], start: Mapping[str, Positions]
    ) -> DataFrame:
        needed = {column for source in sources.values() for column in raw_columns(source)}
        schema = schema_for(needed)
        frames = []
        for name, source in sources.items():
            options = {"startingOffsets": json.dumps(start[name]) if start[name] else "earliest"}
            reader = spark.readStream.format("magnetar").schema(schema)
            held = {"heldBySubscription": self._subscription(source)}
            frame = reader.options(**self._reading(source), **options, **held).load()
            frames.append(frame.withColumn(SOURCE, F.lit(name)) if len(sources) > 1 else frame)
        return reduce(lambda left, right: left.unionByName(right), frames)

    def range(self, spark: SparkSession, source: CreateSource, start: Positions, end: Positions) -> DataFrame:
        schema = schema_for(raw_columns(source))
        options = {"startingOffsets": json.dumps(dict(start)), "endingOffsets": json.dumps(dict(end))}
        reader = spark.read.format("magnetar").schema(schema)
        return reader.options(**self._reading(source), **options).load()

    def decoded(self, raw: DataFrame, source: CreateSource, counted: Observation | str | None = None) -> DataFrame:
        return decode(raw, source, counted)

    def dead_letters(self, raw: DataFrame, source: CreateSource) -> DeadLetters | None:
        if not sends_dead_letters(source):
            return None
        return DeadLetters(self._pipeline, source, self._subscription(source), raw)

    def tail(self, sources: Mapping[str, CreateSource]) -> Tail | None:
        return Tail({name: self.reading(source) for name, source in sources.items()})

    def reading(self, source: CreateSource) -> tuple[ReadOptions, StructType]:
        held = {"heldBySubscription": self._subscription(source)}
        return read_options(self._reading(source) | held), schema_for(raw_columns(source))

    def native(self, source: CreateSource, names: Mapping[str, str]) -> NativeRows | None:
        return None if sends_dead_letters(source) else json_messages(source, self.reading(source)[0], names)

    def acknowledge(self, source: CreateSource, positions: Positions) -> None:
        if source.name not in self._acknowledgers:
            connection = self._options(source).connection
            self._acknowledgers[source.name] = Acknowledger(connection, self._subscription(source))
        at = from_document(positions)
        if source.is_written:
            at = dict.fromkeys(
                at, EARLIEST
            )  # its topic is the table, so all of it is held: views can be built again from it
        finished = partial(self._acknowledgers[source.name].acknowledge, at)
        patiently(self._options(source), finished)

    def close(self) -> None:
        for acknowledger in self._acknowledgers.values():
            acknowledger.close()
        self._acknowledgers.clear()

    def _subscription(self, source: CreateSource) -> str:
        return self._options(source).subscription or self._own_subscription(source.name)

    def _own_subscription(self, name: str) -> str:
        return f"magnetar-{self._pipeline}-{self._former_names.get(name, name)}"

    def _options(self, source: CreateSource) -> ReadOptions:
        return read_options(reader_options(source))

    def _reading(self, source: CreateSource) -> dict[str, str]:
        return {name: value for name, value in reader_options(source).items() if name.lower() not in _OWN}


def entries_behind(ledgers: Sequence[tuple[int, int]], at: Position) -> int:
    """Of (ledger, entries), those at or behind a position."""
    behind = 0
    for ledger, entries in ledgers:
        if ledger > at.ledger:
            behind += entries
        elif ledger == at.ledger:
            behind += max(entries - max(at.entry, 0), 0)
    return behind


class Lag:
    """Asks the brokers, from any thread. Exact with `admin.url`; without it None while the end lies in a later ledger."""

    def __init__(self, sources: Mapping[str, CreateSource]) -> None:
        self._lock = threading.Lock()
        self._topics = {name: Topics(read_options(reader_options(source))) for name, source in sources.items()}

    def by_source(self, positions: Mapping[str, Any]) -> dict[str, int | None]:
        """`positions` as a manifest's `sources`. None where it cannot be told. Raises what the client and the admin API raise."""
        with self._lock:
            return {
                name: total_lag(
                    _behind(topics, topic, at if isinstance(at, Position) else EARLIEST)
                    for topic, at in topics.unread(from_document(positions.get(name, {}))).items()
                )
                for name, topics in self._topics.items()
            }

    def close(self) -> None:
        with self._lock:
            for topics in self._topics.values():
                topics.close()


def _behind(topics: Topics, topic: str, at: Position) -> int | None:
    sizes = topics.ledger_sizes(topic)
    if sizes is not None:
        return entries_behind([(each.ledger, each.entries) for each in sizes], at)
    end = topics.end(topic)
    if end <= at:
        return 0
    return end.entry - max(at.entry, 0) if end.ledger == at.ledger else None
