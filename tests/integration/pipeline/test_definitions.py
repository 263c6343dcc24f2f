"""DDL of psql and drivers changes the pipeline that runs: views, functions, tables and options, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest

from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import latest, numbered, running, send, source
from tests.support.served_views import serving
from tests.support.waiting import wait_until

PATIENT = {"statementTimeoutSeconds": "250"}

REFUSED = [
    ("CREATE MATERIALIZED VIEW v AS SELECT 1 AS a FROM src", "42P07", 'relation "v" already exists'),
    ("CREATE MATERIALIZED VIEW x AS SELECT nothing FROM src", "0A000", "has no column nothing"),
    ("CREATE MATERIALIZED VIEW x AS SELECT reflect('java.lang.System', 'exit', 0) AS r FROM src", "0A000", "calls methods of Spark's"),
    ("CREATE MATERIALIZED VIEW x AS SELECT no_such_function(n) AS r FROM src", "55000", "Cannot resolve routine `NO_SUCH_FUNCTION`"),
    ("CREATE MATERIALISED VIEW x AS SELECT n FROM src", "42601", "CREATE takes"),
    ("DROP MATERIALIZED VIEW nothing", "42704", "IF EXISTS"),
    ("DROP SOURCE src", "2BP01", "v, w read from src"),
    ("DROP FUNCTION twice", "2BP01", "w use twice"),
    ("CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE python AS 'def f(x): return x'", "42501", "functions in Python"),
    ("CREATE SINK k FROM v WITH (connector = 'parquet', path = '/tmp/x')", "42501", "elsewhere than at a broker"),
    ("CREATE SINK k FROM v WITH (connector = 'pulsar', topic = 't', auth.token = 'x')", "0A000", "credential"),
    ("ALTER MATERIALIZED VIEW v SET (nothing = 'x')", "42601", "has no option nothing"),
]  # fmt: skip


@pytest.mark.timeout(600)
def test_a_running_pipeline_is_changed_by_its_clients(
    spark: Any,
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAGNETAR_HOME", str(tmp_path))

    def made() -> Pipeline:
        pipeline = Pipeline(f"d{topic.rpartition('/')[2]}", spark=spark, units=2, trigger_s=0.05)
        pipeline.sql(
            source(server.service_url, topic)
            + "CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS c FROM src GROUP BY k;"
        )
        return pipeline

    send(client, topic, numbered(0, 30))
    pipeline = made()
    directory = Path(pipeline.place.directory)
    with (
        running(pipeline),
        serving(tmp_path, pipeline.name, settings=PATIENT) as views,
        psycopg.connect(views.dsn(), autocommit=True) as connection,
    ):
        done = connection.execute("CREATE FUNCTION twice(x BIGINT) RETURNS BIGINT LANGUAGE sql AS $$ SELECT x * 2 $$")
        assert done.statusmessage == "CREATE FUNCTION"
        text = "CREATE MATERIALIZED VIEW w AS SELECT k, sum(twice(n)) AS s FROM src GROUP BY k"
        assert connection.execute(text).statusmessage == "CREATE MATERIALIZED VIEW"
        # the rows that were there before it are in it when the statement is answered
        assert connection.execute("SELECT sum(s) FROM w").fetchone() == (2 * sum(range(30)),)
        assert connection.execute("SELECT sum(c) FROM v").fetchone() == (30,)
        assert connection.execute(text.replace("VIEW w", "VIEW IF NOT EXISTS w")).statusmessage == (
            "CREATE MATERIALIZED VIEW"
        )
        assert connection.execute("SHOW FUNCTIONS").fetchall() == [("twice",)]
        with pytest.raises(psycopg.errors.ActiveSqlTransaction), connection.transaction():
            connection.execute("DROP MATERIALIZED VIEW w")
        what_cannot_be_is_refused(connection)
        connection.execute("CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR)")  # at the broker of the others
        connection.execute("INSERT INTO people VALUES (1, 'Ann'), (2, 'Bob')")
        connection.execute("FLUSH")
        assert connection.execute("SELECT name FROM people ORDER BY id").fetchall() == [("Ann",), ("Bob",)]
        assert connection.execute("ALTER MATERIALIZED VIEW w SET (on.error = 'strict')").statusmessage == (
            "ALTER MATERIALIZED VIEW"
        )
        an_index_is_made(connection)
        assert "strict" in str(connection.execute("SHOW CREATE MATERIALIZED VIEW w").fetchall())
        connection.execute("ALTER MATERIALIZED VIEW v RENAME TO counted")
        send(client, topic, numbered(30, 40))

        def both() -> bool:
            found = connection.execute("SELECT (SELECT sum(c) FROM counted), (SELECT sum(s) FROM w)").fetchone()
            return found == (40, 2 * sum(range(40)))

        wait_until(both, 120)
        assert connection.execute("DROP TABLE IF EXISTS nothing").statusmessage == "DROP TABLE"
        assert connection.execute("DROP TABLE people").statusmessage == "DROP TABLE"
        assert connection.execute("SHOW TABLES").fetchall() == []
        assert connection.execute("SHOW INDEXES").fetchall() == []
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM people")
        a_table_that_is_made_again_is_empty(connection)

    # what clients made stays: the file, run again, knows nothing of it and leaves it as it is
    pipeline = made()
    pipeline.sql("DROP MATERIALIZED VIEW v;")
    pipeline.run(once=True)
    assert [each["name"] for each in latest(directory).views["catalog"]] == ["twice", "src", "counted", "w"]


def what_cannot_be_is_refused(connection: psycopg.Connection[Any]) -> None:
    for statement, state, words in REFUSED:
        with pytest.raises(psycopg.Error) as refused:
            connection.execute(statement)
        assert (refused.value.sqlstate, words in str(refused.value)) == (state, True), (
            statement,
            str(refused.value),
        )


def an_index_is_made(connection: psycopg.Connection[Any]) -> None:
    assert connection.execute("CREATE INDEX by_name ON people (name)").statusmessage == "CREATE INDEX"
    assert connection.execute("SHOW INDEXES").fetchall() == [("by_name", "people", "name ASC")]
    assert connection.execute("SELECT id FROM people WHERE name = 'Bob'").fetchall() == [(2,)]


def a_table_that_is_made_again_is_empty(connection: psycopg.Connection[Any]) -> None:
    """It has none of the rows of the one that was dropped, and may have other columns."""
    connection.execute("CREATE TABLE people (id INT PRIMARY KEY, age INT)")
    connection.execute("CREATE MATERIALIZED VIEW how_many AS SELECT count(*) AS n FROM people")
    assert connection.execute("SELECT n FROM how_many").fetchall() == [(0,)]
    connection.execute("INSERT INTO people VALUES (3, 30)")
    connection.execute("FLUSH")
    assert connection.execute("SELECT * FROM people").fetchall() == [(3, 30)]
    assert connection.execute("SELECT n FROM how_many").fetchall() == [(1,)]
    connection.execute("DROP TABLE people CASCADE")
