"""`bookies`, `ledger` and `metadata` beside a running server, without its directory: through its admin API."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.integration.cli.conftest import Shell


def shown(shell: Shell, *args: str) -> Any:
    return json.loads(shell.run(*args, "--json"))


def test_the_metadata_tree_is_looked_at(shell: Shell) -> None:
    assert "public" in shown(shell, "metadata", "ls", "/admin/policies")
    assert shell.run("metadata", "ls", "/admin/policies/public", "--raw").split() == ["default"]
    found = shown(shell, "metadata", "get", "/admin/policies/public/default")
    assert found["value"]["replication_clusters"] == ["standalone"]
    raw = json.loads(shell.run("metadata", "get", "/admin/policies/public/default", "--raw"))
    assert raw == found["value"]
    stat = shown(shell, "metadata", "stat", "/admin/policies/public")
    assert stat["numChildren"] == 1
    assert stat["mtime"] >= stat["ctime"] > 0
    assert "does not exist" in shell.run("metadata", "get", "/nowhere", code=1)
    assert "does not exist" in shell.run("metadata", "ls", "/nowhere", code=1)
    assert shown(shell, "metadata", "restored") == []


def test_ledgers_are_listed_shown_and_read(shell: Shell) -> None:
    shell.run("produce", "read-online", "-m", "first,second")
    topic = shown(shell, "topics", "stats-internal", "read-online")
    ledger_id = str(topic["ledgers"][-1]["ledgerId"])
    shell.run(
        "topics", "unload", "read-online"
    )  # closes the ledger: of an open one the last entry need not be confirmed to others
    rows = {str(row["ledgerId"]): row for row in shown(shell, "ledger", "list")}
    assert rows[ledger_id]["owner"] == "public/default/persistent/read-online"
    assert shown(shell, "ledger", "show", ledger_id)["state"] == "CLOSED"
    entries = [json.loads(line) for line in shell.run("ledger", "read", ledger_id, "--json").splitlines()]
    assert [entry["entryId"] for entry in entries] == list(range(len(entries)))
    assert b"second" in b"".join(base64.b64decode(entry["payload"]) for entry in entries)
    first = shell.run("ledger", "read", ledger_id, "--first", "0", "--last", "0", "--json").splitlines()
    assert [json.loads(line) for line in first] == entries[:1]
    assert shell.run("ledger", "read", ledger_id, "--first", "999") == ""
    assert "ledger 123456 does not exist" in shell.run("ledger", "read", "123456", code=1)


def test_bookies_racks_and_recovery(shell: Shell) -> None:
    assert all(row["state"] == "writable" for row in shown(shell, "bookies", "list"))
    shell.run("bookies", "racks", "set", "b:3181", "/r", "--hostname", "h")
    assert shown(shell, "bookies", "racks", "list") == [
        {"bookie": "b:3181", "group": "default", "rack": "/r", "hostname": "h"}
    ]
    assert shown(shell, "bookies", "racks", "get", "b:3181")["rack"] == "/r"
    shell.run("bookies", "racks", "delete", "b:3181")
    assert "b:3181" in shell.run("bookies", "racks", "delete", "b:3181", code=1)
    assert shown(shell, "bookies", "racks", "list") == []
    assert shown(shell, "bookies", "recovery", "status")["underreplicatedLedgers"] == 0
    assert shown(shell, "bookies", "recovery", "list") == []


@pytest.mark.parametrize(
    "line",
    [
        "bookies recovery disable",
        "bookies recovery delay 5",
        "bookies recover b:3181",
        "bookies decommission b:3181",
        "ledger verify --all",
        "metadata raise-ledger-ids 5",
        "metadata restored --release",
    ],
)
def test_what_needs_the_store_says_what_to_give(shell: Shell, line: str) -> None:
    assert "give the store itself: --metadata URL, --dir DIR" in shell.run(*line.split(), code=1)
