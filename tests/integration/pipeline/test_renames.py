"""Sources, views and sinks under other names: the same rows, subscription and producers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar

from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import GROUPS, OVER_GROUPS, latest, numbered, send, source, view_rows
from tests.support.topics import drain

RENAMES = """
ALTER SOURCE src RENAME TO numbers;
ALTER MATERIALIZED VIEW v RENAME TO groups;
ALTER SINK sent RENAME TO told;
"""


def test_what_is_renamed_goes_on_with_what_it_has(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    directory, target = tmp_path / "p", f"{topic}-sent"
    client.subscribe(target, "kept").close()
    where = f"WITH (connector = 'pulsar', service.url = '{server.service_url}', topic = '{target}')"

    def run(text: str) -> None:
        pipeline = Pipeline("p", str(directory), spark, units=2)
        pipeline.sql(text)
        pipeline.prepare(report=False)
        pipeline.run(once=True)

    sink = f"CREATE SINK sent FROM v {where} FORMAT PLAIN ENCODE JSON;"
    send(client, topic, numbered(0, 10))
    run(source(server.service_url, topic) + GROUPS + OVER_GROUPS + sink)
    before, rows = latest(directory), view_rows(directory, "w")
    assert len(drain(client, target)) == 7

    edited = source(server.service_url, topic, "numbers") + GROUPS.replace("src", "numbers").replace(" v ", " groups ")
    sink = sink.replace("SINK sent FROM v", "SINK told FROM groups")
    run(RENAMES + edited + sink)  # w is not in the file, and reads on
    after = latest(directory)
    assert [after.views["tables"][name] for name in ("groups", "w")] == [
        before.views["tables"][name] for name in ("v", "w")
    ]
    assert after.run_paths() == before.run_paths()
    assert after.sources["numbers"] == before.sources["src"]
    assert view_rows(directory, "w") == rows
    assert len(drain(client, target)) == 7, "nothing is sent again"

    send(client, topic, [{"k": "key-0", "n": 5}])
    run(RENAMES + edited + sink)
    assert {row for row in view_rows(directory, "groups") if row[0] == "key-0"} == {("key-0", 3, 0 + 7 + 5)}
    (change,) = drain(client, target)[7:]
    assert change.data() == b'{"k":"key-0","c":3,"s":12}'
    assert set(latest(directory).views["former_names"].values()) == {"src"}
    assert latest(directory).sinks["told"]["producer"] == "sent"
