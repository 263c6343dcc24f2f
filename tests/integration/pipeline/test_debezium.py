"""A database's changes as Debezium sends them: tables and views over them against the database, and a sink read back."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar

from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import view_rows

GROUPS = ("red", "green", "blue", None)


class Database:
    """One table and its change events: `before` is whole, only the key, or missing, as REPLICA IDENTITY and connectors differ."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}

    def change(self) -> tuple[int, list[bytes]]:
        """A change of one row: its old key, and the messages."""
        chance = self._random
        key = chance.randrange(30)
        before = self.rows.pop(key, None)
        if before is not None and chance.random() < 0.3:
            shown = chance.choice([before, {"id": key, "g": None, "n": None}])
            return key, [_event("d", shown, None), b""]
        free = next(number for number in range(100, 1000) if number not in self.rows)
        moved = before is not None and chance.random() < 0.1
        after = {"id": free if moved else key, "g": chance.choice(GROUPS), "n": chance.randrange(-50, 50)}
        self.rows[after["id"]] = after
        if before is None:
            return key, [_event(chance.choice("cr"), None, after)]
        return key, [_event("u", before if moved else chance.choice([before, None]), after)]


def _event(op: str, before: Any, after: Any) -> bytes:
    envelope = {"before": before, "after": after, "op": op, "source": {"lsn": 1}, "ts_ms": 1}
    return json.dumps({"schema": {}, "payload": envelope} if op != "r" else envelope).encode()


def test_tables_and_views_follow_a_database(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """In epochs with rescales between them; what a sink says of the view in the same form makes the same table again."""
    where = f"connector = 'pulsar', service.url = '{server.service_url}'"
    form = "FORMAT DEBEZIUM ENCODE JSON"
    statements = f"""
        CREATE TABLE t (id INT PRIMARY KEY, g VARCHAR, n BIGINT)
        WITH ({where}, topic = '{topic}', startingOffsets = 'earliest') {form};
        CREATE MATERIALIZED VIEW v AS SELECT g, count(*) AS c, sum(n) AS s, max(n) AS most FROM t GROUP BY g;
        CREATE SINK out FROM v WITH ({where}, topic = '{topic}-out', admin.url = '{server.http_url}') {form};
        CREATE TABLE again (g VARCHAR PRIMARY KEY, c BIGINT, s BIGINT, most BIGINT)
        WITH ({where}, topic = '{topic}-out', startingOffsets = 'earliest') {form};
        """
    client.create_producer(f"{topic}-out").close()
    database = Database(seed=5)
    producer = client.create_producer(topic)
    for units in (2, 3, 1, 3):
        for _ in range(60):
            key, messages = database.change()
            for message in messages:
                producer.send(message, partition_key=json.dumps({"id": key}))
        pipeline = Pipeline("p", str(tmp_path / "p"), spark, units)
        pipeline.sql(statements)
        pipeline.run(once=True)
        rows = database.rows.values()
        assert view_rows(tmp_path / "p", "t") == {(row["id"], row["g"], row["n"]) for row in rows}
        counts = Counter(row["g"] for row in rows)
        wanted = set()
        for group, count in counts.items():
            numbers = [row["n"] for row in rows if row["g"] == group]
            wanted.add((group, count, sum(numbers), max(numbers)))
        assert view_rows(tmp_path / "p") == wanted
    pipeline.run(once=True)
    assert view_rows(tmp_path / "p", "again") == wanted
    assert pipeline.status.counters.get("absent_deletes", 0) == 0
