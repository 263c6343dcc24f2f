"""What a cluster says about its brokers and neighbours, and what bundles are expected to use."""

from __future__ import annotations

import pytest

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api

POLICY = {
    "namespaces": ["public/.*"],
    "primary": ["127.0.0.1:.*"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}


@pytest.mark.parametrize(
    ("field", "address"),
    [
        ("serviceUrl", "east:8080"),
        ("serviceUrl", "pulsar://east:6650"),
        ("serviceUrlTls", "http://east:8080"),
        ("brokerServiceUrl", "pulsar://a:6650,:6650"),
        ("brokerServiceUrl", "pulsar://[::1:6650"),
        ("brokerServiceUrlTls", "pulsar://east:6650"),
    ],
)
def test_addresses_that_nobody_could_reach_are_refused(api: Api, field: str, address: str) -> None:
    assert field in api.reason("PUT", "clusters/east", {field: address}, status=400)
    api.reason("GET", "clusters/east", status=404)


def test_peers(api: Api) -> None:
    for name in ("peer-a", "peer-b"):
        api.put(f"clusters/{name}", {"serviceUrl": f"http://{name}:8080"})
    assert api.get("clusters/peer-a/peers") == []
    api.post("clusters/peer-a/peers", ["peer-b"])
    assert api.get("clusters/peer-a/peers") == ["peer-b"]
    assert api.get("clusters/peer-a")["serviceUrl"] == "http://peer-a:8080"
    reason = api.reason("POST", "clusters/peer-a/peers", ["peer-a"], status=412)
    assert reason == "peer-a itself can't be part of peer-list"
    api.reason("POST", "clusters/peer-a/peers", ["nowhere"], status=412)
    api.reason("POST", "clusters/peer-a/peers", {"a": 1}, status=400)
    api.reason("GET", "clusters/nowhere/peers", status=404)
    for name in ("peer-a", "peer-b"):
        api.delete(f"clusters/{name}")


def test_failure_domains(api: Api) -> None:
    path = "clusters/domains"
    api.put(path, {"serviceUrl": "http://x:8080"})
    assert api.get(f"{path}/failureDomains") == {}
    api.post(f"{path}/failureDomains/rack1", {"brokers": ["b1", "b2"]})
    api.post(f"{path}/failureDomains/rack1", {"brokers": ["b1"]})
    assert api.get(f"{path}/failureDomains/rack1") == {"brokers": ["b1"]}
    reason = api.reason("POST", f"{path}/failureDomains/rack2", {"brokers": ["b1"]}, status=409)
    assert reason == "b1 already exists in rack1"
    assert api.get(f"{path}/failureDomains") == {"rack1": {"brokers": ["b1"]}}
    api.delete(f"{path}/failureDomains/rack1")
    api.reason("GET", f"{path}/failureDomains/rack1", status=404)
    api.reason("DELETE", f"{path}/failureDomains/rack1", status=404)
    api.post(f"{path}/failureDomains/rack1", {"brokers": ["b1"]})
    api.delete(path)  # with what lies below it
    api.reason("GET", f"{path}/failureDomains", status=404)


def test_isolation_policies(api: Api, server: ServerProcess) -> None:
    base = "clusters/standalone/namespaceIsolationPolicies"
    broker = server.http_url.removeprefix("http://")
    api.reason("GET", base, status=404)
    assert [row["brokerName"] for row in api.get(f"{base}/brokers")] == [broker]
    api.post(f"{base}/mine", POLICY)
    assert api.get(base) == {"mine": POLICY}
    assert api.get(f"{base}/mine") == POLICY
    row = {"brokerName": broker, "policyName": "mine", "isPrimary": True, "namespaceRegex": ["public/.*"]}
    assert api.get(f"{base}/brokers") == [row]
    assert api.get(f"{base}/brokers/{broker}") == row
    api.reason("GET", f"{base}/brokers/nobody:1", status=404)
    for wrong in (
        {**POLICY, "primary": ["("]},
        {**POLICY, "namespaces": []},
        {**POLICY, "auto_failover_policy": {"policy_type": "other"}},
        {**POLICY, "auto_failover_policy": {"parameters": {"min_limit": "1"}}},
        {"namespaces": ["x"]},
    ):
        api.reason("POST", f"{base}/wrong", wrong, status=400)
    api.delete(f"{base}/mine")
    api.reason("GET", f"{base}/mine", status=404)
    assert [row["namespaceRegex"] for row in api.get(f"{base}/brokers")] == [[]]


def test_resource_quotas(api: Api, namespace: str) -> None:
    default = api.get("resource-quotas")
    assert default["dynamic"] is True
    bundle = "_".join(api.get(f"namespaces/{namespace}/bundles")["boundaries"][:2])
    path = f"resource-quotas/{namespace}/{bundle}"
    assert api.get(path) == default
    mine = {**default, "msgRateIn": 7.0, "dynamic": False}
    api.post(path, mine)
    assert api.get(path) == mine
    api.delete(path)
    api.delete(path)
    assert api.get(path) == default
    api.reason("POST", path, {"memory": "much"}, status=400)
    api.reason("GET", f"resource-quotas/{namespace}/0x1_0x2", status=412)


def test_broker_stats(api: Api, server: ServerProcess) -> None:
    report = api.get("broker-stats/load-report")
    assert report["webServiceUrl"] == server.http_url
    assert 0 < report["memory"]["usage"] < report["memory"]["limit"]
    assert report["cpu"]["usage"] <= report["cpu"]["limit"]
    metrics = api.get("broker-stats/metrics")
    names = {name for row in metrics for name in row["metrics"]}
    assert "pulsar_topics_count" in names or "process_resident_memory_bytes" in names
    assert api.get("broker-stats/mbeans") == []
    assert api.get("broker-stats/allocator-stats/default")["directArenas"] == []
    api.reason("GET", "broker-stats/allocator-stats/other", status=404)
    assert api.get("broker-stats/broker-resource-availability/public/default") == {}
    assert isinstance(api.get("broker-stats/topics"), dict)


def test_there_is_no_functions_worker(api: Api, server: ServerProcess) -> None:
    for url in ("/admin/v2/worker/cluster", "/admin/v3/functions", "/admin/v3/sinks/public/default"):
        assert api.call("GET", f"{server.http_url}{url}", status=503).json()["reason"]
