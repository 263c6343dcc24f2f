"""`magnetar topics` against the real admin API."""

from __future__ import annotations

import json

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
    assert "messages in\t3" in shell.run("topics", "stats", "measured")
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
