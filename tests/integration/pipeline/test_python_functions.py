"""Functions in Python: a view, a filter, an aggregate and a sink of them beside recomputation, and the same in served queries."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.base.clock import SystemClock
from magnetar.pipeline.errors import FailedExpressionError
from magnetar.pipeline.serving.engine import Engine
from magnetar.pipeline.serving.reader import Views
from magnetar.pipeline.serving.sql.translate import Context, QueryError
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import send, source, view_rows

TEXT = """
CREATE FUNCTION gcd(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE python STRICT AS $$
import math
def gcd(a, b):
    return math.gcd(a, b)
$$;
CREATE FUNCTION number(k VARCHAR) RETURNS INT LANGUAGE python AS $$
def number(k):
    return int(k)
$$;
CREATE FUNCTION batched(x BIGINT) RETURNS DOUBLE LANGUAGE python WITH (batch = true) AS $$
import pyarrow.compute as pc
def batched(x):
    return pc.sqrt(x)
$$;
CREATE FUNCTION about(n BIGINT) RETURNS VARCHAR LANGUAGE sql AS $$ SELECT 'g' || gcd(n, 12) $$;
CREATE MATERIALIZED VIEW v AS SELECT n, number(k) AS k, shout(k) AS said, about(n) AS about, batched(n) AS root
    FROM src WHERE gcd(n, 6) > 1;
CREATE MATERIALIZED VIEW g AS SELECT gcd(n, 6) AS d, sum(gcd(n, 4)) AS s, count(*) FILTER (WHERE gcd(n, 4) = 4) AS fours
    FROM src GROUP BY gcd(n, 6);
"""


def test_views_and_queries_call_functions_in_python(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    directory = tmp_path / "p"

    def run(text: str = TEXT) -> Pipeline:
        pipeline = Pipeline("p", str(directory), spark, units=2)

        @pipeline.function("(k VARCHAR) RETURNS VARCHAR")
        def shout(k: str | None) -> str | None:
            return None if k is None else k.upper() + "!"

        assert shout("a") == "A!"
        pipeline.sql(source(server.service_url, topic) + text)
        pipeline.run(once=True)
        return pipeline

    rows: list[dict[str, Any]] = [{"k": str(n), "n": n} for n in range(1, 20)]
    rows += [{"k": "x", "n": 24}, {"k": None, "n": 25}, {"k": None, "n": None}]
    send(client, topic, rows)
    pipeline = run()
    # 'x' is no number, and of NULL int() raises as well, but WHERE leaves those rows out
    assert pipeline.status.counters == {"expression_errors": 1}
    numbers = [row for row in rows if row["n"] is not None]
    assert {row[:5] for row in view_rows(directory)} == {
        (row["n"], None if row["k"] == "x" else int(row["k"]), row["k"].upper() + "!", f"g{math.gcd(row['n'], 12)}", math.sqrt(row["n"]))
        for row in numbers
        if math.gcd(row["n"], 6) > 1
    }  # fmt: skip
    groups: dict[Any, list[int]] = {None: []}
    for row in numbers:
        groups.setdefault(math.gcd(row["n"], 6), []).append(math.gcd(row["n"], 4))
    assert view_rows(directory, "g") == {
        (key, sum(given) if given else None, given.count(4)) for key, given in groups.items()
    }
    assert "gcd(" in pipeline.explain()
    assert "python_function" not in pipeline.explain()

    engine = Engine(Views(StateFiles(str(directory)), SystemClock()), "p")

    def ask(text: str) -> list[dict[str, Any]]:
        snapshot = engine.snapshot()
        result = engine.run(engine.translate(text, Context(database="p"), snapshot=snapshot), {}, snapshot)
        try:
            return [row for batch in result.batches() for row in batch.to_pylist()]
        finally:
            result.close()

    try:
        asked = "SELECT about(n) AS a, shout(about(n)) AS b, batched(n * n) AS r FROM v WHERE gcd(n, 5) = 5 ORDER BY n"
        assert ask(asked) == [
            {"a": f"g{math.gcd(n, 12)}", "b": f"G{math.gcd(n, 12)}!", "r": float(n)} for n in (10, 15)
        ]
        assert ask("SELECT gcd(NULL, 2) AS n") == [{"n": None}]
        with pytest.raises(QueryError, match="function number: ValueError: invalid literal") as failed:
            ask("SELECT number('y')")
        assert failed.value.code == "38000"
    finally:
        engine.close()

    strict = TEXT.replace("VIEW v AS", "VIEW v WITH (on.error = 'strict') AS")
    send(client, topic, [{"k": "y", "n": 30}])
    with pytest.raises(
        FailedExpressionError, match=r"view v: CAST\(number\(CAST\(\(k\) AS VARCHAR\)\) AS INT\) fails for the message"
    ):
        run(strict)
