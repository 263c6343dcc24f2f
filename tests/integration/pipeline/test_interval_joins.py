"""Joins of rows whose times lie near each other: equal to the recomputation, and what is kept does not grow."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar

from magnetar.pipeline.operators.window import LATE_ROWS
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import latest, send, view_rows

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
VIEW = """
CREATE MATERIALIZED VIEW v AS SELECT a.n AS an, b.n AS bn FROM a JOIN b
ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '10 seconds' AND b.ts + INTERVAL '5 seconds';
"""


def kept(directory: Path) -> int:
    """Rows in the state of the join."""
    manifest = latest(directory)
    numbers = [
        number for stage, found in manifest.views["stages"].items() if stage.endswith("-join") for number in found
    ]
    files = StateFiles(str(directory))
    return sum(
        read_arrow(files, manifest.tables[number], range(manifest.tables[number].table.vnode_count)).num_rows
        for number in numbers
    )


def test_an_interval_join_is_equal_and_keeps_what_may_still_match(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    directory = tmp_path / "p"
    text = "".join(
        f"CREATE SOURCE {name} (k INT, n INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '3 seconds') "
        f"WITH (connector = 'pulsar', service.url = '{server.service_url}', topic = '{topic}-{name}', startingOffsets = 'earliest') "
        "FORMAT PLAIN ENCODE JSON;"
        for name in "ab"
    )
    pick, sent, sizes = random.Random(11), {"a": [], "b": []}, []  # type: ignore[var-annotated]

    def run() -> dict[str, int]:
        pipeline = Pipeline("p", str(directory), spark, units=2)  # each epoch by a driver of its own
        pipeline.sql(text + VIEW)
        pipeline.run(once=True)
        return dict(pipeline.status.counters)

    for epoch in range(3):
        for name, rows in sent.items():
            new = [(pick.randrange(3), epoch * 1000 + number, epoch * 60 + pick.randrange(60)) for number in range(60)]
            new.sort(key=lambda row: row[2] // 3)  # out of order by less than the watermark's delay
            rows += new
            send(
                client,
                f"{topic}-{name}",
                [{"k": k, "n": n, "ts": (BEGIN + timedelta(seconds=s)).isoformat()} for k, n, s in new],
            )
        assert run().get(LATE_ROWS, 0) == 0
        wanted = {(n, m) for k, n, s in sent["a"] for g, m, r in sent["b"] if k == g and -10 <= s - r <= 5}
        assert {row[:2] for row in view_rows(directory)} == wanted
        sizes.append(kept(directory))
    assert max(sizes) <= 60, f"of 360 rows those of the last seconds are kept: {sizes}"

    send(client, f"{topic}-a", [{"k": 0, "n": -1, "ts": BEGIN.isoformat()}])
    assert run()[LATE_ROWS] == 1
    assert {row[:2] for row in view_rows(directory)} == wanted
