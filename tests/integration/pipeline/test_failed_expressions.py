"""Expressions that fail for a row: NULL and counted, or the end of the epoch with the row's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.errors import FailedExpressionError
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import latest, send, source, view_rows

VIEWS = """
CREATE MATERIALIZED VIEW v{policy} AS SELECT n, k::int AS k, CASE WHEN n <> 0 THEN 10 / n END AS q FROM src WHERE 100 / (n - 7) > -1000;
CREATE MATERIALIZED VIEW g AS SELECT n / 10 AS tens, sum(k::int) AS s, 100 / (count(*) - 1) AS r FROM src GROUP BY n / 10;
"""


def test_what_fails_is_null_and_counted_or_ends_the_epoch(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    directory = tmp_path / "p"

    def run(policy: str = "", more: str = "", *, low_latency: bool = False) -> Pipeline:
        pipeline = Pipeline("p", str(directory), spark, units=2)
        pipeline.sql(source(server.service_url, topic) + VIEWS.format(policy=policy) + more)
        pipeline.prepare(low_latency=low_latency)
        pipeline.run(once=True)
        return pipeline

    send(
        client,
        topic,
        [{"k": "1", "n": 1}, {"k": "x", "n": 2}, {"k": None, "n": 3}, {"k": "4", "n": 0}, {"k": "5", "n": 7}],
    )
    # of v: 'x'::int, and 100 / 0 of n = 7, which WHERE leaves out; of g: 'x'::int
    assert run().status.counters == {"expression_errors": 3}
    assert {row[:3] for row in view_rows(directory)} == {(1, 1, 10), (2, None, 5), (3, None, 3), (0, 4, None)}
    assert view_rows(directory, "g") == {(0, 10, 25)}

    send(client, topic, [{"k": "20", "n": 20}])  # 100 / (1 - 1)
    assert run(" WITH (on.error = 'strict')", low_latency=True).status.counters == {"expression_errors": 1}
    assert view_rows(directory, "g") == {(0, 10, 25), (2, 20, None)}
    epoch = latest(directory).epoch
    send(client, topic, [{"k": "y", "n": 4}])
    told = r"view v: CAST\(k AS INT\) fails for the message .*\d+:\d+:-?\d+ of src; .*SET \(on.error"
    with pytest.raises(FailedExpressionError, match=told):
        run(" WITH (on.error = 'strict')")
    assert latest(directory).epoch == epoch
    run(" WITH (on.error = 'strict')", "ALTER MATERIALIZED VIEW v SET (on.error = 'null');")
    assert (4, None, 2) in {row[:3] for row in view_rows(directory)}
