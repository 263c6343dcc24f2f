"""Views that Spark made, read without it: by psycopg through the server, by `pipeline query`; compared with `format("magnetar.view")`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest

from magnetar.cli.main import run
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import GROUPS, OVER_GROUPS, numbered, send, source
from tests.support.served_views import ViewServer, serving

ALL = """CREATE MATERIALIZED VIEW rows_too AS SELECT k, n, n / 2 AS half, n % 2 = 0 AS even FROM src WHERE n < 50;"""


@pytest.fixture
def pipeline(
    spark: Any,
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    monkeypatch.setenv("MAGNETAR_HOME", str(tmp_path))
    send(client, topic, numbered(0, 300))
    made = Pipeline("served", spark=spark, units=2)
    made.sql(source(server.service_url, topic) + GROUPS + OVER_GROUPS + ALL)
    made.run(once=True)
    return made


@pytest.fixture
def views(pipeline: Pipeline, tmp_path: Path) -> Iterator[ViewServer]:
    with serving(tmp_path, "served") as found:
        yield found


def of_spark(spark: Any, pipeline: Pipeline, view: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("magnetar.view").options(pipeline=pipeline.files.root_url, view=view).load()
    return sorted((tuple(row) for row in frame.collect()), key=str)


def test_what_spark_wrote_is_what_clients_of_postgresql_read_while_epochs_come(
    spark: Any, pipeline: Pipeline, views: ViewServer, client: pulsar.Client, topic: str, capsys: Any
) -> None:
    with psycopg.connect(views.dsn(), autocommit=True) as connection:

        def same() -> None:
            for view in ("v", "w", "rows_too"):
                expected = of_spark(spark, pipeline, view)
                found = connection.execute(f"SELECT * FROM {view}").fetchall()
                assert sorted(found, key=str) == expected, view
                assert run(["pipeline", "query", f"SELECT * FROM {view}", "--json", "--limit", "0"]) == 0
                rows = json.loads(capsys.readouterr().out)
                assert sorted((tuple(row.values()) for row in rows), key=str) == expected
            assert connection.execute("SELECT c, s FROM v WHERE k = %s", ["key-3"]).fetchall() == [
                row[1:] for row in of_spark(spark, pipeline, "v") if row[0] == "key-3"
            ]

        same()
        before = connection.execute("SHOW epoch").fetchone() or ("",)
        send(client, topic, numbered(300, 350, keys=9))
        pipeline.run(once=True)
        for _ in range(600):
            if connection.execute("SELECT sum(c) FROM v").fetchone() == (350,):
                break
        same()
        assert connection.execute(f"SELECT sum(c) FROM v AS OF EPOCH {before[0]}").fetchone() == (300,)
        spark_only = "SELECT xxhash64(k) AS p FROM rows_too"
        assert run(["pipeline", "query", spark_only, "--json"]) == 1
        assert "--engine spark" in capsys.readouterr().err
