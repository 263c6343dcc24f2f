"""Health, configuration, clusters and tenants."""

from __future__ import annotations

from magnetar import __version__
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api


def test_health_and_status_are_plain_texts(api: Api, server: ServerProcess) -> None:
    for url, text in (
        ("brokers/health", "ok"),
        ("brokers/health?topicVersion=V2", "ok"),
        ("brokers/ready", "ok"),
        ("brokers/version", __version__),
        (f"{server.http_url}/status.html", "OK"),
    ):
        response = api.call("GET", url)
        assert (response.text, response.headers["content-type"]) == (text, "text/plain; charset=utf-8")


def test_brokers_name_themselves(api: Api, server: ServerProcess) -> None:
    broker = server.http_url.removeprefix("http://")
    assert api.get("brokers") == api.get("brokers/standalone") == [broker]
    assert api.get("brokers/leaderBroker") == {"brokerId": broker, "serviceUrl": server.http_url}
    api.get("brokers/elsewhere", status=404)
    assert isinstance(api.get(f"brokers/standalone/{broker}/ownedNamespaces"), dict)


def test_configuration_is_shown_as_texts(api: Api) -> None:
    runtime = api.get("brokers/configuration/runtime")
    assert all(isinstance(value, str) for value in runtime.values())
    assert runtime["maxMessageSize"] == "5242880"
    assert runtime["allowAutoTopicCreation"] == "true"
    assert api.get("brokers/configuration/values") == {}
    assert api.get("brokers/internal-configuration")["ledgersRootPath"] == "/ledgers"


def test_clusters(api: Api) -> None:
    assert api.get("clusters/standalone")["brokerServiceUrl"].startswith("pulsar://")
    data = {"serviceUrl": "http://elsewhere:8080", "brokerServiceUrl": "pulsar://elsewhere:6650"}
    api.put("clusters/far", data)
    assert api.reason("PUT", "clusters/far", data, status=409) == "Cluster already exists"
    api.post("clusters/far", {**data, "peerClusterNames": ["standalone"]})
    assert api.get("clusters/far")["peerClusterNames"] == ["standalone"]
    assert api.get("clusters") == ["far", "standalone"]
    api.delete("clusters/far")
    assert api.reason("GET", "clusters/far", status=404) == "Cluster does not exist"
    api.delete("clusters/standalone", status=412)
    api.put("clusters/not%20a%20name", data, status=412)


def test_tenants(api: Api) -> None:
    info = {"adminRoles": ["root"], "allowedClusters": ["standalone"]}
    api.put("tenants/made", info)
    assert api.reason("PUT", "tenants/made", info, status=409) == "Tenant made already exists"
    assert api.get("tenants/made") == info
    api.post("tenants/made", {"allowedClusters": ["standalone"]})
    assert api.get("tenants/made")["adminRoles"] == []
    assert "made" in api.get("tenants")
    api.put("namespaces/made/ns")
    assert api.reason("DELETE", "tenants/made", status=409) == "The tenant still has active namespaces"
    api.delete("namespaces/made/ns")
    api.delete("tenants/made")
    assert api.reason("GET", "tenants/made", status=404) == "Tenant does not exist"
    assert api.reason("POST", "tenants/made", info, status=404) == "Tenant does not exist"


def test_tenants_need_clusters_that_exist(api: Api) -> None:
    assert api.reason("PUT", "tenants/t", {"allowedClusters": []}, status=412) == "Clusters can not be empty"
    assert "nowhere" in api.reason("PUT", "tenants/t", {"allowedClusters": ["nowhere"]}, status=412)
    api.put("tenants/t", {"allowedClusters": "standalone"}, status=400)
    api.put("tenants/t%2Fu", {"allowedClusters": ["standalone"]}, status=412)
    assert "t" not in api.get("tenants")


def test_a_forced_tenant_takes_its_namespaces_along(api: Api) -> None:
    api.put("tenants/doomed", {"allowedClusters": ["standalone"]})
    api.put("namespaces/doomed/ns")
    api.put("persistent/doomed/ns/topic")
    api.delete("tenants/doomed?force=true")
    assert "doomed" not in api.get("tenants")


def test_health_and_readiness(api: Api) -> None:
    for path in ("healthz", "readyz"):
        assert api.call("GET", f"{api.base}/{path}").text == "ok\n"
