"""A cluster on one machine makes a secret and asks for it: whoever has an account there, and not the secret, gets nowhere."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from magnetar.base.ports import free_ports
from magnetar.processes.cluster import cluster as cluster_module
from magnetar.processes.cluster.cluster import find_processes
from magnetar.processes.cluster.plan import ClusterPlan
from magnetar.testing.cluster import ClusterProcesses
from magnetar.wire.bookkeeper import v2


def command(*words: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_")}
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *words], capture_output=True, text=True, timeout=60, env=kept, check=False
    )


def said(*words: str) -> str:
    finished = command(*words)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def publish(cluster: ClusterProcesses, *payloads: bytes) -> None:
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=60)
    try:
        client.subscribe("persistent://public/default/t", "s")
        producer = client.create_producer("persistent://public/default/t")
        for payload in payloads:
            producer.send(payload)
    finally:
        client.close()


def received(cluster: ClusterProcesses, count: int) -> list[bytes]:
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=60)
    try:
        consumer = client.subscribe("persistent://public/default/t", "s")
        return [consumer.receive(30_000).data() for _ in range(count)]
    finally:
        client.close()


def code_of_bookie(address: str) -> int:
    """What a bookie answers to a read by somebody who has proven nothing."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as stranger:
        stranger.sendall(v2.encode_read(1, 0, 0, b""))
        frame = stranger.recv(4096)
        return v2.decode_response(frame[4:])[1]


def code_of_metadata(port: int) -> int:
    """What the metadata store answers to somebody who lists its root."""
    with socket.create_connection(("127.0.0.1", port), 60) as stranger:
        greeting = struct.pack("!iqiq", 0, 0, 10_000, 0) + struct.pack("!i", 16) + bytes(16) + b"\0"
        stranger.sendall(struct.pack("!i", len(greeting)) + greeting)
        assert stranger.recv(4096)
        stranger.sendall(struct.pack("!iiii", 8 + 4 + 2, 1, 8, 1) + b"/\0")
        return int(struct.unpack_from("!iiqi", stranger.recv(4096))[3])


def asks(cluster: ClusterProcesses) -> bool:
    """Whether strangers are refused, by the bookies and by the metadata store alike."""
    plan: ClusterPlan = cluster.cluster.plan
    refused = [code_of_bookie(address) == 102 for address in cluster.bookie_ids.values()]
    refused.append(code_of_metadata(int(plan.metadata_url.rpartition(":")[2])) == -124)
    assert len(set(refused)) == 1, refused
    return refused[0]


@pytest.mark.parametrize("zookeeper", [False, True], ids=["ours", "zookeeper"])
def test_strangers_get_nowhere_and_the_commands_do(tmp_path: Path, zookeeper: bool) -> None:
    with ClusterProcesses(tmp_path / "c", bookies=2, autorecovery=1, zookeeper=zookeeper) as cluster:
        secret = tmp_path / "c" / "secret"
        assert secret.stat().st_mode & 0o777 == 0o600
        text = secret.read_text().strip()
        assert len(text) >= 32
        publish(cluster, b"one")
        assert asks(cluster)
        for process in find_processes(cluster.directory).values():
            assert text.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        for name in cluster.status():
            assert text not in cluster.log(name)
        directory = str(cluster.directory)
        names = said("metadata", "ls", "/ledgers", "--dir", directory)
        assert "available" in names
        assert "writable" in said("bookies", "list", "--dir", directory)
        ledgers = said("ledger", "list", "--dir", directory)
        assert ledgers.strip()
        refused = command("metadata", "ls", "/", "--metadata", cluster.metadata_url)
        assert refused.returncode == 1
        assert "metadataSecret" in refused.stderr
        cluster.stop("bookie1")
        cluster.start_again("bookie1")
        assert received(cluster, 1) == [b"one"]


def test_a_cluster_from_before_there_were_secrets_goes_on_and_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ClusterProcesses(tmp_path / "c", bookies=1)
    with monkeypatch.context() as before:
        before.setattr(cluster_module, "make_secret", lambda directory: None)
        cluster.start()
    try:
        assert not asks(cluster)
        publish(cluster, b"one", b"two")
        cluster.add_bookie()
        assert not asks(cluster), "those that run know of no secret, so the new one is given none"
        assert not (tmp_path / "c" / "secret").exists()
        assert command("cluster", "down", "--dir", str(cluster.directory)).returncode == 0
        assert command("cluster", "up", "--dir", str(cluster.directory)).returncode == 0
        assert asks(cluster)
        assert received(cluster, 2) == [b"one", b"two"]
    finally:
        cluster.close()


def test_a_cluster_asks_for_nothing_when_told_so(tmp_path: Path) -> None:
    settings = ("metadataSecret=", "bookieSharedSecret=")
    with ClusterProcesses(tmp_path / "c", bookies=1, settings=settings) as cluster:
        assert not asks(cluster)


@pytest.mark.parametrize("role", ["metadata-server", "bookie"])
def test_nobody_listens_beyond_loopback_without_a_secret(tmp_path: Path, role: str) -> None:
    more = ["--metadata-url", "zk:127.0.0.1:1"] if role == "bookie" else []
    refused = command(role, "--bind-address", "0.0.0.0", "--data-dir", str(tmp_path / "d"), "--port", "0", *more)
    assert refused.returncode == 1
    assert ("metadataSecret" if role == "metadata-server" else "bookieSharedSecret") in refused.stderr
    assert "--insecure-listen" in refused.stderr
    assert not (tmp_path / "d").exists()


def test_a_metadata_server_beyond_loopback_with_a_secret(tmp_path: Path) -> None:
    short, good = tmp_path / "short", tmp_path / "good"
    short.write_text("short\n")
    good.write_text("x" * 32 + "\n")
    (port,) = free_ports(1)
    words = ["metadata-server", "--bind-address", "0.0.0.0", "--data-dir", str(tmp_path / "d"), "--port", str(port)]
    refused = command(*words, "--set", f"metadataSecret=file://{short}")
    assert refused.returncode == 1
    assert "at least 16 characters" in refused.stderr
    process = subprocess.Popen(
        [sys.executable, "-m", "magnetar", *words, "--set", f"metadataSecret=file://{good}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("magnetar ready")
        assert code_of_metadata(port) == -124
    finally:
        process.terminate()
        process.wait(60)
