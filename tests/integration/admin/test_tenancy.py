"""Limits and clusters of tenants, and the number of topics a namespace takes without listing them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.admin.conftest import Api

CONFIGURATION = "brokers/configuration"


@pytest.fixture
def limit(api: Api) -> Iterator[Api]:
    """Settings that a test changes are taken back."""
    yield api
    for name in ("maxTenants", "maxNamespacesPerTenant", "maxTopicsPerNamespace"):
        api.delete(f"{CONFIGURATION}/{name}")


def test_tenants_and_their_namespaces_are_limited(limit: Api) -> None:
    api, info = limit, {"allowedClusters": ["standalone"]}
    api.put("tenants/limited", info)
    api.put("namespaces/limited/one")
    api.post(f"{CONFIGURATION}/maxNamespacesPerTenant/1")
    assert "maxNamespacesPerTenant is 1" in api.reason("PUT", "namespaces/limited/two", status=412)
    api.post(f"{CONFIGURATION}/maxTenants/{len(api.get('tenants'))}")
    assert "maxTenants" in api.reason("PUT", "tenants/too-many", info, status=412)
    api.delete("namespaces/limited/one")
    api.put("namespaces/limited/two")


def test_namespaces_replicate_only_to_clusters_that_their_tenant_may_use(api: Api) -> None:
    data = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
    api.put("clusters/other", data)
    api.put("tenants/homely", {"allowedClusters": ["standalone"]})
    api.put("namespaces/homely/n")
    both = ["other", "standalone"]
    assert "not in the list of allowed clusters" in api.reason(
        "POST", "namespaces/homely/n/replication", both, status=403
    )
    assert "Invalid cluster id: nowhere" in api.reason(
        "POST", "namespaces/homely/n/replication", ["nowhere"], status=403
    )
    assert "not in the list" in api.reason("PUT", "namespaces/homely/m", {"replication_clusters": both}, status=403)
    api.post("tenants/homely", {"allowedClusters": both})
    api.post("namespaces/homely/n/replication", both)
    reason = api.reason("POST", "tenants/homely", {"allowedClusters": ["standalone"]}, status=409)
    assert reason == "other is used by namespace homely/n: remove it from there first"
    api.post("namespaces/homely/n/replication", ["standalone"])
    api.post("tenants/homely", {"allowedClusters": ["standalone"]})
    api.delete("clusters/other")


def test_topics_are_counted_as_they_come_and_go(limit: Api, namespace: str) -> None:
    """Partitions count one by one, the server's own topics not at all."""
    api = limit
    base = f"persistent/{namespace}"
    api.post(f"{CONFIGURATION}/maxTopicsPerNamespace/5")
    api.put(f"{base}/parts/partitions", 3)
    api.put(f"{base}/__own")
    api.put(f"{base}/one")
    api.put(f"{base}/two")
    for path, body in (("three", None), ("more/partitions", 1)):
        assert "Exceed maximum number of topics" in api.reason("PUT", f"{base}/{path}", body, status=412)
    api.delete(f"{base}/one")
    api.put(f"{base}/three")
    assert "Exceed maximum" in api.reason("POST", f"{base}/parts/partitions", 4, status=412)
    api.delete(f"{base}/parts/partitions")
    api.put(f"{base}/parts/partitions", 3)
    assert len(api.get(base)) == 6


def test_a_created_topic_is_loaded_by_its_first_user_only(api: Api, namespace: str) -> None:
    before = api.get("broker-stats/load-report")["numTopics"]
    api.put(f"persistent/{namespace}/quiet")
    assert api.reason("PUT", f"persistent/{namespace}/quiet", status=409) == "This topic already exists"
    assert api.get("broker-stats/load-report")["numTopics"] == before
    assert api.get(f"persistent/{namespace}") == [f"persistent://{namespace}/quiet"]
    assert api.get(f"persistent/{namespace}/quiet/stats")["publishers"] == []
