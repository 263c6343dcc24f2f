"""A pipeline's directory as a driver leaves it, committed by hand: what asks of directories needs no Spark for its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.state.run import RunInfo, write_run
from magnetar.pipeline.state.table import DELETE, PUT, StateTable
from magnetar.pipeline.views.control.driver_lock import DriverLock
from magnetar.pipeline.views.control.status import RUNNING, STOPPED, Status, write_status
from magnetar.pipeline.views.lowering.graph import GRAPH

MINUTE_US = 60_000_000
A, B = "persistent://public/default/a", "persistent://public/default/b"
COLUMNS = "(k VARCHAR, n BIGINT, ts TIMESTAMPTZ, WATERMARK FOR ts AS ts - INTERVAL '1 minute')"
WITH = "WITH (connector = 'pulsar', service.url = 'pulsar://localhost:6650', topic = '{}') FORMAT PLAIN ENCODE JSON;"
VIEWS = """
CREATE MATERIALIZED VIEW sums AS SELECT k, sum(n) AS total FROM a GROUP BY k;
CREATE MATERIALIZED VIEW w AS SELECT window_start, sum(n) AS total
FROM TUMBLE(a, ts, INTERVAL '10 minutes') GROUP BY window_start EMIT ON WINDOW CLOSE;
"""

SUMS = StateTable(1, "sums", pa.schema([pa.field("k", pa.string()), pa.field("total", pa.int64())]), ("k",))
ROWS = StateTable(
    2,
    "sums/1-aggregate",
    pa.schema([pa.field("k", pa.string()), pa.field("id", pa.int64()), pa.field("n", pa.int64())]),
    ("k", "id"),
    distribution=("k",),
)
WINDOWS = StateTable(
    3,
    "w",
    pa.schema([pa.field("window_start", pa.timestamp("us", "UTC")), pa.field("total", pa.int64())]),
    ("window_start",),
)
OPEN = StateTable(4, "w/1-aggregate", WINDOWS.schema, ("window_start",))

STAGES: Mapping[str, list[dict[str, Any]]] = {
    "sums": [
        {
            "stage": "sums/1-aggregate",
            "operator": "RecomputeGroups",
            "feeds": [{"origin": "a", "ofTopic": True, "placedBy": ["k"], "types": ["varchar"]}],
            "closedBy": [],
            "onClose": False,
            "keeps": "input rows",
            "tables": [2],
        }
    ],
    "w": [
        {
            "stage": "w/1-aggregate",
            "operator": "MergedAggregate",
            "feeds": [
                {"origin": origin, "ofTopic": True, "placedBy": ["window_start"], "types": ["timestamptz"]}
                for origin in ("a", "b")
            ],
            "closedBy": ["a", "b"],
            "onClose": True,
            "keeps": "partial results",
            "tables": [4],
        }
    ],
}


class StoredPipeline:
    """Views `sums` over source `a`, and `w`, which gives windows of `a` and `b` when both watermarks have passed."""

    def __init__(self, directory: Path, name: str = "p", *, topics: tuple[str, str] = (A, B)) -> None:
        self.directory = directory / name
        self.name = name
        self.topics = topics
        self._files = StateFiles(str(self.directory))
        self.status = Status(
            name, str(self.directory), state=RUNNING, pid=os.getpid(), updated_ms=SystemClock().now_ms()
        )

    def run(self, table: StateTable, rows: list[dict[str, Any]], epoch: int, op: int = PUT) -> RunInfo:
        frame = table.with_vnodes(pa.Table.from_pylist(rows, table.schema), op)
        return write_run(self._files, table, frame, level=0, oldest=epoch, newest=epoch, vnode_bits=(1 << 256) - 1)

    def commit(self, marks_us: Mapping[str, int], units: int = 2, **views: Any) -> Manifest:
        """After three epochs: `k1` came twice and `k2` went away again."""
        windows = [{"window_start": 0, "total": 1}]
        tables = {
            1: TableState(
                SUMS,
                (
                    self.run(SUMS, [{"k": "k1", "total": 1}, {"k": "k2", "total": 2}], 1),
                    self.run(SUMS, [{"k": "k1", "total": 4}], 2),
                    self.run(SUMS, [{"k": "k2", "total": None}], 3, DELETE),
                ),
            ),
            2: TableState(ROWS, (self.run(ROWS, [{"k": "k1", "id": 1, "n": 1}, {"k": "k1", "id": 2, "n": 3}], 2),)),
            3: TableState(WINDOWS),
            4: TableState(OPEN, (self.run(OPEN, windows, 3),)),
        }
        catalog = Catalog()
        text = "".join(
            f"CREATE SOURCE {name} {COLUMNS} {WITH.format(topic)}"
            for name, topic in zip("ab", self.topics, strict=True)
        )
        for statement in parse(text + VIEWS):
            catalog = catalog.create(statement)  # type: ignore[arg-type]
        at = {"ledger": 3, "entry": 7, "batch": 0}
        store = ManifestStore(self._files, SystemClock())
        first = store.claim(Manifest(0, 0, 0, -1, VnodeMapping.even(units).to_json()))
        return store.commit(
            first.next(
                epoch=3,
                mapping=VnodeMapping.even(units).to_json(),
                tables=tables,
                sources={"a": {self.topics[0]: at}, "b": {self.topics[1]: at}},
                watermarks_us=dict(marks_us),
                views={"catalog": catalog.to_plain(), "tables": {"sums": 1, "w": 3}, GRAPH: dict(STAGES), **views},
            )
        )

    def tell(self, state: str = RUNNING, **facts: Any) -> None:
        """What its driver wrote last."""
        self.status.state = state
        for name, value in facts.items():
            setattr(self.status, name, value)
        write_status(self.directory, self.status)

    @contextmanager
    def driven(self, **facts: Any) -> Iterator[None]:
        """As while a driver runs: this process has its lock."""
        with DriverLock(self.directory, self.name, SystemClock()) as lock:
            lock.announce()
            self.tell(RUNNING, **facts)
            yield
        self.tell(STOPPED)
