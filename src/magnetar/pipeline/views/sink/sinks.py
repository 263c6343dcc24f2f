"""Committed changelogs into topics, each change once.

What a manifest has committed is delivered from its changelog files, epoch by epoch: a crash at any point delivers the same files again,
under the same producer names and numbers, and the broker drops what it has. The position of a sink is part of the next manifest.
A sink's `writer` makes its producer names its own: a pipeline or sink that is created anew begins to number anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

import polars as pl
import pulsar

from magnetar.pipeline.connect.broker import shared_client
from magnetar.pipeline.connect.errors import SinkError
from magnetar.pipeline.connect.segment_order import is_scalable
from magnetar.pipeline.connect.segments.sender import create_topic
from magnetar.pipeline.connect.writing.deduplication import ensure_deduplication
from magnetar.pipeline.connect.writing.sender import Sender, sequence_id
from magnetar.pipeline.operators.changelog import CHANGE, INSERT
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.state.table import as_frame
from magnetar.pipeline.views.changelog_files import ChangelogFile, read_changes, write_changes
from magnetar.pipeline.views.scan.batch import pieces, rows_of_vnodes
from magnetar.pipeline.views.sink.messages import MessageMaker, SinkMessage
from magnetar.pipeline.views.sink.options import Sink

LOG: Final = logging.getLogger(__name__)

PRODUCER: Final = "producer"
"""In a position, of a sink that was renamed: the name that its producers began with."""

Positions = Mapping[str, Any]
"""By sink: `epoch` is the last one delivered, `writer` what its producers are called by, `snapshot` whether its view's first rows are still
to be delivered. As a manifest's `sinks` holds it."""
Changelogs = Mapping[str, Any]
"""By view: `[{"epoch": e, "files": [{"path", "unit", "rows"}]}]`. As a manifest's `changelogs` holds it."""


def new_position(epoch: int, *, snapshot: bool = False) -> dict[str, Any]:
    """Of a sink that is sent what changes after `epoch`, and with `snapshot` what there was by then. It has to be committed in a manifest,
    with the snapshot's files, before anything is delivered."""
    return {"epoch": epoch, "writer": uuid4().hex[:12], **({SNAPSHOT: True} if snapshot else {})}


def undelivered(changelogs: Changelogs, sinks: Sequence[Sink], positions: Positions) -> dict[str, list[Any]]:
    """The changelogs that some sink still needs: those to keep in the next manifest."""
    least: dict[str, int] = {}
    for sink in sinks:
        epoch = int(positions[sink.name]["epoch"])
        least[sink.view] = min(least.get(sink.view, epoch), epoch)
    kept = {
        view: [each for each in changelogs.get(view, []) if int(each["epoch"]) > epoch] for view, epoch in least.items()
    }
    for sink in sinks:
        if positions[sink.name].get(SNAPSHOT):
            kept[changelog_name(sink.name)] = list(changelogs.get(changelog_name(sink.name), []))
    return {view: found for view, found in kept.items() if found}


class SinkDelivery:
    """The open producers of one driver. `files`: the pipeline's directory, in which the changelog files lie."""

    def __init__(self, pipeline: str, files: StateFiles) -> None:
        self._pipeline = pipeline
        self._files = files
        self._outlets: dict[str, _Outlet] = {}
        self.warnings: dict[str, str] = {}
        """By sink: why its topic may get a change more than once."""

    def __enter__(self) -> SinkDelivery:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def deliver(self, sinks: Sequence[Sink], changelogs: Changelogs, positions: Positions) -> dict[str, Any]:
        """Send what is committed and not delivered; the positions for the next manifest's `sinks`.

        Returns once the broker has all of it. Raises SinkError, WriteError, DamagedStateError; then call it again with the same
        arguments, in this process or another.
        """
        found = dict(positions)
        for sink in sinks:
            position = positions.get(sink.name)
            if position is None:
                raise SinkError(
                    f"sink {sink.name} has no committed position: give it new_position() when it is created"
                )
            if position.get(SNAPSHOT):
                for snapshot in changelogs.get(changelog_name(sink.name), []):
                    self._outlet(sink, position).deliver_snapshot(snapshot["files"])
                position = {name: value for name, value in position.items() if name != SNAPSHOT}
                found[sink.name] = position
            for epoch in sorted(changelogs.get(sink.view, []), key=lambda each: int(each["epoch"])):
                if int(epoch["epoch"]) > int(found[sink.name]["epoch"]):
                    self._outlet(sink, position).deliver(int(epoch["epoch"]), epoch["files"])
                    found[sink.name] = {**position, "epoch": int(epoch["epoch"])}
        return found

    def forget(self, sink: str) -> None:
        """Close the producers of a sink that was dropped."""
        outlet = self._outlets.pop(sink, None)
        if outlet is not None:
            outlet.close()

    def close(self) -> None:
        for name in list(self._outlets):
            self.forget(name)

    def _outlet(self, sink: Sink, position: Mapping[str, Any]) -> _Outlet:
        if sink.name not in self._outlets:
            called = position.get(PRODUCER, sink.name)
            outlet = _Outlet(f"magnetar-{self._pipeline}-{called}-{position['writer']}", sink, self._files)
            if outlet.warning is not None:
                self.warnings[sink.name] = outlet.warning
                LOG.warning("sink %s: %s", sink.name, outlet.warning)
            self._outlets[sink.name] = outlet
        return self._outlets[sink.name]


class _Outlet:
    """One sink's producers, one a unit: a unit's file has its rows in one order, files of several units have none."""

    def __init__(self, name: str, sink: Sink, files: StateFiles) -> None:
        self._name = name
        self._sink = sink
        self._files = files
        self._maker = MessageMaker(sink)
        self._senders: dict[int, Sender] = {}
        assert sink.write.topic is not None
        partitions = self._prepare(sink.write.topic)
        self.warning = ensure_deduplication(sink.write.connection, sink.write.topic, partitions)

    def deliver(self, epoch: int, files: Sequence[Mapping[str, Any]]) -> None:
        """An epoch is there as a whole before the next begins, so that the order of a key's changes outlives a rescale."""
        numbers: dict[int, int] = {}
        for file in files:
            unit = int(file["unit"])
            numbers[unit] = self._send(epoch, unit, file, numbers.get(unit, 0))
        for unit in numbers:
            self._senders[unit].finish()

    def deliver_snapshot(self, files: Sequence[Mapping[str, Any]]) -> None:
        """Before all epochs, by a producer of its own that numbers from 1 on: of rows there may be more than an epoch has numbers."""
        sender = Sender(self._sink.write, f"{self._name}-{SNAPSHOT}", self._maker.schema)
        try:
            number = 0
            for file in files:
                for message in self._messages(file):
                    number += 1
                    sender.send(number, message.value, message.key, None, message.event_time_ms, message.properties)
            sender.finish()
        finally:
            sender.close()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()

    def _send(self, epoch: int, unit: int, file: Mapping[str, Any], row: int) -> int:
        """The number behind the last row of a file whose first one has the number `row`."""
        if unit not in self._senders:
            self._senders[unit] = Sender(self._sink.write, f"{self._name}-{unit}", self._maker.schema)
        sender = self._senders[unit]
        for message in self._messages(file):
            number = sequence_id(epoch, row)
            sender.send(number, message.value, message.key, None, message.event_time_ms, message.properties)
            row += 1
        return row

    def _messages(self, file: Mapping[str, Any]) -> Iterator[SinkMessage]:
        return self._maker.messages(read_changes(self._files, ChangelogFile.from_description(dict(file))))

    def _prepare(self, topic: str) -> list[str]:
        """The topic's partitions, which are there afterwards: policies are those of topics that exist."""
        if is_scalable(topic):
            create_topic(self._sink.write, topic)
            return []
        client = shared_client(self._sink.write.connection)
        partitions: list[str] = client.get_topic_partitions(topic)
        for partition in partitions:
            client.create_producer(partition, schema=self._maker.schema or pulsar.schema.BytesSchema()).close()
        return partitions


SNAPSHOT: Final = "snapshot"
"""In a sink's position: its view's first rows are not delivered yet."""

_UNIT: Final = "0"


def changelog_name(sink: str) -> str:
    """Under which name a manifest's `changelogs` holds the snapshot; no view is called so, as names have no spaces in front."""
    return f" {SNAPSHOT} {sink}"


def write_snapshot(files: StateFiles, state: TableState, epoch: int) -> list[dict[str, Any]]:
    """The entry for a manifest's `changelogs`: all rows as of a committed state, some vnodes a file. Raises DamagedStateError."""
    table = state.table
    counted = rows_of_vnodes(state.runs, table.vnode_count)
    written = []
    for vnodes in pieces(range(table.vnode_count), counted):
        rows = as_frame(read_arrow(files, state, vnodes))
        if rows.height:
            inserts = rows.select(pl.lit(INSERT, pl.Int8).alias(CHANGE), pl.all())
            file = write_changes(files, epoch, _UNIT, inserts, table.schema, durable=True)
            written.append(file.describe())
    return [{"epoch": epoch, "files": written}] if written else []
