"""Views of constants: their rows are there with the first epoch, once, and as any others after restarts, rescales and joins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.errors import PlanRefusedError
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.views.control.driver import claim
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.pipeline.views.scan.stored_views import find_table
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import latest, running, send, source
from tests.support.served_views import serving
from tests.support.waiting import wait_until

ALONE = """
CREATE MATERIALIZED VIEW one AS SELECT 1 AS a, 'x' AS b;
CREATE MATERIALIZED VIEW pairs AS SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (NULL, NULL)) AS t (n, s);
CREATE MATERIALIZED VIEW series AS SELECT * FROM generate_series(1, 10) AS t(x);
CREATE MATERIALIZED VIEW counted AS SELECT x % 2 AS odd, count(*) AS c FROM series GROUP BY x % 2;
CREATE MATERIALIZED VIEW met AS SELECT a.x, b.s FROM series AS a LEFT JOIN pairs AS b ON a.x = b.n WHERE a.x < 4;
"""
ROWS = {
    "one": [(1, "x")],
    "pairs": [(1, "a"), (2, "b"), (None, None)],
    "series": [(number,) for number in range(1, 11)],
    "counted": [(0, 5), (1, 5)],
    "met": [(1, "a"), (2, "b"), (3, None)],
}


def shown(directory: Path, view: str) -> Counter[tuple[Any, ...]]:
    """The rows of the newest manifest, in the columns that people see."""
    manifest = latest(directory)
    state = find_table(manifest, view)
    columns = manifest.views["columns"][view]
    found = read_arrow(StateFiles(str(directory)), state, range(state.table.vnode_count)).to_pylist()
    return Counter(tuple(row[name] for name in columns) for row in found)


def rows(directory: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    return {name: shown(directory, name) for name in ROWS}


@pytest.mark.timeout(600)
def test_a_pipeline_of_constants_alone(spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "p"
    wanted = {name: Counter(each) for name, each in ROWS.items()}

    def pipeline(text: str = "", units: int = 2, low_latency: bool = True) -> Pipeline:
        found = Pipeline("p", str(directory), spark, units=units)
        found.sql(text)
        found.prepare(report=False, rebuild=True, low_latency=low_latency)
        return found

    assert "input <- one row, once" in pipeline(ALONE).explain()
    pipeline(ALONE).run(once=True)
    assert rows(directory) == wanted
    epoch = latest(directory).epoch

    pipeline(low_latency=False).run(once=True)
    assert rows(directory) == wanted
    assert latest(directory).epoch == epoch, "there was nothing to do"

    going = pipeline()
    with running(going):  # until it is told to stop, with other units meanwhile
        going.rescale(3)
        wait_until(lambda: len(VnodeMapping.from_json(latest(directory).mapping).units) == 3, 120)
    assert rows(directory) == wanted

    pipeline("DROP MATERIALIZED VIEW one; CREATE MATERIALIZED VIEW one AS VALUES (2, 'y'), (2, 'y');").run(once=True)
    assert shown(directory, "one") == Counter({(2, "y"): 2})
    assert shown(directory, "counted") == wanted["counted"]

    # a driver that ends between the claim and the rows leaves them to the next one
    claim(StateFiles(str(directory)), SystemClock(), 2)
    pipeline("CREATE MATERIALIZED VIEW two AS SELECT column1 + 1 AS b FROM one;").run(once=True)
    assert shown(directory, "two") == Counter({(3,): 2})

    refused = pipeline()
    refused.sql("CREATE MATERIALIZED VIEW bad WITH (on.error = 'dead_letter') AS SELECT 1 / 0 AS x;")
    with pytest.raises(PlanRefusedError, match="computed from constants"):
        refused.explain()


@pytest.mark.timeout(600)
def test_constants_meet_the_rows_of_a_topic(
    spark: Any,
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAGNETAR_HOME", str(tmp_path))
    pipeline = Pipeline(f"c{topic.rpartition('/')[2]}", spark=spark, units=2, trigger_s=0.05)
    pipeline.sql(
        source(server.service_url, topic)
        + """
CREATE MATERIALIZED VIEW named AS
  SELECT src.n, c.name FROM src JOIN (VALUES ('a', 'Ann'), ('b', 'Bob')) AS c (k, name) ON src.k = c.k;
CREATE MATERIALIZED VIEW filled AS
  SELECT g.x, count(src.n) AS c FROM generate_series(0, 2) AS g(x) LEFT JOIN src ON src.n = g.x GROUP BY g.x;
CREATE MATERIALIZED VIEW both AS SELECT k FROM src UNION ALL SELECT 'constant' UNION ALL VALUES ('more');
"""
    )
    directory = Path(pipeline.place.directory)
    with (
        running(pipeline),
        serving(tmp_path, pipeline.name, settings={"statementTimeoutSeconds": "250"}) as views,
        psycopg.connect(views.dsn(), autocommit=True) as connection,
    ):

        def found(query: str) -> list[tuple[Any, ...]]:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]

        wait_until(lambda: found("SELECT * FROM filled ORDER BY x") == [(0, 0), (1, 0), (2, 0)], 120)
        assert found("SELECT * FROM both ORDER BY k") == [("constant",), ("more",)]
        for number, key in enumerate("abc"):  # each an epoch of its own, most of them of kept plans
            send(client, topic, [{"k": key, "n": number}])
            wait_until(lambda n=number: found("SELECT count(*) FROM both") == [(3 + n,)], 120)  # type: ignore[misc]
        assert found("SELECT * FROM named ORDER BY n") == [(0, "Ann"), (1, "Bob")]
        assert found("SELECT * FROM filled ORDER BY x") == [(0, 1), (1, 1), (2, 1)]
        connection.execute(
            "CREATE MATERIALIZED VIEW later AS SELECT v.x, both.k FROM both JOIN (VALUES ('c')) v(x) ON k = x"
        )
        assert found("SELECT * FROM later") == [("c", "c")]
        connection.execute("CREATE VIEW plain AS SELECT x * 2 AS y FROM generate_series(1, 3) AS g(x)")
        connection.execute("CREATE MATERIALIZED VIEW over_plain AS SELECT sum(y) AS s FROM plain")
        assert found("SELECT s FROM over_plain") == [(12,)]
    assert shown(directory, "named") == Counter([(0, "Ann"), (1, "Bob")])
