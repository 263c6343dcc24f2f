"""Commands know all brokers of a cluster and go to the next one when one is gone."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from magnetar.admin.client.client import AdminClient
from magnetar.admin.client.errors import UnreachableError
from magnetar.base.ports import free_ports
from magnetar.testing.cluster import ClusterProcesses


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_")}
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *words],
        capture_output=True,
        text=True,
        timeout=90,
        env=kept | environment,
        check=False,
    )


@pytest.mark.parametrize("killed", ["broker1", "broker2"])
def test_what_cluster_up_exports_outlives_a_killed_broker(tmp_path: Path, killed: str) -> None:
    with ClusterProcesses(tmp_path / "c", bookies=2, brokers=2) as cluster:
        up = command("cluster", "up", "--dir", str(cluster.directory))
        assert up.stdout.startswith("export ")
        exported = dict(word.partition("=")[::2] for word in shlex.split(up.stdout)[1:])

        def said(*words: str) -> str:
            finished = command(*words, **exported)
            assert finished.returncode == 0, (words, finished.stderr)
            return finished.stdout

        said("topics", "create", "t")
        said("produce", "t", "-m", "one")
        said("topics", "create-partitioned-topic", "p", "-p", "4")
        cluster.kill(killed)
        assert "public/default/t" in said("topics", "list", "public/default")
        said("topics", "stats", "t")
        said("topics", "partitioned-stats", "p")
        said("topics", "create", "u")
        said("produce", "t", "-m", "two")
        assert "two" in said("consume", "t", "-s", "s", "-n", "2", "-p", "earliest")
        said("brokers", "healthcheck")


class Once:
    """A server that takes one request in full, says nothing, and is gone."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.requests += connection.recv(65536) != b""
            connection.close()

    def close(self) -> None:
        self._listening.close()


def test_what_may_have_been_carried_out_is_not_repeated() -> None:
    first, second = Once(), Once()
    (nobody,) = free_ports(1)
    try:
        with AdminClient(f"http://127.0.0.1:{nobody},127.0.0.1:{first.port},127.0.0.1:{second.port}") as admin:
            with pytest.raises(UnreachableError):
                admin.tenants.create("t", allowed_clusters=["standalone"])
            assert (first.requests, second.requests) == (1, 0)
            with pytest.raises(UnreachableError):
                admin.tenants.list()
            assert (first.requests, second.requests) == (2, 1), "what only reads is asked again"
    finally:
        first.close()
        second.close()
