"""Too few bookies for the copies that are asked for: everybody is told at once. And the commands of the document start enough of them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.base.ports import free_ports
from magnetar.testing.cluster import ClusterProcesses
from tests.support.waiting import wait_until

REASON = "needs 2 writable bookies and there are 1; start more of them"
DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "run-a-cluster.md"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_")}
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *words], capture_output=True, text=True, timeout=60, env=kept, check=False
    )


def refusal_of(call: Any) -> tuple[str, float]:
    """The exception's name, and after how many seconds."""
    begun_s = time.monotonic()
    with pytest.raises(pulsar.PulsarException) as refused:
        call()
    return type(refused.value).__name__, time.monotonic() - begun_s


def test_topics_that_cannot_store_fail_at_once_and_say_why(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c", bookies=2) as cluster:
        client = pulsar.Client(cluster.service_url, operation_timeout_seconds=60)
        before = client.create_producer("before")
        before.send(b"one")
        assert command("topics", "create", "registered", "--admin-url", cluster.http_url).returncode == 0
        cluster.stop("bookie2")
        wait_until(
            lambda: command("brokers", "healthcheck", "--admin-url", cluster.http_url).returncode != 0,
            what="the broker has noticed",
        )
        for words in (["create", "t"], ["create-partitioned-topic", "p", "-p", "3"]):
            refused = command("topics", *words, "--admin-url", cluster.http_url)
            assert refused.returncode == 1
            assert REASON in refused.stderr
            assert "503" in refused.stderr
        for topic in ("new", "registered"):
            name, seconds = refusal_of(lambda topic=topic: client.create_producer(topic))
            assert (name, seconds < 30) == ("NotAllowedError", True)
            name, seconds = refusal_of(lambda topic=topic: client.subscribe(topic, "s"))
            assert (name, seconds < 30) == ("NotAllowedError", True)
        refused = command("produce", "new", "-m", "x", "--url", cluster.service_url)
        assert refused.returncode == 1
        assert REASON in refused.stderr
        said = [line for line in cluster.log("broker1").splitlines() if "WARNING" in line and REASON in line]
        assert said, cluster.log("broker1")
        assert len(said) < 5, "not a line for every attempt"
        cluster.start_again("bookie2")
        wait_until(
            lambda: command("brokers", "healthcheck", "--admin-url", cluster.http_url).returncode == 0,
            what="there are enough of them again",
        )
        assert before.send(b"two"), "who was there before goes on"
        assert client.create_producer("new").send(b"x")
        client.close()


def test_the_commands_of_the_document_make_a_cluster_that_stores(tmp_path: Path) -> None:
    section = DOCUMENT.read_text().partition("## One process at a time")[2]
    exports, starts = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[:2]
    ports = sorted(set(re.findall(r"\b(?:2181|31\d\d|80\d\d)\b", starts)))
    free = dict(zip(ports, map(str, free_ports(len(ports))), strict=True))
    starts = re.sub(r"\b\d{4}\b", lambda found: free[found[0]], starts)
    processes: list[subprocess.Popen[str]] = []
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    shell = subprocess.run(
        ["bash", "-ec", f"{exports}\nenv -0"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    environment = dict(each.partition("=")[::2] for each in shell.stdout.split("\0") if each)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    try:
        for line in starts.strip().splitlines():
            words = shlex.split(line)
            if words[1] == "broker":  # on ports that others may have
                words += ["--port", "0", "--http-port", "0"]
            process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("magnetar ready"), line
        _, _, service_url, admin_url = ready.split()
        assert command("topics", "create", "t", "--admin-url", admin_url).returncode == 0
        assert command("produce", "t", "-m", "hello", "--url", service_url).returncode == 0
        read = command("consume", "t", "-s", "s", "-n", "1", "-p", "earliest", "--url", service_url)
        assert "hello" in read.stdout, read
    finally:
        for process in reversed(processes):  # those that others need come last
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
