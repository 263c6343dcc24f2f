"""Expressions that fail for a row: NULL and counted, the row left out and its message sent on, or the end of the epoch with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.errors import FailedExpressionError, PlanRefusedError
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
    for low_latency in (False, True):
        with pytest.raises(FailedExpressionError, match=told):
            run(" WITH (on.error = 'strict')", low_latency=low_latency)
        assert latest(directory).epoch == epoch
    run(" WITH (on.error = 'strict')", "ALTER MATERIALIZED VIEW v SET (on.error = 'null');")
    assert (4, None, 2) in {row[:3] for row in view_rows(directory)}


LETTERS = """
CREATE MATERIALIZED VIEW v WITH (on.error = 'dead_letter') AS SELECT n, k::int AS k, 10 / n AS q FROM src WHERE 100 / (n - 7) > -1000;
CREATE MATERIALIZED VIEW g WITH (on.error = 'dead_letter') AS SELECT n / 10 AS tens, sum(k::int) AS s FROM src GROUP BY n / 10;
"""
CAST = "CAST(k AS INT)"


def test_the_message_of_a_row_that_is_left_out_is_a_dead_letter(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    directory, producer = tmp_path / "p", client.create_producer(topic)
    pipeline = Pipeline("p", str(directory), spark, units=2)

    def sent(*rows: str) -> list[tuple[str, str]]:
        """Each message and its position."""
        ids = [producer.send(row.encode(), partition_key=row[-3:]) for row in rows]
        return [(row, f"{each.ledger_id()}:{each.entry_id()}:0") for row, each in zip(rows, ids, strict=True)]

    def run(more: str = "", *, low_latency: bool) -> dict[str, int]:
        pipeline.sql(more)
        pipeline.prepare(low_latency=low_latency)
        pipeline.run(once=True)
        return dict(pipeline.status.counters)

    pipeline.sql(source(server.service_url, topic, **{"on.decode.error": "strict"}) + LETTERS)
    assert pipeline.explain().count("left out, sent to the dead-letter topic of src") == 2
    first = sent('{"k":"1","n":1}', '{"k":"x","n":0}', '{"k":"4","n":7}', '{"k":"5","n":15}')
    expected = [("v", CAST, first[1]), ("v", "100 / (n - 7) > -1000", first[2]), ("g", CAST, first[1])]
    assert run(low_latency=False) == {"expression_errors": 3, "dead_letters": 3}
    assert {row[:3] for row in view_rows(directory)} == {(1, 1, 10), (15, 5, 0)}
    assert view_rows(directory, "g") == {(0, 5), (1, 5)}

    small = sent('{"k":"y","n":3}', '{"k":"6","n":5}')
    expected += [("v", CAST, small[0]), ("g", CAST, small[0])]
    assert run(low_latency=True) == {"expression_errors": 2, "dead_letters": 2}
    # what was there before a view, in an epoch for this view alone
    later = "CREATE MATERIALIZED VIEW w WITH (on.error = 'dead_letter') AS SELECT 1 / n AS r FROM src;"
    expected.append(("w", "1 / n", first[1]))
    assert run(later, low_latency=True) == {"expression_errors": 1, "dead_letters": 1}
    assert len(view_rows(directory, "w")) == 5

    letters = client.create_reader(f"{topic}-magnetar-p-src-DLQ", pulsar.MessageId.earliest)
    found = []
    while letters.has_message_available():
        letter = letters.read_next(30_000)
        said = letter.properties()
        data = letter.data().decode()
        assert letter.partition_key() == data[-3:]
        assert said.pop("reason") == f"{said['expression']} fails"
        found.append((said.pop("view"), said.pop("expression"), (data, said.pop("position"))))
        assert said == {"pipeline": "p", "source": "src", "topic": topic}
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (
            "SELECT 100 / (count(*) - 1) AS r FROM src GROUP BY k",
            r"100 / .* is computed from what a join, GROUP BY, OVER, .*nullif",
        ),
        ("SELECT a.n / b.n AS r FROM src AS a JOIN src AS b ON a.k = b.k", "is computed from what a join"),
        (
            "SELECT 1 / u AS r FROM src, unnest(ARRAY[n, 0]) AS u",
            "is computed from what a join, GROUP BY, OVER, unnest",
        ),
        ("SELECT 1 / n AS r FROM below", "is computed from the stored rows of the MATERIALIZED VIEW below"),
    ],
)
def test_without_one_message_for_a_row_there_is_no_dead_letter(
    query: str, told: str, spark: Any, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    pipeline = Pipeline("p", str(tmp_path / "p"), spark)
    pipeline.sql(source(server.service_url, topic) + "CREATE MATERIALIZED VIEW below AS SELECT n FROM src;")
    pipeline.sql(f"CREATE MATERIALIZED VIEW v WITH (on.error = 'dead_letter') AS {query};")
    with pytest.raises(PlanRefusedError, match=f"{told}.*or write on.error = 'null' or 'strict'"):
        pipeline.explain()
