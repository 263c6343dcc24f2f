"""`magnetar topics` against the real admin API."""

from __future__ import annotations

import json

import pulsar

from magnetar.cli.demo.server import Server
from tests.integration.cli.conftest import Shell


def test_create_list_and_delete(shell: Shell) -> None:
    shell.run("topics", "create", "made")
    shell.run("topics", "create-partitioned-topic", "split", "-p", "3")
    assert "persistent://public/default/made" in json.loads(shell.run("topics", "list", "--json"))
    assert json.loads(shell.run("topics", "list", "--partitioned", "--json")) == ["persistent://public/default/split"]
    shell.run("topics", "delete", "made")
    shell.run("topics", "delete", "split", "--partitioned")
    assert "persistent://public/default/made" not in shell.run("topics", "list")
    assert json.loads(shell.run("topics", "list", "--partitioned", "--json")) == []


def test_stats_subscriptions_and_unsubscribe(shell: Shell) -> None:
    shell.run("produce", "measured", "-m", "a,b,c", "-db")
    shell.run("consume", "measured", "-s", "one", "-p", "Earliest")
    stats = json.loads(shell.run("topics", "stats", "measured", "--json"))
    assert stats["msgInCounter"] == 3
    assert stats["subscriptions"]["one"]["msgBacklog"] == 2
    assert "messages in\t3" in shell.run("topics", "stats", "measured", "--table")
    assert json.loads(shell.run("topics", "subscriptions", "measured", "--json")) == ["one"]
    shell.run("topics", "unsubscribe", "measured", "-s", "one")
    assert json.loads(shell.run("topics", "subscriptions", "measured", "--json")) == []


def test_peek_shows_and_takes_nothing(shell: Shell) -> None:
    shell.run("consume", "peeked", "-s", "s", "-n", "0", "-w", "0.1")
    shell.run("produce", "peeked", "-m", "single", "-k", "k", "-p", "x=1", "-db")
    shell.run("produce", "peeked", "-m", "b1,b2")
    for _ in range(2):
        rows = json.loads(shell.run("topics", "peek", "peeked", "-s", "s", "-n", "9", "--json"))
        assert [row["data"] for row in rows] == ["single", "b1", "b2"]
    assert json.loads(rows[0]["properties"]) == {"x": "1"}


def test_refusals_are_one_line(shell: Shell) -> None:
    for args in (("stats", "nowhere"), ("peek", "nowhere", "-s", "s"), ("delete", "nowhere")):
        error = shell.run("topics", *args, code=1)
        assert error.startswith("magnetar: ")
        assert "HTTP 404" in error
        assert error.count("\n") == 1


def test_peek_unpacks_every_codec(shell: Shell, server: Server) -> None:
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("packed", "s").close()
    codecs = ["LZ4", "ZLib", "ZSTD", "SNAPPY"]
    for codec in codecs:
        for batching in (True, False):
            options = {"compression_type": getattr(pulsar.CompressionType, codec), "batching_enabled": batching}
            producer = client.create_producer("packed", **options)
            producer.send(f"{codec} {batching} ".encode() * 50, partition_key=codec)
            producer.close()
    client.close()
    rows = json.loads(shell.run("topics", "peek", "packed", "-s", "s", "-n", "20", "--json"))
    expected = [f"{codec} {batching} " * 50 for codec in codecs for batching in (True, False)]
    assert [row["data"] for row in rows] == expected
    assert [row["key"] for row in rows] == [codec for codec in codecs for _ in range(2)]


def test_compact_and_its_status(shell: Shell) -> None:
    shell.run("consume", "kept", "-s", "s", "-n", "0", "-w", "0.1")
    for value in ("old", "new"):
        shell.run("produce", "kept", "-m", value, "-k", "key")
    assert json.loads(shell.run("topics", "compaction-status", "kept", "--json"))["status"] == "NOT_RUN"
    assert json.loads(shell.run("topics", "compact", "kept", "--json")) == {"compacting": "kept"}
    assert "status\tSUCCESS" in shell.run("topics", "compaction-status", "kept", "--wait", "--table")
    assert "HTTP 404" in shell.run("topics", "compact", "nowhere", code=1)


def test_terminate(shell: Shell) -> None:
    shell.run("produce", "ended", "-m", "last")
    last = json.loads(shell.run("topics", "terminate", "ended", "--json"))["last message"]
    assert shell.run("topics", "terminate", "ended", "--table").strip() == f"last message\t{last}"
    assert "terminated" in shell.run("produce", "ended", "-m", "more", code=1).lower()
