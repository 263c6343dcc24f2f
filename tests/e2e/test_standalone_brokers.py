"""`magnetar standalone --brokers 2`: one command, one ready line, two broker processes behind one lookup, gone with Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.processes.cluster.cluster import Cluster
from tests.support.brokers import get, send

Connect = Callable[..., pulsar.Client]


def command(directory: Path, *words: str) -> list[str]:
    ports = ["--port", "0", "--http-port", "0"]
    return [sys.executable, "-m", "magnetar", "standalone", "--data-dir", str(directory), *ports, *words]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    Cluster(tmp_path / "data" / "cluster").destroy()


def test_two_brokers_behind_one_command(directory: Path, connect: Connect, tmp_path: Path) -> None:
    words = command(directory, "--brokers", "2", "--set", "maxMessageSize=100000")
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    try:
        ready, urls, http_url = server.stdout.readline().rsplit(" ", 2)
        http_url = http_url.strip()
        assert ready == "magnetar ready"
        assert urls.count(",") == 1
        send("PUT", f"{http_url}/admin/v2/persistent/public/default/spread/partitions", 8)
        client = connect(urls)
        producer = client.create_producer(
            "spread", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        consumer = client.subscribe("spread", "s")
        for number in range(32):
            producer.send(str(number).encode())
        assert {int(consumer.receive(30_000).data()) for _ in range(32)} == set(range(32))
        assert len(get(f"{http_url}/admin/v2/brokers")) == 2
        assert get(f"{http_url}/admin/v2/brokers/configuration/runtime")["maxMessageSize"] == "100000"
        client.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert server.stdout.read() == "", "nothing but the ready line goes to stdout"
        assert {each.state for each in Cluster(directory / "cluster").status()} == {"stopped"}
    finally:
        server.kill()
        server.wait()


def test_what_does_not_go_together_is_said(directory: Path) -> None:
    for words, hint in (
        (("--bind-address", "0.0.0.0", "--insecure-listen"), "one by one"),
        (("--set", "brokerServicePortTls=0", "--set", "tlsCertificateFilePath=x", "--set", "tlsKeyFilePath=y"), "TLS"),
    ):
        done = subprocess.run(command(directory, "--brokers", "2", *words), capture_output=True, text=True, timeout=30)
        assert done.returncode != 0
        assert hint in done.stderr
