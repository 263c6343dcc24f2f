"""What the product writes is for its user alone, whatever the umask: data, logs of clusters, keys and tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.processes.cluster.plan import BROKER, load_plan
from magnetar.testing.server import ServerProcess

COMMAND_S = 60


@pytest.fixture(autouse=True)
def careless_umask() -> Iterator[None]:
    """The most generous one; children inherit it."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    """Paths with their modes, the directory itself first."""
    found = [directory, *(path for path in sorted(directory.rglob("*")) if not path.is_symlink())]
    return [f"{path} {path.stat().st_mode & 0o777:o}" for path in found if path.stat().st_mode & 0o077]


def magnetar(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_S)


def use(url: str) -> None:
    client = pulsar.Client(url)
    consumer = client.subscribe("topic", "sub")
    producer = client.create_producer("topic")
    for number in range(20):
        producer.send(b"%d" % number)
        consumer.acknowledge(consumer.receive(30_000))
    client.close()


@pytest.mark.parametrize("kill", [True, False])
def test_no_file_of_a_used_data_directory_is_open_to_others(tmp_path: Path, kill: bool) -> None:
    server = ServerProcess(tmp_path / "data", {"flushInterval": 50}).start()
    try:
        use(server.service_url)
        if kill:
            server.restart()
        names = {path.name for path in server.data_dir.rglob("*")}
        assert {"metadata.sqlite", "metadata.sqlite-wal", "bookie.lock", "index.rocksdb", "VERSION"} <= names
        assert not open_to_others(server.data_dir)
        server.stop()
        assert not open_to_others(server.data_dir)
    finally:
        server.close()


def test_a_directory_of_an_older_release_is_closed_to_others_at_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    server = ServerProcess(data).start()
    try:
        assert data.stat().st_mode & 0o777 == 0o700
        assert "other users could look into" in server.log()
    finally:
        server.close()


def test_no_file_of_a_cluster_is_open_to_others(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    up = magnetar("cluster", "up", "--bookies", "1", "--dir", str(directory), "--autorecovery", cwd=tmp_path)
    try:
        assert up.returncode == 0, up.stderr
        plan = load_plan(directory)
        assert plan is not None
        use(plan.of_role(BROKER)[0].addresses[0])
        assert [path for path in directory.glob("*.log")]
        assert not open_to_others(directory)
    finally:
        magnetar("cluster", "down", "--dir", str(directory), cwd=tmp_path)


def test_keys_and_tokens_go_to_private_files_and_replace_none(tmp_path: Path) -> None:
    def tokens(*words: str) -> subprocess.CompletedProcess[str]:
        return magnetar("tokens", *words, cwd=tmp_path)

    pair = ("create-key-pair", "--output-private-key", "private.key", "--output-public-key", "public.key")
    create = ("create", "--secret-key", f"file://{tmp_path}/secret.key", "--subject", "admin", "--output", "token")
    commands = {("create-secret-key", "--output", "secret.key"): "secret.key", pair: "private.key", create: "token"}
    for words, name in commands.items():
        file = tmp_path / name
        made = tokens(*words)
        assert (made.returncode, made.stdout) == (0, ""), made.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        before = file.read_bytes()
        again = tokens(*words)
        assert again.returncode == 1
        assert "exists and is not overwritten" in again.stderr
        assert "--force" in again.stderr
        assert file.read_bytes() == before
        file.chmod(0o644)
        if words != create:  # the token is of the key as it is
            assert tokens(*words, "--force").returncode == 0
            assert file.read_bytes() != before
            assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "public.key").stat().st_mode & 0o777 == 0o644
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_half_a_key_pair_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "public.key").write_bytes(b"mine")
    made = magnetar(
        *("tokens", "create-key-pair", "--output-private-key", "private.key", "--output-public-key", "public.key"),
        cwd=tmp_path,
    )
    assert made.returncode == 1
    assert not (tmp_path / "private.key").exists()
    assert (tmp_path / "public.key").read_bytes() == b"mine"
