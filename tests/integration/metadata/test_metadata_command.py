"""`magnetar metadata` on trees that real servers write: a running standalone, and our metadata server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote_plus

import pulsar
import pytest

from magnetar.cli.main import run
from magnetar.metadata import paths
from magnetar.testing.server import ServerProcess
from tests.contract.metadata.worlds import ServerWorld


def look(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["metadata", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_running_standalone_is_looked_into(
    server: ServerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer = client.subscribe(topic, "billing")
    client.create_producer(topic).send(b"one")
    consumer.acknowledge_cumulative(consumer.receive(30_000))
    source = ("--data-dir", str(server.data_dir))
    name = quote_plus(topic.rpartition("/")[2])
    parent = "/managed-ledgers/public/default/persistent"
    assert name in json.loads(look(capsys, "ls", parent, "--json", *source))
    info = json.loads(look(capsys, "get", f"{parent}/{name}", "--json", *source))
    assert info["kind"] == "ManagedLedgerInfo"
    ledger_id = info["value"]["ledgerInfo"][-1]["ledgerId"]
    ledger = json.loads(look(capsys, "get", paths.ledger_path(ledger_id), "--json", *source))
    assert ledger["kind"] == "LedgerMetadata"
    assert ledger["value"]["state"] == "OPEN"
    assert ledger["value"]["customMetadata"]["component"] == "managed-ledger"
    assert look(capsys, "ls", f"{parent}/{name}", *source) == "[billing]\n"
    cursor = json.loads(look(capsys, "get", f"{parent}/{name}/billing", "--json", *source))
    assert cursor["kind"] == "ManagedCursorInfo"
    assert "cursorsLedgerId" in cursor["value"]
    policies = json.loads(look(capsys, "get", "/admin/policies/public/default", "--json", *source))
    assert policies["value"]["replication_clusters"]
    leader = json.loads(look(capsys, "get", "/loadbalance/leader", *source))
    assert leader["serviceUrl"] == server.http_url
    owner = json.loads(look(capsys, "stat", "/loadbalance/leader", "--json", *source))["ephemeralOwner"]
    assert owner != 0


def test_a_killed_servers_file_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = ServerProcess(tmp_path / "data").start()
    process.kill()
    names = json.loads(look(capsys, "ls", "/admin/policies", "--json", "--data-dir", str(tmp_path / "data")))
    assert "public" in names
    process.close()


async def test_a_metadata_server_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = await ServerWorld(tmp_path / "server.db").open()
    await world.store.put("/bookies", b'{"group": {}}', ephemeral=True)
    url = f"zk:{world.address}{world.root}"
    assert await asyncio.to_thread(look, capsys, "get", "/bookies", "--metadata", url) == '{"group": {}}\n'
    stat = json.loads(await asyncio.to_thread(look, capsys, "stat", "/bookies", "--json", "--metadata", url))
    assert stat["ephemeralOwner"] == world.store.session_id
    assert stat["ctime"] > 0
    await world.close()
