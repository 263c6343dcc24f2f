"""Rows that come for a closed window: left out and counted, kept or sent on, or the end of the epoch."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.errors import LateRowsError, PlanRefusedError
from magnetar.pipeline.operators.window import LATE_ROWS
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import send, view_rows
from tests.support.topics import drain

DAY = datetime(2026, 1, 1, tzinfo=UTC)
WINDOWS = " AS SELECT window_start, sum(n) AS total FROM TUMBLE(src, ts, INTERVAL '10 minutes') WHERE n > 0 GROUP BY window_start;"
LATE = "CREATE MATERIALIZED VIEW late AS SELECT * FROM LATE_ROWS(w);"


def at(minute: int, n: int) -> dict[str, Any]:
    return {"k": f"key-{n}", "n": n, "ts": (DAY + timedelta(minutes=minute)).isoformat()}


def totals(directory: Path, view: str = "w") -> dict[int, int]:
    """By minute of the day."""
    return {round((row[0] - DAY).total_seconds() / 60): row[1] for row in view_rows(directory, view)}


def test_late_rows_are_counted_kept_sent_on_or_refused(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    directory, target = tmp_path / "p", f"{topic}-late"
    client.subscribe(target, "kept").close()
    where = f"connector = 'pulsar', service.url = '{server.service_url}', "
    source = (
        "CREATE SOURCE src (k VARCHAR, n BIGINT, ts TIMESTAMPTZ, WATERMARK FOR ts AS ts - INTERVAL '1 minute') "
        f"WITH ({where}topic = '{topic}', startingOffsets = 'earliest') FORMAT PLAIN ENCODE JSON;"
    )
    sink = f"CREATE SINK sent AS SELECT k, n FROM LATE_ROWS(w) WITH ({where}topic = '{target}');"

    def run(policy: str = "", more: str = "") -> Pipeline:
        pipeline = Pipeline("p", str(directory), spark, units=2)
        pipeline.sql(f"{source} CREATE MATERIALIZED VIEW w{policy}{WINDOWS} {LATE} {sink} {more}")
        pipeline.run(once=True)
        return pipeline

    send(client, topic, [at(1, 1), at(11, 2), at(25, 4)])
    assert run().status.counters.get(LATE_ROWS, 0) == 0
    # the window of 00:02 is closed, that of 00:22 is not; what the view would not take anyway is not late
    send(client, topic, [at(2, 8), at(22, 16), at(3, -1)])
    assert run().status.counters[LATE_ROWS] == 1
    assert totals(directory) == {0: 1, 10: 2, 20: 4 + 16}
    (late,) = view_rows(directory, "late")
    assert late[:5] == ("key-8", 8, DAY + timedelta(minutes=2), DAY, DAY + timedelta(minutes=10))
    assert [json.loads(message.data()) for message in drain(client, target)] == [{"k": "key-8", "n": 8}]

    second = f"CREATE MATERIALIZED VIEW w2{WINDOWS}"
    run(more=second)
    assert totals(directory, "w2") == {0: 1 + 8, 10: 2, 20: 4 + 16}, "in what was there before a view nothing is late"

    send(client, topic, [at(4, 32), at(23, 64)])
    with pytest.raises(LateRowsError, match="1 rows came for windows"):
        run(" WITH (late_rows = 'fail')", second)
    assert totals(directory) == {0: 1, 10: 2, 20: 4 + 16}, "nothing of the epoch"
    run(more=second)
    assert totals(directory) == {0: 1, 10: 2, 20: 4 + 16 + 64}
    assert {row[1] for row in view_rows(directory, "late")} == {8, 32}
    assert len(drain(client, target)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "CREATE MATERIALIZED VIEW a AS SELECT k, sum(n) AS total FROM src GROUP BY k; "
        "CREATE MATERIALIZED VIEW late AS SELECT * FROM LATE_ROWS(a);",
        "CREATE MATERIALIZED VIEW a WITH (late_rows = 'fail') AS SELECT k, sum(n) AS total FROM src GROUP BY k;",
    ],
)
def test_without_windows_that_close_nothing_is_late(spark: Any, tmp_path: Path, text: str) -> None:
    pipeline = Pipeline("p", str(tmp_path), spark)
    options = "connector = 'pulsar', topic = 'x', service.url = 'pulsar://localhost:6650'"
    pipeline.sql(f"CREATE SOURCE src (k VARCHAR, n BIGINT) WITH ({options}) FORMAT PLAIN ENCODE JSON; {text}")
    with pytest.raises(PlanRefusedError, match="WATERMARK FOR ts"):
        pipeline.explain()
