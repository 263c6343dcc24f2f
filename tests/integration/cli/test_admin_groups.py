"""The groups of pulsar-admin against a real server: its names and flags, tables and JSON, one line for what is refused."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from magnetar.cli.demo.server import Server
from tests.integration.cli.conftest import MAGNETAR, Shell


def said(shell: Shell, *args: str) -> Any:
    return json.loads(shell.run(*args, "--json"))


def test_clusters(shell: Shell) -> None:
    shell.run("clusters", "create", "far", "--url", "http://far:8080", "--broker-url", "pulsar://far:6650")
    assert said(shell, "clusters", "list") == ["far", "standalone"]
    shell.run("clusters", "update", "far", "--url-secure", "https://far:8443")
    found = said(shell, "clusters", "get", "far")
    assert (found["serviceUrl"], found["serviceUrlTls"]) == ("http://far:8080", "https://far:8443")
    shell.run("clusters", "update-peer-clusters", "far", "--peer-clusters", "standalone")
    assert shell.run("clusters", "get-peer-clusters", "far", "--table") == "cluster\nstandalone\n"
    shell.run("clusters", "create-failure-domain", "far", "--domain-name", "rack", "--broker-list", "b1,b2")
    shell.run("clusters", "update-failure-domain", "far", "--domain-name", "rack", "--broker-list", "b1")
    assert said(shell, "clusters", "list-failure-domains", "far") == {"rack": {"brokers": ["b1"]}}
    assert "b1" in shell.run("clusters", "get-failure-domain", "far", "--domain-name", "rack")
    shell.run("clusters", "delete-failure-domain", "far", "--domain-name", "rack")
    shell.run("clusters", "delete", "far")
    assert "Cluster does not exist (HTTP 404)" in shell.run("clusters", "get", "far", code=1)


def test_tenants(shell: Shell) -> None:
    shell.run("tenants", "create", "made", "-r", "me,you")
    assert said(shell, "tenants", "get", "made") == {"adminRoles": ["me", "you"], "allowedClusters": ["standalone"]}
    shell.run("tenants", "update", "made", "-c", "standalone", "-r", "")
    assert said(shell, "tenants", "get", "made")["adminRoles"] == []
    assert "made" in shell.run("tenants", "list")
    shell.run("namespaces", "create", "made/ns", "-b", "2")
    assert said(shell, "namespaces", "list", "made") == ["made/ns"]
    assert said(shell, "namespaces", "bundles", "made/ns")["numBundles"] == 2
    assert "active namespaces" in shell.run("tenants", "delete", "made", code=1)
    shell.run("tenants", "delete", "made", "-f")


def test_namespaces(shell: Shell) -> None:
    shell.run("namespaces", "create", "public/ruled")
    for name in ("one", "two"):
        shell.run("topics", "create", f"public/ruled/{name}")
    assert len(said(shell, "namespaces", "topics", "public/ruled")) == 2
    first = "_".join(said(shell, "namespaces", "bundles", "public/ruled")["boundaries"][:2])
    shell.run("namespaces", "split-bundle", "public/ruled", "-b", first, "-u")
    shell.run("namespaces", "unload", "public/ruled")
    shell.run("namespaces", "grant-permission", "public/ruled", "--role", "me", "--actions", "produce,consume")
    assert said(shell, "namespaces", "permissions", "public/ruled") == {"me": ["consume", "produce"]}
    shell.run("namespaces", "revoke-permission", "public/ruled", "--role", "me")
    shell.run("namespaces", "grant-subscription-permission", "public/ruled", "-s", "s", "--roles", "me")
    assert said(shell, "namespaces", "subscription-permission", "public/ruled") == {"s": ["me"]}
    shell.run("namespaces", "revoke-subscription-permission", "public/ruled", "-s", "s", "--role", "me")
    shell.run("namespaces", "set-properties", "public/ruled", "-p", "a=1,b=2", "-p", "c=3")
    shell.run("namespaces", "set-property", "public/ruled", "-k", "d", "-v", "x/y")
    assert shell.run("namespaces", "get-property", "public/ruled", "-k", "d") == "x/y\n"
    assert shell.run("namespaces", "remove-property", "public/ruled", "-k", "d") == "x/y\n"
    assert said(shell, "namespaces", "get-properties", "public/ruled") == {"a": "1", "b": "2", "c": "3"}
    shell.run("namespaces", "clear-properties", "public/ruled")
    shell.run("namespaces", "set-bookie-affinity-group", "public/ruled", "-pg", "near")
    assert (
        said(shell, "namespaces", "get-bookie-affinity-group", "public/ruled")["bookkeeperAffinityGroupPrimary"]
        == "near"
    )
    shell.run("namespaces", "delete-bookie-affinity-group", "public/ruled")
    shell.run("topics", "create-subscription", "public/ruled/one", "-s", "s", "-m", "earliest")
    shell.run("produce", "public/ruled/one", "-m", "a")
    shell.run("namespaces", "clear-backlog", "public/ruled", "-s", "s", "-f")
    assert said(shell, "topics", "stats", "public/ruled/one")["subscriptions"]["s"]["msgBacklog"] == 0
    shell.run("namespaces", "unsubscribe", "public/ruled", "-s", "s")
    assert "non empty" in shell.run("namespaces", "delete", "public/ruled", code=1)
    shell.run("namespaces", "delete", "public/ruled", "-f")


def test_brokers(shell: Shell, server: Server) -> None:
    broker = server.admin_url.removeprefix("http://")
    assert said(shell, "brokers", "list", "standalone") == [broker]
    assert said(shell, "brokers", "leader-broker")["brokerId"] == broker
    assert shell.run("brokers", "healthcheck") == "ok\n"
    shell.run("brokers", "version")
    shell.run("brokers", "backlog-quota-check")
    assert isinstance(said(shell, "brokers", "namespaces", "standalone", "--url", broker), dict)
    assert "maxProducersPerTopic" in shell.run("brokers", "list-dynamic-config")
    shell.run("brokers", "update-dynamic-config", "--config", "maxProducersPerTopic", "--value", "9")
    assert said(shell, "brokers", "get-all-dynamic-config") == {"maxProducersPerTopic": "9"}
    assert said(shell, "brokers", "get-runtime-config")["maxProducersPerTopic"] == "9"
    shell.run("brokers", "delete-dynamic-config", "--config", "maxProducersPerTopic")
    error = shell.run("brokers", "update-dynamic-config", "--config", "dataDir", "--value", "/", code=1)
    assert error == "magnetar: Can't update non-dynamic configuration (HTTP 412)\n"
    assert said(shell, "brokers", "load-report")["numTopics"] >= 0
    assert said(shell, "brokers", "get-internal-config")["ledgersRootPath"] == "/ledgers"


def test_load_balance_is_shown(shell: Shell, server: Server) -> None:
    broker = server.admin_url.removeprefix("http://")
    assert said(shell, "loadbalance", "leader")["brokerId"] == broker
    (row,) = said(shell, "loadbalance", "brokers")
    assert (row["broker"], row["leader"]) == (broker, True)
    plan = said(shell, "loadbalance", "plan")
    assert (plan["leader"], plan["moves"], plan["splits"]) == (broker, [], [])
    assert shell.run("loadbalance", "plan", "--table").startswith(
        "nothing to do: the most loaded broker is at 1.00 times the mean"
    )
    simulated = json.loads(
        shell.run("loadbalance", "simulate", "--brokers", "8", "--topics", "500", "--steps", "8", "--json")
    )
    assert set(simulated["placements"]) == {"load manager", "random", "modulo", "consistent hash"}


def test_topics_are_inspected(shell: Shell) -> None:
    shell.run("topics", "create", "seen", "-m", "a=1")
    shell.run("topics", "update-properties", "seen", "-p", "b=2")
    shell.run("topics", "remove-properties", "seen", "-k", "a")
    assert said(shell, "topics", "get-properties", "seen") == {"b": "2"}
    shell.run("topics", "create-subscription", "seen", "-s", "s", "-m", "earliest", "-p", "x=y")
    shell.run("produce", "seen", "-m", "one,two,three", "-db")
    last = shell.run("topics", "last-message-id", "seen").strip()
    ledger, entry = last.split(":")
    assert said(shell, "topics", "get-message-by-id", "seen", "-l", ledger, "-e", entry)[0]["data"] == "three"
    assert said(shell, "topics", "examine-messages", "seen", "-i", "earliest", "-m", "2")[0]["data"] == "two"
    assert shell.run("topics", "get-message-id", "seen", "-d", "2020-01-01T00:00:00Z") == f"{ledger}:0\n"
    assert "write 2026" in shell.run("topics", "get-message-id", "seen", "-d", "yesterday", code=1)
    assert int(shell.run("topics", "get-backlog-size", "seen")) > 0
    assert said(shell, "topics", "stats-internal", "seen")["cursors"]["s"]["state"] == "Open"
    assert "s" in said(shell, "topics", "info-internal", "seen")["cursors"]
    assert shell.run("topics", "lookup", "seen").startswith("pulsar://")
    assert shell.run("topics", "bundle-range", "seen").startswith("0x")
    assert said(shell, "topics", "permissions", "seen") == {}
    shell.run("topics", "grant-permission", "seen", "--role", "me", "--actions", "consume")
    assert said(shell, "topics", "permissions", "seen") == {"me": ["consume"]}
    shell.run("topics", "revoke-permission", "seen", "--role", "me")
    shell.run("topics", "unload", "seen")
    shell.run("topics", "trim-topic", "seen")
    shell.run("topics", "truncate", "seen")


def test_partitioned_topics(shell: Shell) -> None:
    shell.run("topics", "create-partitioned-topic", "parted", "-p", "2")
    shell.run("topics", "update-partitioned-topic", "parted", "-p", "3")
    assert said(shell, "topics", "get-partitioned-topic-metadata", "parted")["partitions"] == 3
    shell.run("topics", "create-missed-partitions", "parted")
    assert said(shell, "topics", "list-partitioned-topics") == ["persistent://public/default/parted"]
    assert len(said(shell, "topics", "partitioned-lookup", "parted")) == 3
    assert len(said(shell, "topics", "partitioned-stats", "parted", "--per-partition")["partitions"]) == 3
    assert len(said(shell, "topics", "partitioned-stats-internal", "parted")) == 3
    assert set(said(shell, "topics", "terminate-partitions", "parted")) == {"0", "1", "2"}
    shell.run("topics", "delete-partitioned-topic", "parted")


@pytest.mark.parametrize("short", [False, True], ids=["topics", "subscriptions"])
def test_subscriptions(shell: Shell, short: bool) -> None:
    """The same commands twice: pulsar-admin's names among the topics', short ones in a group of their own."""
    topic = "moved-short" if short else "moved"
    long_names = {
        "list": "subscriptions",
        "create": "create-subscription",
        "delete": "unsubscribe",
        "peek": "peek-messages",
        "expire-all": "expire-messages-all-subscriptions",
        "get-properties": "get-subscription-properties",
        "update-properties": "update-subscription-properties",
    }

    def words(name: str) -> list[str]:
        return ["subscriptions", name] if short else ["topics", long_names.get(name, name)]

    def backlog() -> int:
        return int(said(shell, "topics", "stats", topic)["subscriptions"]["s"]["msgBacklog"])

    shell.run("topics", "create", topic)
    shell.run(*words("create"), topic, "-s", "s", "-m", "earliest", "-p", "a=1")
    assert said(shell, *words("list"), topic) == ["s"]
    assert said(shell, *words("get-properties"), topic, "-s", "s") == {"a": "1"}
    shell.run(*words("update-properties"), topic, "-s", "s", "-p", "b=2")
    assert said(shell, *words("get-properties"), topic, "-s", "s") == {"b": "2"}
    shell.run("produce", topic, "-m", "m0,m1,m2,m3", "-db")
    shell.run(*words("skip"), topic, "-s", "s", "-n", "1")
    assert [row["data"] for row in said(shell, *words("peek"), topic, "-s", "s", "-n", "2")] == ["m1", "m2"]
    assert said(shell, *words("analyze-backlog"), topic, "-s", "s")["messages"] == 3
    shell.run(*words("clear-backlog"), topic, "-s", "s")
    assert backlog() == 0
    shell.run(*words("reset-cursor"), topic, "-s", "s", "-m", "earliest")
    assert backlog() == 4
    shell.run(
        *words("expire-messages"), topic, "-s", "s", "-p", shell.run("topics", "last-message-id", topic).strip(), "-e"
    )
    assert backlog() == 1
    shell.run(*words("reset-cursor"), topic, "-s", "s", "-t", "1h")
    assert backlog() == 4
    shell.run(*words("expire-all"), topic, "-t", "1h")
    assert backlog() == 4
    assert "either --time or --messageId" in shell.run(*words("reset-cursor"), topic, "-s", "s", code=2)
    shell.run(*words("delete"), topic, "-s", "s")
    assert said(shell, *words("list"), topic) == []


def test_somebody_else_answers(shell: Shell) -> None:
    assert "start a server there" in shell.run("tenants", "list", "--admin-url", "http://127.0.0.1:9", code=1)
    assert "http://HOST:PORT" in shell.run("tenants", "list", "--admin-url", "127.0.0.1", code=1)


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: Shell, name: str) -> None:
    script = shell.run("completion", name)
    assert "_MAGNETAR_COMPLETE" in script
    assert "\nTraceback" not in script


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("magnetar clu", "clusters"),
        ("magnetar topics reset-", "reset-cursor"),
        ("magnetar tenants create --adm", "--admin-roles"),
    ],
)
def test_what_is_typed_is_completed(shell: Shell, line: str, expected: str) -> None:
    """As the bash script calls it."""
    words = line.split()
    environment = shell.env | {
        "_MAGNETAR_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run([MAGNETAR], env=environment, capture_output=True, text=True, timeout=60)
    assert f"plain,{expected}" in done.stdout.splitlines(), done.stdout + done.stderr
