"""`magnetar cluster` from the outside: a life of real processes, and every wrong use."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from magnetar.cli.main import run
from magnetar.processes.cluster.cluster import Cluster
from magnetar.processes.cluster.growth import Wish
from magnetar.testing.cluster import ClusterProcesses
from tests.support.waiting import wait_until


class Finished(NamedTuple):
    code: int
    out: str
    err: str


def magnetar(*words: object) -> Finished:
    """As a command of its own, which ends while the cluster lives."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MAGNETAR_", "PULSAR_PREFIX_"))}
    command = [sys.executable, "-m", "magnetar", *map(str, words)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=90, env=kept)
    return Finished(finished.returncode, finished.stdout, finished.stderr)


def quickly(*words: object) -> Finished:
    """In this process: for commands that start nothing."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run([*map(str, words)])
    return Finished(code, out.getvalue(), err.getvalue())


def done(*words: object) -> str:
    finished = magnetar(*words) if words[1] in ("up", "start") else quickly(*words)
    assert finished.code == 0, finished.err
    return finished.out


def refused(*words: object) -> str:
    """The one line on stderr."""
    finished = quickly(*words)
    assert finished.code == 1, finished
    (line,) = [line for line in finished.err.splitlines() if line.startswith("magnetar: ")]
    return line


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    processes = ClusterProcesses(tmp_path_factory.mktemp("cluster") / "c", bookies=2)
    try:
        yield processes
    finally:
        processes.close()


def status(cluster: ClusterProcesses) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done("cluster", "status", "--json", "--dir", cluster.directory))
    return found


def states(cluster: ClusterProcesses) -> dict[str, str]:
    return {process["name"]: process["state"] for process in status(cluster)["processes"]}


def test_a_life(cluster: ClusterProcesses) -> None:
    where = ("--dir", cluster.directory)
    exported = done("cluster", "up", "--bookies", "2", "--autorecovery", *where)
    assert exported == f"export MAGNETAR_URL={cluster.service_url} MAGNETAR_ADMIN_URL={cluster.http_url}\n"
    first = status(cluster)
    names = ["metadata", "bookie1", "bookie2", "autorecovery1", "broker1"]
    assert [process["name"] for process in first["processes"]] == names
    assert [process["role"] for process in first["processes"]] == [name.rstrip("12") for name in names]
    assert {process["state"] for process in first["processes"]} == {"running"}
    assert (first["ensemble_size"], first["write_quorum"], first["ack_quorum"]) == (2, 2, 2)
    assert all(process["addresses"] for process in first["processes"])

    done("produce", "t", "-m", "stored", "--url", cluster.service_url)
    assert "is up already" in quickly("cluster", "up", *where).err

    done("cluster", "pause", "bookie1", *where)
    assert states(cluster)["bookie1"] == "paused"
    done("cluster", "resume", "bookie1", *where)
    killed = json.loads(done("cluster", "kill", "bookie1", "--json", *where))
    assert killed == {"name": "bookie1", "pid": first["processes"][1]["pid"], "signal": "SIGKILL"}
    assert states(cluster)["bookie1"] == "stopped"
    done("cluster", "start", "bookie1", *where)
    done("cluster", "kill", "broker1", "--signal", "term", *where)
    assert "stopping" in done("cluster", "logs", "broker1", *where)

    os.kill(first["processes"][2]["pid"], signal.SIGKILL)  # by somebody else
    wait_until(lambda: states(cluster)["bookie2"] == "dead", what="its end is seen")
    done("cluster", "up", *where)
    again = status(cluster)
    assert {process["state"] for process in again["processes"]} == {"running"}
    assert [each["addresses"] for each in again["processes"]] == [each["addresses"] for each in first["processes"]]
    consumed = done("consume", "t", "-s", "s", "-p", "earliest", "-n", "1", "--url", cluster.service_url)
    assert "content:stored" in consumed

    done("cluster", "up", "--bookies", "3", *where)
    assert states(cluster)["bookie3"] == "running"
    done("cluster", "down", *where)
    assert set(states(cluster).values()) == {"stopped"}
    assert "nothing of the cluster" in quickly("cluster", "down", *where).err


def test_wrong_uses_say_what_to_do(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """After `test_a_life`: everything is stopped."""
    where, nowhere = ("--dir", cluster.directory), ("--dir", tmp_path / "none")
    for command in (
        ["status"],
        ["down"],
        ["logs", "x"],
        ["kill", "x"],
        ["pause", "x"],
        ["resume", "x"],
        ["start", "x"],
    ):
        assert f"start one with: magnetar cluster up --dir {nowhere[1]}" in refused("cluster", *command, *nowhere)
    assert not (tmp_path / "none").exists()
    for command in ("kill", "pause", "resume"):
        assert "bookie1 is not running; say: magnetar cluster start bookie1" in refused(
            "cluster", command, "bookie1", *where
        )
        assert "it has metadata, bookie1, bookie2" in refused("cluster", command, "bookie9", *where)
    assert "it has metadata, bookie1" in refused("cluster", "logs", "bokie1", *where)
    assert "keeps it" in refused("cluster", "up", "--zookeeper", *where)
    assert "keeps it" in refused("cluster", "up", "--metadata", "zookeeper:3", *where)
    assert "is not a metadata store" in refused("cluster", "up", "--metadata", "etcd", *where)
    assert "tolerates no more failures" in refused("cluster", "up", "--metadata", "zookeeper:2", *where)
    assert "there are 3; pass --bookies 5" in refused("cluster", "up", "--ensemble-size", "5", *where)
    assert "need 1 <= ack <= write <= ensemble" in refused("cluster", "up", "--ack-quorum", "3", *where)
    assert "the nearest is 'majorCompactionInterval'" in refused(
        "cluster", "up", "--set", "majorCompactionIntervl=1", *where
    )
    assert "neither a role nor a process" in refused("cluster", "up", "--set", "bookie7.gcWaitTime=1", *where)
    assert "must be a whole number" in refused("cluster", "up", "--set", "bookie.gcWaitTime=soon", *where)
    assert "set by the cluster itself" in refused("cluster", "up", "--set", "bookiePort=1", *where)
    assert quickly("cluster", "kill", "bookie1", "--signal", "WRONG", *where).code == 2
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "cluster.json").write_text("[]")
    assert "is not a state file of `magnetar cluster`" in refused("cluster", "status", "--dir", tmp_path / "strange")


def test_a_process_that_cannot_start_says_why(cluster: ClusterProcesses) -> None:
    """After `test_a_life`. Its port is taken by somebody else."""
    import socket

    port = cluster.cluster.plan.find("bookie1").ports["bookie"]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        line = refused("cluster", "start", "bookie1", "--dir", cluster.directory)
    assert "bookie1 did not start (exit code 1)" in line
    assert f"port {port} on 127.0.0.1 is taken by another process" in line


def test_a_command_that_dies_leaves_nothing_that_the_next_one_cannot_handle(tmp_path: Path) -> None:
    """It is killed between starting a process and anything that it could note about it."""
    directory = tmp_path / "cluster"
    code = (
        "import os, signal, pathlib\n"
        "from magnetar.processes.cluster.cluster import Cluster\n"
        "from magnetar.processes.cluster.growth import Wish\n"
        "Cluster._wait_ready = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"Cluster(pathlib.Path({str(directory)!r})).up(Wish(bookies=1))\n"
    )
    processes = ClusterProcesses(directory)
    try:
        assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -signal.SIGKILL
        cluster = Cluster(directory)
        wait_until(lambda: cluster.status()[0].state == "running", what="what was started runs")
        pid = cluster.status()[0].pid
        assert cluster.up(Wish()), "the rest is started"
        assert {process.state for process in cluster.status()} == {"running"}
        assert cluster.status()[0].pid == pid
        assert cluster.down()
    finally:
        processes.close()


def test_growing_says_that_entries_keep_their_single_copy(tmp_path: Path) -> None:
    """A cluster of one bookie keeps 1/1/1, and says how that is raised; the hint it gives works."""
    where = ("--dir", tmp_path / "grown")
    try:
        assert "each entry still has" not in magnetar("cluster", "up", "--bookies", 1, *where).err
        grown = magnetar("cluster", "up", "--bookies", 3, *where)
        assert grown.code == 0, grown.err
        (line,) = [line for line in grown.err.splitlines() if "each entry still has" in line]
        assert (
            "there are 3 bookies now, and each entry still has 1 copy (ensemble 1, write quorum 1, ack quorum 1)"
            in line
        )
        words = line.partition("magnetar cluster up ")[2].partition(";")[0].split()
        done("cluster", "down", *where)
        raised = json.loads(done("cluster", "up", *words, "--json", *where))
        assert (raised["ensemble_size"], raised["write_quorum"], raised["ack_quorum"]) == (3, 2, 2)
    finally:
        Cluster(tmp_path / "grown").destroy()
