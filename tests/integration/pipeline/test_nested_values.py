"""Structs and maps: out of a topic's JSON, through views that keep them, into a sink and to a client of PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest

from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import running, send
from tests.support.served_views import serving
from tests.support.topics import drain
from tests.support.waiting import wait_until

TEXT = """
CREATE SOURCE orders (id INT, place STRUCT<city VARCHAR, at STRUCT<lat DOUBLE PRECISION, tags VARCHAR[]>>, amounts MAP(VARCHAR, BIGINT))
  WITH (connector = 'pulsar', service.url = '{url}', topic = '{topic}', startingOffsets = 'earliest') FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW kept AS SELECT id, place, amounts, ROW(id, 'x') AS made, MAP {{'id': id}} AS mapped FROM orders;
CREATE MATERIALIZED VIEW fields AS
  SELECT id, (place).city, (place).at.lat + 1 AS north, (place).at.tags[1] AS tag, amounts['a'] AS a, map_length(amounts) AS n,
         map_keys(map_cat(amounts, MAP {{'z': CAST(1 AS BIGINT)}})) AS names, to_jsonb(place) AS doc, (made).f2 AS made
  FROM kept;
CREATE MATERIALIZED VIEW by_city AS SELECT (place).city AS city, sum(amounts['a']) AS s FROM orders GROUP BY (place).city;
CREATE MATERIALIZED VIEW entries AS
  SELECT k.id, (e).key AS name, (e).value AS amount FROM kept AS k, unnest(map_entries(k.amounts)) AS u(e);
CREATE SINK sent AS SELECT id, place, amounts FROM orders
  WITH (connector = 'pulsar', service.url = '{url}', topic = '{topic}-sent') FORMAT PLAIN ENCODE JSON;
"""
ROWS: list[dict[str, Any]] = [
    {"id": 1, "place": {"city": "Bern", "at": {"lat": 46.5, "tags": ["x", "y"]}}, "amounts": {"a": 1, "b": 2}},
    {"id": 2, "place": {"city": "Bern", "at": None}, "amounts": {}},
    {"id": 3, "place": None, "amounts": None},
]
FIELDS = [
    (1, "Bern", 47.5, "x", 1, 2, ["a", "b", "z"], '{"at": {"lat": 46.5, "tags": ["x", "y"]}, "city": "Bern"}', "x"),
    (2, "Bern", None, None, None, 0, ["z"], '{"at": null, "city": "Bern"}', "x"),
    (3, None, None, None, None, None, ["z"], None, "x"),
]


@pytest.mark.timeout(600)
def test_structs_and_maps(
    spark: Any,
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAGNETAR_HOME", str(tmp_path))
    client.subscribe(f"{topic}-sent", "kept").close()
    send(client, topic, ROWS)
    pipeline = Pipeline(f"n{topic.rpartition('/')[2]}", spark=spark, units=2, trigger_s=0.05)
    pipeline.sql(TEXT.format(url=server.service_url, topic=topic))
    with (
        running(pipeline),
        serving(tmp_path, pipeline.name, settings={"statementTimeoutSeconds": "250"}) as views,
        psycopg.connect(views.dsn(), autocommit=True) as connection,
    ):

        def found(query: str) -> list[tuple[Any, ...]]:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]

        wait_until(lambda: len(found("SELECT id FROM fields")) == 3, 240)
        assert found("SELECT id, city, north, tag, a, n, list_sort(names), doc, made FROM fields ORDER BY id") == FIELDS
        assert found("SELECT * FROM by_city ORDER BY city") == [("Bern", 1), (None, None)]
        assert found("SELECT * FROM entries ORDER BY name") == [(1, "a", 1), (1, "b", 2)]
        (place, amounts, made, mapped) = found("SELECT place, amounts, made, mapped FROM kept WHERE id = 1")[0]
        assert (place, amounts) == ({"city": "Bern", "at": {"lat": 46.5, "tags": ["x", "y"]}}, ROWS[0]["amounts"])
        assert (made, mapped) == ({"f1": 1, "f2": "x"}, {"id": 1})
        asked = "SELECT (place).city, (place).at.lat, amounts['a'], map_access(amounts, 'b') FROM kept WHERE id = 1"
        assert found(asked) == [("Bern", 46.5, 1, 2)]
    sent = sorted((json.loads(each.data()) for each in drain(client, f"{topic}-sent")), key=lambda row: row["id"])
    assert sent == ROWS
