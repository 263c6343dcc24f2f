"""Stages of an epoch of few rows that the driver's own process runs, without a job of Spark's.

A stage is plain when there is nothing for Spark SQL to compute in it: columns as they come, of JSON messages or of another stage's changes,
into one operator. The process stays, and with it the decoded runs that it has read or written; files, manifest and fencing are those of
any other epoch.

Messages are decoded here only as long as all of an epoch are what every reader of JSON agrees on: an object whose fields have the declared
types. What Spark reads in its own way, or finds undecodable, is not decided here: that epoch's stage is run by Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from magnetar.pipeline.connect.reading.columns import Columns, schema_for
from magnetar.pipeline.connect.reading.range_reader import KeptConnections, read_range
from magnetar.pipeline.operators.changelog import CHANGE, INSERT
from magnetar.pipeline.sql.computed import fails
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.sql.types import spark_type
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.changelog_files import change_schema, read_changes
from magnetar.pipeline.views.epoch.actor import UnitResult, UnitTask, run_unit
from magnetar.pipeline.views.epoch.worker import TASK_S, freeze
from magnetar.pipeline.views.lowering.stages import Feed, Select, Stage, Step

if TYPE_CHECKING:
    from magnetar.pipeline.connect.offsets import Range
    from magnetar.pipeline.connect.options import ReadOptions
    from magnetar.pipeline.views.changelog_files import ChangelogFile

MESSAGE_BYTES_MAX: Final = 32 * 1024
"""Of a message that is decoded here: Spark's reader has bounds for names, numbers and nesting that shorter ones cannot reach unseen."""
BRACKETS_MAX: Final = 500
DIGITS_MAX: Final = 400

_DIGITS: Final = re.compile(rb"[0-9]{%d}" % DIGITS_MAX)
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERALS: Final = frozenset({"true", "false", "null"})


@dataclass(frozen=True, slots=True)
class _Kind:
    """Python's types of the values, and the least and greatest of whole numbers."""

    types: tuple[type, ...]
    least: int = 0
    greatest: int = 0

    def takes(self, value: Any) -> bool:
        kind = type(value)
        return kind in self.types and (kind is not int or self.least <= value <= self.greatest)


def _whole(bits: int) -> _Kind:
    return _Kind((int,), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


KINDS: Final = {
    "STRING": _Kind((str,)),
    "BOOLEAN": _Kind((bool,)),
    "SMALLINT": _whole(16),
    "INT": _whole(32),
    "BIGINT": _whole(64),
    "DOUBLE": _Kind((float, int), -(1 << 63), (1 << 63) - 1),
}
"""By Spark's type: what is read here."""


@dataclass(frozen=True, slots=True)
class PlainSource:
    """`kinds`: by stored column. `quoted`: the columns' names as messages spell them. `kept`: of this source alone."""

    options: ReadOptions
    kinds: Mapping[str, _Kind]
    quoted: tuple[bytes, ...]
    kept: KeptConnections

    @staticmethod
    def of(source: CreateSource, options: ReadOptions, kept: KeptConnections) -> PlainSource | None:
        """None for a source whose messages are not plain JSON of plain columns."""
        if (source.format.format, source.format.encode) != ("PLAIN", "JSON") or not source.columns:
            return None
        kinds = {}
        for column in source.columns:
            kind = KINDS.get(spark_type(column.type)) if column.type is not None else None
            if kind is None or column.generated is not None:
                return None
            kinds[column.name] = kind
        return PlainSource(options, kinds, tuple(json.dumps(name, ensure_ascii=False).encode() for name in kinds), kept)

    def read(self, ranges: Iterable[Range]) -> list[dict[str, Any]] | None:
        """The messages as rows; None when one of them is Spark's to judge. Raises what `read_range` raises."""
        rows: list[dict[str, Any]] = []
        for part in ranges:
            for batch in read_range(
                self.options, part, Columns(schema_for(("value",)), self.options.connection), kept=self.kept
            ):
                some = self.decoded(batch.column(0).to_pylist())
                if some is None:
                    return None
                rows += some
        return rows

    def decoded(self, values: Sequence[bytes | None]) -> list[dict[str, Any]] | None:
        """The same of messages."""
        rows = []
        for value in values:
            if value is None or not _is_usual(value):
                return None
            try:
                row = _DECODER.decode(value)
                if self._may_name_twice(value):
                    json.loads(value, object_pairs_hook=_once)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
                return None
            for name, kind in self.kinds.items():
                found = row.get(name)
                if found is not None and not kind.takes(found):
                    return None
            rows.append(row)
        return rows

    def _may_name_twice(self, value: bytes) -> bool:
        """Whether a column is named more than once, in whatever depth or spelling: Spark looks at each of its values."""
        return b"\\" in value or any(value.count(name) > 1 for name in self.quoted)


_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice in an object")
    return found


def _is_usual(value: bytes) -> bool:
    size = len(value)
    if size < DIGITS_MAX:
        return True
    if size > MESSAGE_BYTES_MAX or value.count(b"[") + value.count(b"{") > BRACKETS_MAX:
        return False
    return _DIGITS.search(value) is None


@dataclass(frozen=True, slots=True)
class PlainStage:
    """`columns`: by column of the feed, the one of the source or of the changes that it is. `source`: None where changes are read."""

    feed: Feed
    columns: Mapping[str, str]
    source: PlainSource | None

    def run(self, task: UnitTask, read: Sequence[Any]) -> UnitResult | None:
        """What a unit with all vnodes reports. `read`: ranges or files of the feed. None when Spark has to read these messages; nothing
        was written then."""
        began = perf_counter()
        rows = self._of_source(read) if self.source is not None else self._of_changes(task, read)
        if rows is None:
            return None
        freeze()
        result = run_unit(task, 0, {self.feed.input: rows} if rows.num_rows else {}, stays=True)
        return replace(result, seconds={**result.seconds, TASK_S: perf_counter() - began})

    def close(self) -> None:
        if self.source is not None:
            self.source.kept.close()

    def _of_source(self, ranges: Sequence[Range]) -> pa.Table | None:
        assert self.source is not None
        rows = self.source.read(ranges)
        if rows is None:
            return None
        schema = change_schema(self.feed.schema)
        arrays = [pa.array([INSERT] * len(rows), pa.int8())]
        for name, field in zip(self.feed.schema.names, self.feed.schema, strict=True):
            values = [row.get(self.columns[name]) for row in rows]
            if pa.types.is_floating(field.type):  # Arrow refuses whole numbers that are not exact
                values = [None if value is None else float(value) for value in values]
            arrays.append(pa.array(values, field.type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def _of_changes(self, task: UnitTask, changes: Sequence[ChangelogFile]) -> pa.Table:
        files = StateFiles(task.root, dict(task.options))
        names = [CHANGE, *(self.columns[name] for name in self.feed.schema.names)]
        found = pa.concat_tables([read_changes(files, each).select(names) for each in changes])
        return found.rename_columns([CHANGE, *self.feed.schema.names])


def plain_stage(stage: Stage, source: PlainSource | None, changes: pa.Schema | None) -> PlainStage | None:
    """None for a stage that is not plain. `source` or `changes`: what its only feed reads; a source that is not plain is neither."""
    if len(stage.feeds) != 1 or (stage.preaggregate is not None and not stage.takes_rows):
        return None
    (feed,) = stage.feeds
    tables = stage.operator.state_tables()
    if feed.ordered_by or not tables or tables[0].distributed_by != feed.place_by:
        return None
    if source is not None:
        known = list(source.kinds)
    elif changes is not None:
        known = changes.names
    else:
        return None
    columns = _renamed(feed.steps, known)
    if columns is None or any(name not in columns for name in feed.schema.names):
        return None
    if changes is not None and any(changes.field(columns[field.name]).type != field.type for field in feed.schema):
        return None
    return PlainStage(feed, columns, source)


def _renamed(steps: Sequence[Step], names: Iterable[str]) -> dict[str, str] | None:
    """By column behind the steps the one before them that it is; None where a step does anything else."""
    found = {name: name for name in names}
    for step in steps:
        if not isinstance(step, Select):
            return None
        chosen = {}
        for output in step.outputs:
            name = _column(output.sql)
            if name not in found or fails(output.sql):
                return None
            chosen[output.name] = found[name]
        found = chosen
    return found


def _column(sql: str) -> str | None:
    """The name of the column that an expression is and nothing else."""
    text = sql.strip()
    if _BARE.fullmatch(text):
        return None if text.lower() in _LITERALS else text
    inner = text[1:-1]
    if len(text) > 2 and text[0] == text[-1] == "`" and "`" not in inner:
        return inner
    return None
