"""Epochs of a plain stage over a real topic: what they write is what a recomputation gives, and a message that is Spark's stops them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.connect.broker import id_position
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.reading.range_reader import KeptConnections
from magnetar.pipeline.operators.aggregate import aggregate
from magnetar.pipeline.operators.aggregate_functions import Call
from magnetar.pipeline.operators.operator import EpochContext
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.plan import Named
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.changelog_files import read_changes
from magnetar.pipeline.views.epoch.actor import InputColumns, UnitTask, apply_changes
from magnetar.pipeline.views.epoch.plain_stage import PlainSource, PlainStage, plain_stage
from magnetar.pipeline.views.lowering.stages import Feed, Select, Stage
from magnetar.pipeline.views.source.options import reader_options
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import grouped, numbered, source

VNODES = tuple(range(DEFAULT_VNODES))
ROWS = pa.schema([("k", pa.string()), ("__arg0", pa.int64())])
CALLS = [Call("count", None, "c"), Call("sum", "__arg0", "s")]


def made(service_url: str, topic: str) -> tuple[PlainStage, Stage, StateTable]:
    """`SELECT k, count(*) AS c, sum(n) AS s FROM src GROUP BY k`, with the view's table."""
    statement = parse_one(source(service_url, topic))
    assert isinstance(statement, CreateSource)
    operator = aggregate(1, "v/1-aggregate", ROWS, ["k"], CALLS, append_only=True)
    feed = Feed("input", "src", (Select((Named("k", "k"), Named("n", "__arg0"))),), ROWS, ("k",))
    stage = Stage("v/1-aggregate", (feed,), operator)
    known = PlainSource.of(statement, read_options(reader_options(statement)), KeptConnections())
    found = plain_stage(stage, known, None)
    assert found is not None
    return found, stage, StateTable(2, "v", operator.output_schema, ("k",))


def test_epochs_of_a_plain_stage(server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    plain, stage, view = made(server.service_url, topic)
    tables = {1: TableState(stage.operator.state_tables()[0]), 2: TableState(view)}
    producer = client.create_producer(topic)
    sent: list[dict[str, Any]] = []
    at: Position = EARLIEST
    for epoch in range(1, 7):
        rows = numbered(len(sent), len(sent) + 20)
        ids = [producer.send(json.dumps(row).encode()) for row in rows]
        part, at = Range(topic, at, id_position(ids[-1]).after()), id_position(ids[-1]).after()
        inputs = {"input": InputColumns(ROWS)}
        context = EpochContext(epoch, 0)
        task = UnitTask(str(tmp_path), {}, context, ("0",), (VNODES,), inputs, stage.operator, tables, view, True, True)
        result = plain.run(task, [part])
        assert result is not None
        assert result.rows_in == 20
        assert result.changelog is not None
        assert read_changes(StateFiles(str(tmp_path)), result.changelog).num_rows == result.rows_changed
        tables = {number: apply_changes(state, [result.tables[number]]) for number, state in tables.items()}
        sent += rows
        found = read_arrow(StateFiles(str(tmp_path)), tables[2], VNODES).to_pylist()
        assert {(row["k"], row["c"], row["s"]) for row in found} == grouped(sent)
    before = sorted(tmp_path.rglob("*"))
    bad = [producer.send(text) for text in (b'{"k": "a", "n": 1}', b'{"k": "a", "n": "1"}')]
    assert plain.run(task, [Range(topic, at, id_position(bad[-1]).after())]) is None
    assert sorted(tmp_path.rglob("*")) == before
    plain.close()
