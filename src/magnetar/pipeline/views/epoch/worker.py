"""What Spark runs in its Python workers. Imports little: the task it unpacks brings what it needs."""

from __future__ import annotations

import gc
import os
import pickle
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from magnetar.pipeline.connect.offsets import Range
    from magnetar.pipeline.connect.options import ReadOptions
    from magnetar.pipeline.views.changelog_files import ChangelogFile
    from magnetar.pipeline.views.epoch.actor import UnitResult
    from magnetar.pipeline.views.source.own_vnodes import OwnPart

RESULT: Final = "result"
"""The only column of what a unit's task returns: a pickled UnitResult."""

TASK: Final = "magnetar.unit.task"
"""The property of a stage's job that holds what its units are told."""

READ: Final = "magnetar.unit.read"
"""The property of a job whose plan is kept that holds what it reads, pickled: ranges by source, files by view or stage."""

INPUT_PREFIX: Final = "_in"
"""Columns of a stage with several inputs: `_in0`, `_in1`, ... are structs, of which a row has one."""

TASK_S: Final = "task"
"""Of a unit's seconds: all of its task, with what it waits for its rows, which Spark aggregates in the same task."""

_frozen = False


def unit_function(
    root: str, options: dict[str, Any], inputs: tuple[str, ...], *, stays: bool = False, native: bytes | None = None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: one task's rows in, one row out. The UnitTask comes with the job, as `stage_job.packed` gives it.

    `stays`: as `run_unit` takes it. `native`: the pickled NativePartials of the only input, which then comes as `native.to_units` sends it.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        began = perf_counter()
        prepare()
        from magnetar.pipeline.views.epoch.actor import run_unit, unread_result

        context = TaskContext.get()
        assert context is not None
        task = context.getLocalProperty(TASK)
        assert task is not None, "a stage's job is run by run_stage"
        unpacked = replace(pickle.loads(b64decode(task)), root=root, options=options)
        deltas = _deltas(list(batches), inputs) if native is None else _native_deltas(batches, inputs[0], native)
        freeze()
        if deltas is None:
            yield _packed_result(unread_result(unpacked, context.partitionId()))
            return
        result = run_unit(unpacked, context.partitionId(), deltas, stays=stays)
        result = replace(result, seconds={**result.seconds, TASK_S: perf_counter() - began})
        yield _packed_result(result)

    return run


def partials_function(native: bytes, owners: tuple[int, ...]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: rows in, out their partial results for the units. `native`: the pickled NativePartials."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        prepare()
        from magnetar.pipeline.views.epoch.native import to_units

        partials = pickle.loads(native)
        first = next(batches, None)
        if first is not None:
            for found in partials.of_batches(first.schema, chain([first], batches)):
                yield from to_units(found, owners)
        freeze()

    return run


def read_partials_function(
    native: bytes, reading: bytes, owners: tuple[int, ...]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: numbers in, out the partial results of the rows that this task reads itself. `reading`: a pickled pair of
    NativeRows and, by number, what to read."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        prepare()
        from magnetar.pipeline.views.epoch.native import to_units, unread
        from magnetar.pipeline.views.source.native_rows import UnreadRowsError

        partials = pickle.loads(native)
        rows, parts = pickle.loads(reading)
        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            try:
                for found in rows.grouped(parts[number], partials):
                    yield from to_units(found, owners)
            except UnreadRowsError:
                yield from unread(max(owners) + 1)
        freeze()

    return run


def changes_function(root: str, options: dict[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: rows with a pickled ChangelogFile in, its changes out."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        prepare()
        from magnetar.pipeline.state.files import StateFiles
        from magnetar.pipeline.views.changelog_files import read_changes

        files = StateFiles(root, options)
        for batch in batches:
            for packed in batch.column(0).to_pylist():
                file: ChangelogFile = pickle.loads(packed)
                yield from read_changes(files, file).to_batches()
        freeze()

    return run


def ranges_function(name: str, options: ReadOptions, schema: StructType) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: one row in (not looked at), out the messages of the source `name` that the job is told to read."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        prepare()
        from magnetar.pipeline.connect.reading.columns import Columns
        from magnetar.pipeline.connect.reading.range_reader import read_range

        for _ in batches:
            pass
        ranges: list[Range] = _to_read(name)
        for part in ranges:
            yield from read_range(options, part, Columns(schema, options.connection))
        freeze()

    return run


def pieces_function(
    pieces: list[Range], options: ReadOptions, schema: StructType
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: numbers in, out the messages of the ranges that have them."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        prepare()
        from magnetar.pipeline.connect.reading.columns import Columns
        from magnetar.pipeline.connect.reading.range_reader import read_range

        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        for part in (pieces[number] for number in numbers if number < len(pieces)):
            yield from read_range(options, part, Columns(schema, options.connection))
        freeze()

    return run


def _unit_of_task(batches: Iterator[Any]) -> int:
    """The number of this task, which is its unit's, once all that comes in has been taken."""
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def own_parts_function(
    parts: list[list[OwnPart]], options: ReadOptions, schema: StructType, count: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: one row in (not looked at), out the messages of the vnodes of the unit with the task's number."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:

        prepare()
        from magnetar.pipeline.connect.reading.columns import Columns
        from magnetar.pipeline.views.source.own_vnodes import read_own

        for part in parts[_unit_of_task(batches)]:
            yield from read_own(options, part, Columns(schema, options.connection), count)
        freeze()

    return run


def unit_files_function(
    by_unit: list[list[ChangelogFile]], root: str, options: dict[str, Any]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: one row in (not looked at), out the changes that the unit with the task's number has written."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:

        prepare()
        from magnetar.pipeline.state.files import StateFiles
        from magnetar.pipeline.views.changelog_files import read_changes

        for file in by_unit[_unit_of_task(batches)]:
            yield from read_changes(StateFiles(root, options), file).to_batches()
        freeze()

    return run


def segment_vnodes_function(column: str, name: str, count: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: rows in, the same with `name`, the vnode of the message key in `column`, for which Spark SQL has no function."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from magnetar.hashing.vectorized.vnode import segment_vnodes_of

        for batch in batches:
            found = segment_vnodes_of(batch.column(batch.schema.get_field_index(column)), count)
            yield batch.append_column(name, pa.array(found, pa.int32()))

    return run


def files_function(name: str, root: str, options: dict[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: one row in (not looked at), out the changes of the view or stage `name` that the job is told to read."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        prepare()
        from magnetar.pipeline.state.files import StateFiles
        from magnetar.pipeline.views.changelog_files import read_changes

        for _ in batches:
            pass
        found: list[ChangelogFile] = _to_read(name)
        for file in found:
            yield from read_changes(StateFiles(root, options), file).to_batches()
        freeze()

    return run


def _to_read(name: str) -> list[Any]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    told = context.getLocalProperty(READ)
    found: list[Any] = pickle.loads(b64decode(told)).get(name, []) if told else []
    return found


def rows_function(
    root: str, options: dict[str, Any], table: bytes, vnodes: bytes
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: one task's row in (not looked at), the rows of its vnodes out, as inserts. `table`: a pickled TableState."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:

        prepare()
        from magnetar.pipeline.operators.changelog import CHANGE, INSERT
        from magnetar.pipeline.state.files import StateFiles
        from magnetar.pipeline.state.reader import read_arrow

        held = pickle.loads(vnodes)[_unit_of_task(batches)]
        rows = read_arrow(StateFiles(root, options), pickle.loads(table), held)
        change = pa.array([INSERT], pa.int8()).take(pa.nulls(rows.num_rows, pa.int32()).fill_null(0))
        yield from rows.add_column(0, pa.field(CHANGE, pa.int8(), False), change).to_batches()
        freeze()

    return run


def prepare() -> None:
    """Before polars is imported: units are the threads."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")


def freeze() -> None:
    """Spark's daemon collects garbage after every task, 33 to 84 ms with our modules among what it looks at."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def _packed_result(result: UnitResult) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=[RESULT])


def _native_deltas(batches: Iterator[Any], name: str, native: bytes) -> dict[str, pa.Table] | None:
    """None where a task could not read its rows."""
    from magnetar.pipeline.views.epoch.native import of_unit
    from magnetar.pipeline.views.source.native_rows import UnreadRowsError

    try:
        found = of_unit(batches, pickle.loads(native))
    except UnreadRowsError:
        return None
    return {} if found is None else {name: found}


def _deltas(batches: list[Any], inputs: tuple[str, ...]) -> dict[str, pa.Table]:
    if not batches or not inputs:
        return {}
    rows = pa.Table.from_batches(batches)
    if len(inputs) == 1:
        return {inputs[0]: rows}
    found = {}
    for place, name in enumerate(inputs):
        column = f"{INPUT_PREFIX}{place}"
        if column in rows.column_names:
            mine = rows.filter(rows.column(column).is_valid())
            fields = pa.Table.from_batches(
                [pa.RecordBatch.from_struct_array(chunk) for chunk in mine.column(column).chunks],
                pa.schema(list(mine.schema.field(column).type)),
            )
            found[name] = fields
    return found
