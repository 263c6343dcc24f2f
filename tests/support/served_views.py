"""A pipeline's directory without Spark, with a view of every type, and `magnetar pipeline serve` over it in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.run import write_run
from magnetar.pipeline.state.table import PUT, StateTable
from tests.support.state_tables import TABLE, VNODES, StateTableHarness

READY_TIMEOUT_S = 90

CATALOG = [
    {
        "name": "f",
        "statement": "CREATE SOURCE f (k VARCHAR, n BIGINT) WITH (connector = 'pulsar', topic = 't', service.url = 'pulsar://h:1') "
        "FORMAT PLAIN ENCODE JSON",
        "parallelism": None,
    },
    {
        "name": "delays",
        "statement": "CREATE MATERIALIZED VIEW delays AS SELECT k, n, avg(n) AS v FROM f GROUP BY k, n",
        "parallelism": None,
    },
    {"name": "kinds", "statement": "CREATE MATERIALIZED VIEW kinds AS SELECT k AS id FROM f", "parallelism": None},
    {
        "name": "late",
        "statement": "CREATE VIEW late AS\nSELECT k, count(*), sum(v) AS total FROM delays WHERE v > 100 GROUP BY k",
        "parallelism": None,
    },
    {
        "name": "Top ks",
        "statement": 'CREATE VIEW "Top ks" AS\nWITH w AS (SELECT * FROM late) SELECT w.k, total FROM w WHERE total > 0',
        "parallelism": None,
    },
    {"name": "raw_rows", "statement": "CREATE VIEW raw_rows AS\nSELECT k FROM f", "parallelism": None},
]

KINDS = StateTable(
    9,
    "kinds",
    pa.schema(
        [
            ("id", pa.int64()),
            ("flag", pa.bool_()),
            ("small", pa.int16()),
            ("whole", pa.int32()),
            ("single", pa.float32()),
            ("real", pa.float64()),
            ("price", pa.decimal128(12, 2)),
            ("label", pa.string()),
            ("raw", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local_at", pa.timestamp("us")),
            ("numbers", pa.list_(pa.int64())),
            ("words", pa.list_(pa.string())),
            ("nested", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ]
    ),
    ("id",),
    VNODES,
)

ROWS: list[dict[str, Any]] = [
    {
        "id": 1, "flag": True, "small": -7, "whole": 123456, "single": 1.5, "real": -0.1, "price": Decimal("1234.50"), "label": "plain",
        "raw": b"\x00\xffa", "day": date(2024, 2, 29), "at": datetime(2024, 2, 29, 12, 30, 1, 250000, UTC),
        "local_at": datetime(1969, 12, 31, 23, 59, 59), "numbers": [1, None, -3], "words": ["a b", 'quo"te', "", "null"],
        "nested": {"a": 1, "b": "x"},
    },
    {"id": 2, **dict.fromkeys(name for name in KINDS.schema.names if name != "id")},
    {
        "id": 3, "flag": False, "small": 32767, "whole": -(2**31), "single": -0.25, "real": 1e300, "price": Decimal("-0.01"),
        "label": "tab\tline\nback\\slash ünïcødé 🎉", "raw": b"", "day": date(1, 1, 1),
        "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        "local_at": datetime(1, 1, 1), "numbers": [], "words": [], "nested": {"a": None, "b": None},
    },
]  # fmt: skip

DELAYS = {(f"k{number % 50}", number): number / 4 for number in range(2000)} | {(None, 1): 1.0, ("", None): 2.0}

MIDNIGHT = time(0, 0)


def make_pipeline(directory: Path) -> StateTableHarness:
    """Views `delays` (k, n, v) with rows of DELAYS, and `kinds` with ROWS."""
    harness = StateTableHarness(str(directory), units=3)
    rows = KINDS.with_vnodes(pa.Table.from_pylist(ROWS, KINDS.schema), PUT)
    run = write_run(harness.files, KINDS, rows, level=0, oldest=1, newest=1, vnode_bits=(1 << VNODES) - 1)
    harness.commit(
        views={"catalog": CATALOG, "tables": {"delays": TABLE.table_id, "kinds": KINDS.table_id}, "stages": {}}
    )
    kinds = {KINDS.table_id: TableState(KINDS, (run,))}
    commit = harness.commit

    def with_kinds(**changes: Any) -> None:
        commit(**{**changes, "tables": {**changes.get("tables", harness.manifest.tables), **kinds}})

    harness.commit = with_kinds  # type: ignore[method-assign]
    harness.epoch(DELAYS)
    return harness


class ViewServer:
    """Where it is, and its process."""

    def __init__(self, url: str, process: subprocess.Popen[str], log: Path) -> None:
        self.url = url
        self.http_url = ""
        self.process = process
        self.log = log
        parts = urlsplit(url)
        assert parts.port is not None
        self.host, self.port, self.database = parts.hostname or "", parts.port, parts.path.lstrip("/")

    def dsn(self, user: str = "reader", **options: object) -> str:
        more = " ".join(f"{name}={value}" for name, value in options.items())
        return f"host={self.host} port={self.port} dbname={self.database} user={user} connect_timeout=60 {more}"

    def psql(self, *commands: str, user: str = "reader", code: int = 0, **environment: str) -> str:
        """What psql says; a command each. For code != 0 what it says on stderr."""
        words = [
            "psql",
            "-X",
            "-h",
            self.host,
            "-p",
            str(self.port),
            "-U",
            user,
            "-d",
            self.database,
            "-v",
            "ON_ERROR_STOP=1",
        ]
        for command in commands:
            words += ["-c", command]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"PGCONNECT_TIMEOUT": "20"} | environment,
        )
        assert done.returncode == code, (done.stderr, self.log.read_text()[-2000:])
        return done.stdout if code == 0 else done.stderr


@contextmanager
def serving(home: Path, *names: str, settings: Mapping[str, object] | None = None) -> Iterator[ViewServer]:
    """`magnetar pipeline serve` until the block ends."""
    command = [sys.executable, "-m", "magnetar", "pipeline", "serve", *names, "--port", "0"]
    for key, value in (settings or {}).items():
        command += ["--set", f"{key}={value}"]
    log = home / "serve.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"MAGNETAR_HOME": str(home)}
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("magnetar ready postgresql://"), (line, log.read_text()[-2000:])
        server = ViewServer(line.split()[2], process, log)
        server.http_url = next((word for word in line.split() if word.startswith("http")), "")
        yield server
        assert process.poll() is None, log.read_text()[-2000:]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()[-2000:]
        assert "Traceback" not in log.read_text(), log.read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
