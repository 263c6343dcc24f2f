"""Pipelines for tests: programs written by hand, rows of views read back from the state tables, recomputation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.pipeline.operators.aggregate import aggregate
from magnetar.pipeline.operators.aggregate_calls import Call
from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.plan import Named
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import ManifestStore
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.program import Program
from magnetar.pipeline.views.stages import Feed, Select, Stage, ViewPlan
from tests.support.topics import produce

INPUT_SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


def json_source(name: str, url: str, topic: str, **options: object) -> CreateSource:
    """`k VARCHAR, n BIGINT` as JSON, from the beginning unless told otherwise."""
    given = {"service.url": url, "topic": topic, "startingOffsets": "earliest"}
    given |= {key.replace("_", "."): str(value) for key, value in options.items()}
    text = ", ".join(f"{key} = '{value}'" for key, value in given.items())
    statement = parse_one(
        f"CREATE SOURCE {name} (k VARCHAR, n BIGINT) WITH (connector = 'pulsar', {text}) FORMAT PLAIN ENCODE JSON"
    )
    assert isinstance(statement, CreateSource)
    return statement


def count_and_sum(name: str, origin: str, table_id: int, *, key: str = "k", over: str = "n") -> ViewPlan:
    """`SELECT k, count(*) c, sum(n) s GROUP BY k`; `key` and `over` are Spark SQL over the origin's columns."""
    calls = [Call("count", None, "c"), Call("sum", "n", "s")]
    operator = aggregate(table_id, f"{name}/1", INPUT_SCHEMA, ["k"], calls, append_only=False)
    steps = (Select((Named(key, "k"), Named(over, "n"))),)
    feed = Feed(INPUT, origin, steps, INPUT_SCHEMA, ("k",))
    table = StateTable(table_id + 1, name, operator.output_schema, ("k",))
    return ViewPlan(name, (Stage(f"{name}/1", (feed,), operator),), table, ("k", "c", "s"), False)


def program(sources: Iterable[CreateSource], plans: Sequence[ViewPlan], **sinks: str) -> Program:
    return Program({source.name: source for source in sources}, tuple(plans), sinks)


def send(client: pulsar.Client, topic: str, rows: Iterable[Mapping[str, Any]]) -> None:
    produce(client, topic, [json.dumps(row).encode() for row in rows])


def view_rows(directory: Path | str, table: StateTable) -> set[tuple[Any, ...]]:
    """What the newest manifest says the view holds."""
    files = StateFiles(str(directory))
    manifest = ManifestStore(files, SystemClock()).latest()
    assert manifest is not None
    if table.table_id not in manifest.tables:
        return set()
    found = read_arrow(files, manifest.tables[table.table_id], range(table.vnode_count)).to_pylist()
    rows = [tuple(row[name] for name in table.schema.names) for row in found]
    assert len(set(rows)) == len(rows)
    return set(rows)


def grouped(rows: Iterable[Mapping[str, Any]]) -> set[tuple[Any, int, int]]:
    """What `count_and_sum` has to give."""
    found: dict[Any, list[int]] = {}
    for row in rows:
        group = found.setdefault(row["k"], [0, 0])
        group[0] += 1
        group[1] += row["n"]
    return {(key, count, total) for key, (count, total) in found.items()}
