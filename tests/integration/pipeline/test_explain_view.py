"""Why a view is as fresh as it is, and where a row comes from: asked of the directory of a pipeline that has really run."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from magnetar.cli.main import cli
from magnetar.pipeline import Pipeline, explain_view
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import send

DAY = datetime(2026, 1, 1, tzinfo=UTC)
VIEWS = """
CREATE MATERIALIZED VIEW w AS
SELECT window_start, sum(n) AS total
FROM TUMBLE((SELECT ts, n FROM a UNION ALL SELECT ts, n FROM b), ts, INTERVAL '10 minutes')
GROUP BY window_start EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW sums AS SELECT k, sum(n) AS total FROM a GROUP BY k;
CREATE MATERIALIZED VIEW pairs AS SELECT a.k AS k, a.n AS left_n, b.n AS right_n FROM a JOIN b ON a.k = b.k;
"""


def at(minute: int, n: int) -> dict[str, Any]:
    return {"k": f"key-{n % 3}", "n": n, "ts": (DAY + timedelta(minutes=minute)).isoformat()}


def source(server: ServerProcess, name: str, topic: str) -> str:
    options = f"connector = 'pulsar', service.url = '{server.service_url}', admin.url = '{server.http_url}', "
    return (
        f"CREATE SOURCE {name} (k VARCHAR, n BIGINT, ts TIMESTAMPTZ, WATERMARK FOR ts AS ts - INTERVAL '1 minute') "
        f"WITH ({options}topic = '{topic}', startingOffsets = 'earliest') FORMAT PLAIN ENCODE JSON;"
    )


def command(*args: str) -> str:
    result = CliRunner().invoke(cli, ["explain", "view", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_view_that_waits_for_a_watermark_and_rows_with_their_origin(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    directory, other = str(tmp_path / "flights"), f"{topic}-b"
    send(client, topic, [at(1, 1), at(2, 2), at(25, 4)])
    send(client, other, [at(1, 8)])
    pipeline = Pipeline("flights", directory, spark, units=2)
    pipeline.sql(source(server, "a", topic) + source(server, "b", other) + VIEWS)
    pipeline.run(once=True)

    began_s = time.process_time()
    found = explain_view(directory, "w")
    assert time.process_time() - began_s < 1.0
    by_code = {str(reason.code): reason.facts for reason in found.reasons}
    assert list(by_code)[:2] == ["view-driver-gone", "view-waits-for-watermark"]
    waits = by_code["view-waits-for-watermark"]
    assert (waits["source"], waits["watermark"]) == ("b", "2026-01-01T00:00:00.000Z")
    assert waits["others"] == {"a": "2026-01-01T00:24:00.000Z"}
    assert found.moving is False
    assert by_code["view-waits-for-watermark"]["topics"] == [other]

    found = explain_view(directory, "sums", ["key-1"])
    key = found.details["key"]
    assert key["rows"] == [{"k": "key-1", "total": 1 + 4}]
    assert [file["rows"] for file in key["files"]] == [1]
    assert (Path(directory) / key["files"][0]["path"]).is_file()
    (kept,) = key["inputs"]
    assert (kept["keeps"], kept["count"]) == ("partial results", 1)
    assert {row["source"]: row["lag"] for row in found.details["sources"]} == {"a": 0}
    assert explain_view(directory, "sums", ["key-9"]).reasons[-1].code == "view-row-absent"

    found = explain_view(directory, "pairs", ["k=key-2"])
    assert [(row["left_n"], row["right_n"]) for row in found.details["key"]["rows"]] == [(2, 8)]
    inputs = {row["table"]: row for row in found.details["key"]["inputs"]}
    assert [row["count"] for row in inputs.values()] == [1, 1], "what the join keeps of both sides"
    assert {each["keeps"] for each in inputs.values()} == {"input rows"}

    moved = explain_view(directory, "sums", ["key-1"], units=3).details["what_if"]
    assert moved["vnodes_moved"] == 85
    told = json.loads(command("sums", "--pipeline", directory, "--key", "key-1", "--if-units", "3", "--json"))
    assert told["details"]["whatIf"]["vnodesMoved"] == 85
    assert told["details"]["key"]["rows"] == [{"k": "key-1", "total": 5}]
