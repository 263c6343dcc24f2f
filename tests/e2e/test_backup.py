"""`magnetar backup DIR` and `magnetar restore`: every message and every subscription's position comes back, as of one moment."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.e2e.test_cluster_command import done, magnetar, quickly, refused
from tests.integration.bookkeeper.test_rot_in_standalone import holder_of
from tests.integration.conftest import connect, start_server  # noqa: F401
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]
Start = Callable[..., ServerProcess]

TOPICS = {"orders": 200, "events": 40, "empty": 0}
ACKNOWLEDGED = 73


def payload(topic: str, number: int) -> bytes:
    return b"%s %d " % (topic.encode(), number) + b"x" * 200


def fill(client: pulsar.Client) -> None:
    for topic, count in TOPICS.items():
        client.subscribe(topic, "all").close()
        half = client.subscribe(topic, "half")
        producer = client.create_producer(topic)
        for number in range(count):
            producer.send(payload(topic, number))
        if topic == "orders":
            for number in range(ACKNOWLEDGED):
                message = half.receive(30_000)
                assert message.data() == payload(topic, number)
                half.acknowledge(message)
            skipped = half.receive(30_000)  # a hole behind the position
            half.acknowledge(half.receive(30_000))
            half.negative_acknowledge(skipped)
        half.close()


def receive(client: pulsar.Client, topic: str, name: str, count: int) -> list[bytes]:
    """So many messages, and the proof that there is no other."""
    consumer = client.subscribe(topic, name)
    found = []
    for _ in range(count):
        message = consumer.receive(30_000)
        found.append(message.data())
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    consumer.close()
    return found


def check(server: ServerProcess, client: pulsar.Client) -> None:
    """Every message by the official client, and every position."""
    for topic, count in TOPICS.items():
        expected = [payload(topic, number) for number in range(count)]
        assert receive(client, topic, "all", count) == expected
        if topic == "orders":
            rest = [ACKNOWLEDGED, *range(ACKNOWLEDGED + 2, count)]
            assert receive(client, topic, "half", len(rest)) == [payload(topic, number) for number in rest]


def start_on(directory: Path) -> ServerProcess:
    return ServerProcess(directory).start()


@pytest.mark.parametrize("state", ["running", "stopped", "killed"])
def test_every_message_and_position_comes_back(
    state: str,
    tmp_path: Path,
    start_server: Start,  # noqa: F811
    connect: Connect,  # noqa: F811
) -> None:
    server = start_server()
    client = connect(server.service_url)
    fill(client)
    client.close()
    if state == "stopped":
        server.stop()
    if state == "killed":
        server.kill()
    file = tmp_path / "backup"
    made = json.loads(magnetar("backup", server.data_dir, "--output", file, "--json").out)
    assert made["unreadableEntries"] == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert server.running == (state == "running"), "a backup stops nobody"
    if state == "running":
        late = connect(server.service_url)
        late.create_producer("orders").send(b"too late")
        late.close()
        server.kill()
    checked = json.loads(done("metadata", "verify", file, "--json"))
    assert (checked["entries"], checked["sha256"]) == (made["entries"], made["sha256"])
    directory = tmp_path / "restored"
    done("restore", file, directory, "--json")
    restored = start_on(directory)
    try:
        client = connect(restored.service_url)
        check(restored, client)
        assert client.create_producer("orders").send(b"goes on").ledger_id() > 1_000_000, "no id is handed out twice"
    finally:
        restored.close()


def test_a_backup_under_load_is_of_one_moment(
    tmp_path: Path,
    start_server: Start,  # noqa: F811
    connect: Connect,  # noqa: F811
) -> None:
    """Whatever was acknowledged before the backup began is in it, in order and without a hole; collection waits."""
    server = start_server(
        gcWaitTime=1000, managedLedgerMaxEntriesPerLedger=50, managedLedgerMinLedgerRolloverTimeMinutes=0
    )
    client = connect(server.service_url)
    client.subscribe("load", "all").close()
    producer = client.create_producer("load", block_if_queue_full=True)
    acknowledged: list[int] = []
    over = threading.Event()

    def send() -> None:
        number = 0
        while not over.is_set():
            producer.send(b"%d" % number)
            acknowledged.append(number)
            number += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        files = []
        for which in range(3):
            wait_until(lambda floor=100 * (which + 1): len(acknowledged) > floor, 60, "messages")
            before = len(acknowledged)
            file = tmp_path / f"backup{which}"
            assert magnetar("backup", server.data_dir, "--output", file).code == 0
            files.append((file, before, len(acknowledged)))
    finally:
        over.set()
        sender.join()
    server.kill()
    for file, before, after in files:
        directory = tmp_path / f"{file.name}-restored"
        done("restore", file, directory)
        restored = start_on(directory)
        try:
            consumer = connect(restored.service_url).subscribe("load", "all")
            found = []
            while len(found) < before:
                found.append(int(consumer.receive(30_000).data()))
            assert found == list(range(before))
            with suppress(pulsar.Timeout):
                while True:
                    found.append(int(consumer.receive(1000).data()))
            assert found == list(range(len(found)))
            assert len(found) <= after + 1
        finally:
            restored.close()


def test_what_is_refused(tmp_path: Path, start_server: Start, connect: Connect) -> None:  # noqa: F811
    server = start_server(flushInterval=100)
    client = connect(server.service_url)
    client.subscribe("rot", "keeps").close()
    producer = client.create_producer("rot")
    payloads = [payload("rot", number) for number in range(20)]
    for each in payloads:
        position = producer.send(each)
    mode = (server.data_dir / "backup.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600, "who may not read the directory gets no backup of it"
    file = tmp_path / "backup"
    done("backup", server.data_dir, "--output", file)
    assert "--force" in refused("backup", server.data_dir, "--output", file)
    assert "not the data directory" in refused("backup", tmp_path, "--output", tmp_path / "other")
    assert "is not empty" in refused("restore", file, server.data_dir)
    good = file.read_bytes()
    for tenth in range(10):
        damaged = bytearray(good)
        damaged[len(good) * tenth // 10] ^= 2
        file.write_bytes(damaged)
        refused("metadata", "verify", file)
        refused("restore", file, tmp_path / "new")
        assert not (tmp_path / "new").exists()
    file.write_bytes(good)
    done("metadata", "backup", tmp_path / "tree", "--data-dir", server.data_dir)
    assert "metadata restore" in refused("restore", tmp_path / "tree", tmp_path / "new")
    assert "magnetar restore" in refused("metadata", "restore", file, "--data-dir", tmp_path / "new")
    # a damaged entry is named, and everything else is in the backup
    log = wait_until(lambda: holder_of(server, payloads), 60, "all is in the entry log")
    server.kill()
    data = bytearray(log.read_bytes())
    data[data.find(payloads[7]) + 20] ^= 1
    log.write_bytes(data)
    found = quickly("backup", server.data_dir, "--output", tmp_path / "rotten", "--json")
    assert found.code == 1
    assert json.loads(found.out)["unreadableEntries"] == [{"ledgerId": position.ledger_id(), "entryId": 7}]
    # a server that gives none is named
    server.start()
    os.unlink(server.data_dir / "backup.sock")
    assert "stop it" in refused("backup", server.data_dir, "--output", tmp_path / "none")
    assert not (tmp_path / "none").exists()
