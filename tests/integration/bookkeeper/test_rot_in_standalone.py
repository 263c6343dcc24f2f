"""A standalone server has one copy of each entry: damage is found at rest, said with ledger and entry, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pulsar

from magnetar.testing.server import ServerProcess
from tests.support.waiting import wait_until


def metric(server: ServerProcess, name: str) -> float:
    with urlopen(f"{server.http_url}/metrics") as answer:
        text = answer.read().decode()
    (value,) = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return float(value)


def holder_of(server: ServerProcess, payloads: list[bytes]) -> Path | None:
    for path in (server.data_dir / "bookie").rglob("*.log"):
        data = path.read_bytes()
        if all(payload in data for payload in payloads):
            return path
    return None


def test_damage_is_found_and_said(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server(flushInterval=100, auditorPeriodicCheckInterval=1)
    client = connect(server.service_url)
    client.subscribe("rot", "keeps").close()
    producer = client.create_producer("rot")
    payloads = [b"<<message %04d>>" % number * 8 for number in range(30)]
    for payload in payloads:
        position = producer.send(payload)
    log = wait_until(lambda: holder_of(server, payloads), 60, "all is in the entry log")
    wait_until(lambda: metric(server, "bookkeeper_client_copies_checked_total") >= 30, 60, "a pass")
    assert metric(server, "bookkeeper_client_copies_found_damaged_total") == 0
    with log.open("r+b") as file:
        for number in (7, 20):
            file.seek(log.read_bytes().find(payloads[number]) + 20)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0x10]))
    wait_until(lambda: metric(server, "bookkeeper_client_copies_found_damaged_total") >= 2, 60, "the damage is found")
    line = next(line for line in server.log().splitlines() if "damaged entries" in line)
    assert "ERROR" in line
    assert f"ledger={position.ledger_id()} count=2 entries=7,20" in line
