"""One stage of one epoch as one Spark job: the feeds' rows to the units that hold their vnodes, and what the units report.

The job is planned apart from what its units are told, which the epoch before it decides: that travels as a property of the job.
"""

from __future__ import annotations

import pickle
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.operators.changelog import CHANGE, INSERT
from magnetar.pipeline.sql.plan import Named
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.views.changelog_files import ChangelogFile, change_schema
from magnetar.pipeline.views.epoch.actor import UnitResult, UnitTask
from magnetar.pipeline.views.epoch.worker import (
    INPUT_PREFIX,
    READ,
    RESULT,
    TASK,
    changes_function,
    files_function,
    own_parts_function,
    partials_function,
    pieces_function,
    ranges_function,
    read_partials_function,
    rows_function,
    segment_vnodes_function,
    unit_files_function,
    unit_function,
)
from magnetar.pipeline.views.lowering.stages import ROW_ID, Feed, Stage, quoted
from magnetar.pipeline.views.source.native_rows import NativeRead
from magnetar.pipeline.views.source.own_vnodes import own_parts
from magnetar.pipeline.vnodes import UNIT, VNODE, unit_index, vnode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from magnetar.pipeline.connect.offsets import Range
    from magnetar.pipeline.connect.options import ReadOptions

_FILE: Final = "file"
_MESSAGES: Final = f"{UNIT} int, _groups binary"
"""What tasks send to units that make partial results."""

STAYS: Final = "MAGNETAR_UNIT_STAYS"
"""In the environment of Python workers that keep what they have read."""


def plan_stage(
    stage: Stage, fed: Sequence[tuple[Feed, DataFrame]], mapping: VnodeMapping, files: StateFiles, spark: SparkSession
) -> DataFrame:
    """What a stage runs in an epoch, all but its UnitTask. `fed`: what `apply_feed` gives, of the feeds that have any.

    One shuffle, whatever the number of inputs. Spark's optimizer and compiler are through with it on return.
    """
    units = len(mapping.units)
    inputs = tuple(dict.fromkeys(feed.input for feed, _ in fed))
    native = stage.native
    if native is not None and inputs:
        rows = reduce(lambda left, right: left.unionByName(right), [frame for _, frame in fed])
        packed_native = pickle.dumps(native)
        found = rows.mapInArrow(partials_function(packed_native, mapping.owners), _MESSAGES)
        return _plan_native(found, inputs, packed_native, mapping, files)
    placed = [_input_rows(stage, [pair for pair in fed if pair[0].input == name], mapping) for name in inputs]
    if not placed:  # only time goes on: a task a unit, whose row means nothing
        tasks = spark.range(0, units, 1, units).select(F.col("id").cast("int").alias(UNIT))
        sent = tasks.repartitionById(units, F.col(UNIT))
    elif len(placed) == 1:
        sent = placed[0].repartitionById(units, F.col(UNIT))
        sent = sent.drop(UNIT) if stage.preaggregate is None else _aggregated(sent, stage.preaggregate, fed[0][0])
    else:
        tagged = [_tagged(frame, place) for place, frame in enumerate(placed)]
        rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), tagged)
        sent = rows.repartitionById(units, F.col(UNIT)).drop(UNIT)
    planned = sent.mapInArrow(unit_function(files.root_url, files.options, inputs), f"{RESULT} binary")
    planned._jdf.queryExecution().toRdd()
    return planned


def plan_read_stage(
    stage: Stage, read: NativeRead, mapping: VnodeMapping, files: StateFiles, spark: SparkSession
) -> DataFrame:
    """The same where tasks read the rows by themselves and send partial results. The stage is `native` and has one feed."""
    assert stage.native is not None
    native = pickle.dumps(stage.native)
    reading = cloudpickle.dumps((read.rows, list(read.tasks)))  # type: ignore[no-untyped-call]
    tasks = len(read.tasks)
    numbers = spark.range(0, tasks, 1, tasks)
    found = numbers.mapInArrow(read_partials_function(native, reading, mapping.owners), _MESSAGES)
    return _plan_native(found, (stage.feeds[0].input,), native, mapping, files)


def _plan_native(
    messages: DataFrame, inputs: tuple[str, ...], native: bytes, mapping: VnodeMapping, files: StateFiles
) -> DataFrame:
    """`messages`: what `native.to_units` gives, which the shuffle brings to its units."""
    sent = messages.repartitionById(len(mapping.units), F.col(UNIT))
    planned = sent.mapInArrow(unit_function(files.root_url, files.options, inputs, native=native), f"{RESULT} binary")
    planned._jdf.queryExecution().toRdd()
    return planned


def plan_own_stage(fed: tuple[Feed, DataFrame], files: StateFiles) -> DataFrame:
    """A stage whose rows are read by the units that they belong to: nothing is shuffled.

    `fed`: of a frame of `own_frame` or `unit_changes_frame`."""
    feed, frame = fed
    planned = frame.mapInArrow(unit_function(files.root_url, files.options, (feed.input,)), f"{RESULT} binary")
    planned._jdf.queryExecution().toRdd()
    return planned


def run_stage(
    spark: SparkSession, planned: DataFrame, task: UnitTask, read: Mapping[str, Sequence[Any]] | None = None
) -> list[UnitResult]:
    """One result a unit, in the order of units. `planned`: what `plan_stage` gave, once, or what `plan_kept_stage` gave, with `read`:
    ranges by source, and files by view or stage."""
    context = spark.sparkContext
    context.setLocalProperty(TASK, packed(task))
    if read is not None:
        context.setLocalProperty(READ, b64encode(pickle.dumps(dict(read))).decode("ascii"))
    try:
        found = [row[0] for row in planned.collect()] if read is None else _collected(planned)
    finally:
        context.setLocalProperty(TASK, None)  # type: ignore[arg-type]
        context.setLocalProperty(READ, None)  # type: ignore[arg-type]
    return [pickle.loads(each) for each in found]


def _collected(planned: DataFrame) -> list[bytes]:
    """The only column of a plan that runs again and again, by its tasks alone: `collect` describes and announces the plan each time,
    makes its tasks anew, and answers through a socket, which takes longer than few rows do."""
    execution = planned._jdf.queryExecution()
    execution.executedPlan().resetMetrics()
    rows = execution.toRdd().collect()
    return [rows[place].getBinary(0) for place in range(len(rows))]


def plan_kept_stage(
    stage: Stage, fed: Sequence[tuple[Feed, DataFrame]], vnode_count: int, files: StateFiles, spark: SparkSession
) -> DataFrame:
    """A stage as one task that has all vnodes: nothing is shuffled, so the plan may run again and again, each time with other input.

    `fed`: what `apply_feed` gives of frames that read what the job is told (`source_frame`, `kept_changes_frame`).
    """
    inputs = tuple(dict.fromkeys(feed.input for feed, _ in fed))
    placed = []
    for name in inputs:
        pairs = [pair for pair in fed if pair[0].input == name]
        rows = reduce(lambda left, right: left.unionByName(right), [frame for _, frame in pairs])
        place_by = pairs[0][0].place_by
        if stage.vnode_hash == "segment":  # the unit computes it
            placed.append(rows)
            continue
        number = vnode(rows, *place_by, count=vnode_count) if place_by else F.lit(0)
        placed.append(rows.select("*", number.alias(VNODE)))
    if not placed:
        sent = spark.range(0, 1, 1, 1).select(F.col("id"))
    elif len(placed) == 1:
        sent = placed[0].coalesce(1)
        if stage.preaggregate is not None and not stage.takes_rows:
            columns = [F.col(quoted(name)) for name in (VNODE, *fed[0][0].place_by)]
            sent = sent.groupBy(*columns).agg(*(F.expr(each.sql).alias(each.name) for each in stage.preaggregate))
    else:
        tagged = []
        for place, frame in enumerate(placed):
            columns = [F.col(quoted(name)) for name in frame.columns]
            tagged.append(frame.select(F.struct(*columns).alias(f"{INPUT_PREFIX}{place}")))
        sent = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), tagged).coalesce(1)
    function = unit_function(files.root_url, files.options, inputs, stays=True)
    with _workers_of_their_own(spark):
        planned = sent.mapInArrow(function, f"{RESULT} binary")
    planned._jdf.queryExecution().toRdd()
    return planned


@contextmanager
def _workers_of_their_own(spark: SparkSession) -> Iterator[None]:
    """Functions that are planned within get Python workers that no others use: Spark keeps those that it started with one environment
    apart. As one task at a time runs there, it finds the process that ran the one before, with what that keeps."""
    environment = spark.sparkContext.environment
    environment[STAYS] = "1"
    try:
        yield
    finally:
        del environment[STAYS]


def pieces_frame(spark: SparkSession, pieces: Sequence[Range], options: ReadOptions, schema: StructType) -> DataFrame:
    """The connector's columns of these ranges, one task for each."""
    tasks = max(len(pieces), 1)
    return spark.range(0, tasks, 1, tasks).mapInArrow(pieces_function(list(pieces), options, schema), schema)


def own_frame(
    spark: SparkSession, pieces: Sequence[Range], mapping: VnodeMapping, options: ReadOptions, schema: StructType
) -> DataFrame:
    """The same, one task for each unit: the messages whose key has one of its vnodes."""
    units = len(mapping.units)
    function = own_parts_function(own_parts(pieces, mapping), options, schema, mapping.vnodes)
    return spark.range(0, units, 1, units).mapInArrow(function, schema)


def unit_changes_frame(
    spark: SparkSession, files: StateFiles, changelog: Sequence[ChangelogFile], columns: str, mapping: VnodeMapping
) -> DataFrame:
    """The changes in these files, each in the task of the unit that wrote it."""
    units = len(mapping.units)
    by_unit = [[file for file in changelog if file.unit == unit] for unit in mapping.units]
    function = unit_files_function(by_unit, files.root_url, files.options)
    return spark.range(0, units, 1, units).mapInArrow(function, columns)


def kept_source_frame(spark: SparkSession, name: str, options: ReadOptions, schema: StructType) -> DataFrame:
    """The connector's columns of the messages that the job is told to read of a source."""
    return spark.range(0, 1, 1, 1).mapInArrow(ranges_function(name, options, schema), schema)


def kept_changes_frame(spark: SparkSession, name: str, files: StateFiles, columns: str) -> DataFrame:
    """The changes of a view or stage in the files that the job is told to read."""
    return spark.range(0, 1, 1, 1).mapInArrow(files_function(name, files.root_url, files.options), columns)


def changes_frame(
    spark: SparkSession, files: StateFiles, changelog: Sequence[ChangelogFile], columns: str
) -> DataFrame:
    """The changes in these files, one task for each. `columns`: what `spark_schema` says."""
    rows = spark.createDataFrame([(bytearray(pickle.dumps(file)),) for file in changelog], f"{_FILE} binary")
    spread = rows.repartition(len(changelog)) if len(changelog) > 1 else rows.coalesce(1)
    return spread.mapInArrow(changes_function(files.root_url, files.options), columns)


def rows_frame(spark: SparkSession, files: StateFiles, state: TableState, mapping: VnodeMapping) -> DataFrame:
    """All rows of a table as inserts, one task for each unit."""
    units = len(mapping.units)
    vnodes = [mapping.vnodes_of(unit) for unit in mapping.units]
    function = rows_function(files.root_url, files.options, pickle.dumps(state), pickle.dumps(vnodes))
    return spark.range(0, units, 1, units).mapInArrow(function, spark_schema(state.table.schema))


def one_row_frame(spark: SparkSession) -> DataFrame:
    """The insert of one row that has nothing but its id."""
    return spark.range(0, 1, 1, 1).selectExpr(f"CAST({INSERT} AS TINYINT) AS {CHANGE}", f"'' AS {quoted(ROW_ID)}")


def spark_schema(schema: object) -> str:
    """A pyarrow schema of rows as Spark writes the columns of their changes."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return ", ".join(
        f"{quoted(field.name)} {field.dataType.simpleString()}" for field in from_arrow_schema(change_schema(schema))
    )


def packed(task: UnitTask) -> str:
    """As text, which is what a job's properties are. Where the state lies, which may take credentials, is not among it: a log of Spark's
    events holds properties."""
    # operators may hold functions
    data: bytes = cloudpickle.dumps(replace(task, root="", options={}))  # type: ignore[no-untyped-call]
    return b64encode(data).decode("ascii")


def _input_rows(stage: Stage, fed: Sequence[tuple[Feed, DataFrame]], mapping: VnodeMapping) -> DataFrame:
    """All rows of one input with `_vnode` and the index of the unit, which has to be a column: Spark would hash an expression anew."""
    frame = reduce(lambda left, right: left.unionByName(right), [frame for _, frame in fed])
    place_by = fed[0][0].place_by
    if stage.vnode_hash == "segment":
        function = segment_vnodes_function(place_by[0], VNODE, mapping.vnodes)
        numbered = frame.mapInArrow(function, StructType([*frame.schema.fields, StructField(VNODE, IntegerType())]))
        return numbered.select("*", unit_index(frame.sparkSession, mapping).alias(UNIT))
    number = vnode(frame, *place_by, count=mapping.vnodes) if place_by else F.lit(0)
    index = unit_index(frame.sparkSession, mapping)
    return frame.select("*", number.alias(VNODE), index.alias(UNIT))  # the second one sees the first one's column


def _aggregated(sent: DataFrame, aggregates: Sequence[Named], feed: Feed) -> DataFrame:
    """Partial results of each group, in the unit and without another shuffle, as the unit is one of the grouping columns."""
    columns = [F.col(quoted(name)) for name in (UNIT, VNODE, *feed.place_by)]
    return sent.groupBy(*columns).agg(*(F.expr(each.sql).alias(each.name) for each in aggregates)).drop(UNIT)


def _tagged(frame: DataFrame, place: int) -> DataFrame:
    """The rows of one of several inputs as a struct in a column of their own."""
    columns = [F.col(quoted(name)) for name in frame.columns if name != UNIT]
    return frame.select(F.col(UNIT), F.struct(*columns).alias(f"{INPUT_PREFIX}{place}"))
