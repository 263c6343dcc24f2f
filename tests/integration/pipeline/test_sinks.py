"""Changelogs into topics: what each form sends, and each change once whatever dies in between."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pulsar
import pytest

from magnetar.pipeline.connect.errors import OptionError, SinkError
from magnetar.pipeline.errors import ChangelogError
from magnetar.testing.server import ServerProcess
from tests.support.sink_harness import SinkHarness, sink
from tests.support.topics import drain

INSERT, BEFORE, AFTER, DELETE = range(4)
CHANGES = [
    [(INSERT, 1, "a"), (INSERT, 2, "b")],
    [(BEFORE, 1, "a"), (AFTER, 1, "c"), (DELETE, 2, "b")],
]


@pytest.fixture
def harness(tmp_path: Path) -> SinkHarness:
    made = SinkHarness(str(tmp_path / "pipeline"))
    made.create()
    return made


@pytest.fixture
def to(server: ServerProcess, topic: str) -> Callable[..., Any]:
    return lambda *options, **more: sink(server.service_url, server.http_url, topic, *options, **more)


def test_plain_upsert_and_debezium_json(
    harness: SinkHarness, to: Callable[..., Any], client: pulsar.Client, topic: str
) -> None:
    for changes in CHANGES:
        harness.epoch([changes])
    harness.deliver(to("FORMAT PLAIN ENCODE JSON", ", primary_key = 'k'"), commit=False)
    at = {1: "2023-11-14T22:13:20.000001Z", 2: "2023-11-14T22:13:20.000002Z"}
    sent = [(message.partition_key(), json.loads(message.data())) for message in drain(client, topic)]
    assert sent == [(str(k), {"k": k, "v": v, "at": at[k]}) for k, v in [(1, "a"), (2, "b"), (1, "c")]]


def test_upsert_sends_tombstones_event_times_and_properties(
    harness: SinkHarness, to: Callable[..., Any], client: pulsar.Client, topic: str
) -> None:
    for changes in CHANGES:
        harness.epoch([changes])
    options = ", event.time.column = 'at', properties.columns = 'v,k'"
    harness.deliver(to("FORMAT UPSERT ENCODE JSON", options))
    messages = drain(client, topic)
    assert [(m.partition_key(), m.has_null_value()) for m in messages] == [
        ("1", False),
        ("2", False),
        ("1", False),
        ("2", True),
    ]
    assert json.loads(messages[2].data())["v"] == "c"
    assert messages[2].properties() == {"v": "c", "k": "1"}
    assert {m.event_timestamp() for m in messages} == {1_700_000_000_000}


def test_debezium_in_json_and_avro_with_its_schema(
    harness: SinkHarness, to: Callable[..., Any], client: pulsar.Client, topic: str
) -> None:
    for changes in CHANGES:
        harness.epoch([changes])
    harness.deliver(to("FORMAT DEBEZIUM ENCODE AVRO"))
    registered = json.loads(client._client.get_schema_info(topic, -1).schema())
    found = [fastavro.schemaless_reader(io.BytesIO(m.data()), registered) for m in drain(client, topic)]
    rows = [(each["op"], (each["before"] or {}).get("v"), (each["after"] or {}).get("v")) for each in found]
    assert rows == [("c", None, "a"), ("c", None, "b"), ("u", "a", "c"), ("d", "b", None)]
    harness.epoch([[(AFTER, 1, "x")]])
    with pytest.raises(ChangelogError, match="without the row before it"):
        harness.deliver(to("FORMAT DEBEZIUM ENCODE AVRO"))


def test_a_delivery_that_is_repeated_adds_nothing(
    harness: SinkHarness, to: Callable[..., Any], client: pulsar.Client, topic: str
) -> None:
    form = to("FORMAT UPSERT ENCODE JSON")
    harness.epoch([[(INSERT, k, "x") for k in range(2500)], [(INSERT, -1, "y")]])
    assert harness.deliver(form, commit=False) == {}
    harness.deliver(form, commit=False)
    harness.epoch([[(DELETE, 7, "x")]])
    harness.deliver(form)
    harness.deliver(form)
    keys = [message.partition_key() for message in drain(client, topic)]
    assert sorted(keys) == sorted([*(str(k) for k in range(2500)), "-1", "7"])
    assert keys[-1] == "7"
    manifest = harness.store.latest()
    assert manifest is not None
    assert (manifest.sinks["out"]["epoch"], manifest.changelogs) == (2, {})


KILLS = 7
EPOCHS, ROWS = 8, 3000


def test_each_change_once_though_the_driver_is_killed_again_and_again(
    harness: SinkHarness, server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    for epoch in range(EPOCHS):
        harness.epoch([[(INSERT, (epoch * 2 + unit) * ROWS + row, "v" * 50) for row in range(ROWS)] for unit in (0, 1)])
    form, total = "FORMAT UPSERT ENCODE JSON", EPOCHS * 2 * ROWS
    command = [sys.executable, "-m", "tests.support.sink_harness"]
    command += [harness.files.root, server.service_url, server.http_url, topic, form]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    keys: list[int] = []
    for kill in range(1, KILLS + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            while len(keys) < kill * total // (KILLS + 1):
                keys.append(int(reader.read_next(30_000).partition_key()))
            driver.kill()
    assert harness.deliver(sink(server.service_url, server.http_url, topic, form), commit=False) == {}
    while reader.has_message_available():
        keys.append(int(reader.read_next(30_000).partition_key()))
    assert sorted(keys) == list(range(total))
    assert [key // (2 * ROWS) for key in keys] == sorted(key // (2 * ROWS) for key in keys)


def test_what_cannot_be_delivered_is_refused_with_the_fix(to: Callable[..., Any]) -> None:
    for form, options, words in [
        ("FORMAT UPSERT ENCODE JSON", ", primary_key = 'v'", "sink a view that is grouped by"),
        ("FORMAT UPSERT ENCODE BYTES", "", "write ENCODE JSON, AVRO or PROTOBUF"),
        ("", ", event.time.column = 'v'", "not a timestamp"),
        ("", ", properties.columns = 'z'", "names z; there are k, v, at"),
    ]:
        with pytest.raises(SinkError, match=words):
            to(form, options)
    with pytest.raises(OptionError, match="unknown option for writing: topicc; did you mean topic"):
        to("", ", topicc = 'v'")


def test_without_the_admin_api_there_is_a_warning(harness: SinkHarness, server: ServerProcess, topic: str) -> None:
    harness.epoch([[(INSERT, 1, "a")]])
    known = sink(server.service_url, server.http_url, topic, "")
    blind = replace(known, write=replace(known.write, connection=replace(known.write.connection, admin_url=None)))
    assert "set-deduplication --enable" in harness.deliver(blind)["out"]
