"""What operators see and do: statistics, metrics, backlogs that are given up, clusters that are in use, commands."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

from tests.support.geo import NAMESPACE, Region, read_all
from tests.support.waiting import wait_until

PAUSED = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600}


def command(region: Region, *words: str) -> str:
    line = [sys.executable, "-m", "magnetar", *words, "--admin-url", region.server.http_url]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout


def metric(region: Region, name: str, topic: str, remote: str) -> float:
    with urllib.request.urlopen(f"{region.server.http_url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    wanted = (f'topic="{topic}"', f'remote_cluster="{remote}"')
    (line,) = [each for each in lines if each.startswith(name + "{") and all(part in each for part in wanted)]
    return float(line.rsplit(" ", 1)[1])


def test_a_backlog_shows_and_can_be_given_up_in_part_or_whole(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    name = f"{NAMESPACE}/given-up"
    topic = f"persistent://{name}"
    producer = a.client.create_producer(topic, batching_enabled=False)
    a.wait_connected(name, "b", "c")
    a.admin("POST", f"persistent/{name}/replicatorDispatchRate", PAUSED)
    for index in range(10):
        producer.send(str(index).encode())

    def backlog() -> int:
        return int(a.stats(name)["replication"]["b"]["replicationBacklog"])

    wait_until(lambda: backlog() == 9, what="the first message to be stored in b")
    assert metric(a, "pulsar_replication_backlog", topic, "b") == 9
    assert metric(a, "pulsar_replication_connected_count", topic, "b") == 1
    assert a.stats(name)["backlogSize"] == 0, "no client waits for it"
    cursor = f"persistent/{name}/subscription/pulsar.repl.b"
    a.admin("POST", f"{cursor}/skip/4")
    assert backlog() == 5
    a.admin("POST", f"{cursor}/expireMessages/3600")
    assert backlog() == 5, "nothing is that old"
    a.admin("POST", f"{cursor}/skip_all")
    assert backlog() == 0
    a.admin("DELETE", f"persistent/{name}/replicatorDispatchRate")
    producer.send(b"last")
    a.wait_drained(name, "b", "c")
    assert [message.data() for message in read_all(b, topic)] == [b"0", b"last"]
    assert len(read_all(mesh_of_three[2], topic)) == 11, "the other replicator's backlog is its own"


def test_clusters_in_use_are_not_deleted_and_unknown_ones_not_taken(mesh_of_three: list[Region]) -> None:
    a = mesh_of_three[0]
    a.admin("DELETE", "clusters/b", expected=(412,))
    a.admin("POST", f"namespaces/{NAMESPACE}/replication", ["a", "nowhere"], expected=(403,))


def test_commands_register_clusters_and_choose_them(mesh_of_three: list[Region]) -> None:
    a = mesh_of_three[0]
    address = ["--url", "http://127.0.0.1:1", "--broker-url", "pulsar://127.0.0.1:1"]
    command(
        a,
        "clusters",
        "create",
        "moon",
        *address,
        "--remote-auth-plugin",
        "token",
        "--remote-auth-parameters",
        "token:x",
    )
    record = json.loads(command(a, "clusters", "get", "moon", "--json"))
    assert (record["brokerServiceUrl"], record["authenticationPlugin"]) == ("pulsar://127.0.0.1:1", "token")
    allowed = a.admin("GET", "tenants/public")["allowedClusters"]
    a.admin("POST", "tenants/public", {"adminRoles": [], "allowedClusters": [*allowed, "moon"]})
    a.admin("PUT", "namespaces/public/moon")
    command(a, "namespaces", "set-clusters", "public/moon", "-c", "a,moon")
    assert json.loads(command(a, "namespaces", "get-clusters", "public/moon", "--json")) == ["a", "moon"]
    name = "public/moon/topic"
    a.client.create_producer(f"persistent://{name}").send(b"x")
    row = wait_until(lambda: a.stats(name)["replication"]["moon"]["lastError"], what="why nobody answers")
    assert "127.0.0.1:1" in row
    command(a, "topics", "set-replication-clusters", f"persistent://{name}", "-c", "a")
    assert a.stats(name)["replication"] == {}
    command(a, "topics", "remove-replication-clusters", f"persistent://{name}")
    assert list(a.stats(name)["replication"]) == ["moon"]
    command(a, "namespaces", "set-clusters", "public/moon", "-c", "a")
    command(a, "clusters", "delete", "moon")
