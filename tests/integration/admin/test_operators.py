"""What operators of Pulsar use besides topics: groups that share rates, where namespaces may be, rates of single subscriptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pulsar
import pytest

from magnetar.cli.main import run
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.support.messages import receive_all, send_all


def test_a_resource_group_limits_what_its_namespaces_publish(api: Api, client: pulsar.Client, namespace: str) -> None:
    api.put("resourcegroups/slow", {"publishRateInMsgs": 20, "dispatchRateInMsgs": 1000})
    assert api.get("resourcegroups/slow")["publishRateInMsgs"] == 20
    assert "slow" in api.get("resourcegroups")
    api.post(f"namespaces/{namespace}/resourcegroup/slow")
    assert api.call("GET", f"namespaces/{namespace}/resourcegroup").text == "slow"
    producers = [client.create_producer(f"persistent://{namespace}/{name}") for name in "ab"]
    began_s = time.monotonic()
    for number in range(30):
        for producer in producers:
            producer.send(str(number).encode())
    assert time.monotonic() - began_s > 1.5, "60 messages at 20 a second, of which one second's worth is free"
    api.reason("DELETE", "resourcegroups/slow", status=412)
    api.put("resourcegroups/slow", {"publishRateInMsgs": -1})
    assert api.get("resourcegroups/slow")["dispatchRateInMsgs"] == 1000
    began_s = time.monotonic()
    send_all(producers[0], [b"fast"] * 400)
    assert time.monotonic() - began_s < 15, "not at 20 a second"
    api.delete(f"namespaces/{namespace}/resourcegroup")
    api.delete("resourcegroups/slow")
    api.reason("GET", "resourcegroups/slow", status=404)
    api.reason("POST", f"namespaces/{namespace}/resourcegroup/nothing", status=404)


def test_a_subscription_has_a_dispatch_rate_of_its_own(api: Api, client: pulsar.Client, namespace: str) -> None:
    topic, path = f"persistent://{namespace}/rated", f"persistent/{namespace}/rated"
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 60}
    slow, fast = (client.subscribe(topic, name, receiver_queue_size=100) for name in ("slow", "fast"))
    api.post(f"{path}/slow/dispatchRate", rate)
    assert api.get(f"{path}/slow/dispatchRate")["dispatchThrottlingRateInMsg"] == 5
    assert api.call("GET", f"{path}/fast/dispatchRate", status=204).text == ""
    producer = client.create_producer(topic)
    for number in range(30):  # one by one: a batch would go out as one entry
        producer.send(str(number).encode())
    assert len(receive_all(fast, 30)) == 30
    assert api.get(f"{path}/stats")["subscriptions"]["slow"]["msgOutCounter"] < 30
    api.delete(f"{path}/slow/dispatchRate")
    assert len(receive_all(slow, 30)) == 30


def test_all_policies_of_a_topic_are_unset_at_once(api: Api, namespace: str) -> None:
    path = f"persistent/{namespace}/t"
    api.put(path)
    api.post(f"{path}/maxProducers", 3)
    api.call("POST", f"{path}/subscriptionExpirationTime?subscriptionExpirationTime=7", status=204)
    assert api.get(f"{path}/subscriptionExpirationTime") == 7
    api.delete(f"{path}/policies")
    for leaf in ("maxProducers", "subscriptionExpirationTime"):
        assert api.call("GET", f"{path}/{leaf}", status=204).text == ""


def test_anti_affinity_and_allowed_clusters(api: Api, namespace: str) -> None:
    path = f"namespaces/{namespace}"
    assert api.call("GET", f"{path}/antiAffinity", status=204).text == ""
    for body in (b"apart", b'"apart"'):  # as Pulsar's client sends it, and as JSON
        answer = api.session.post(f"{api.base}/admin/v2/{path}/antiAffinity", data=body, timeout=60)
        assert answer.status_code == 204
        assert api.call("GET", f"{path}/antiAffinity").text == "apart"
    tenant = namespace.split("/")[0]
    assert api.get(f"namespaces/standalone/antiAffinity/apart?property={tenant}") == [namespace]
    api.delete(f"{path}/antiAffinity")
    assert api.get("namespaces/standalone/antiAffinity/apart") == []

    assert api.get(f"{path}/allowedClusters") == []
    api.reason("POST", f"{path}/allowedClusters", ["nowhere"], status=403)
    api.post(f"{path}/allowedClusters", ["standalone"])
    assert api.get(f"{path}/allowedClusters") == ["standalone"]
    api.post(f"{path}/allowedClusters", [])


def test_where_topics_stand(api: Api, client: pulsar.Client, namespace: str) -> None:
    api.put(f"persistent/{namespace}/t")
    client.subscribe(f"non-persistent://{namespace}/n", "s")
    bounds = api.get(f"namespaces/{namespace}/bundles")["boundaries"]
    bundles = [f"{low}_{high}" for low, high in pairwise(bounds)]
    found = [api.get(f"namespaces/{namespace}/{bundle}/topicHashPositions") for bundle in bundles]
    every = {name: place for each in found for name, place in each["topicHashPositions"].items()}
    assert every.keys() == {f"persistent://{namespace}/t", f"non-persistent://{namespace}/n"}
    listed = [name for bundle in bundles for name in api.get(f"non-persistent/{namespace}/{bundle}")]
    assert listed == [f"non-persistent://{namespace}/n"]


def test_permissions_of_many_topics(api: Api, namespace: str) -> None:
    topics = [f"persistent://{namespace}/{name}" for name in "ab"]
    api.post(
        "namespaces/grantPermissionsOnTopics",
        [{"topic": topic, "role": "r", "actions": ["produce"]} for topic in topics],
    )
    assert api.get(f"persistent/{namespace}/a/permissions") == {"r": ["produce"]}
    api.post("namespaces/revokePermissionsOnTopics", [{"topic": topics[0], "role": "r"}])
    assert api.get(f"persistent/{namespace}/a/permissions") == {}
    assert api.get(f"persistent/{namespace}/b/permissions") == {"r": ["produce"]}


COMMANDS = [
    "ns-isolation-policy set standalone p --namespaces x/.* --primary nobody.* --auto-failover-policy-type min_available "
    "--auto-failover-policy-params min_limit=1,usage_threshold=80",
    "ns-isolation-policy list standalone",
    "ns-isolation-policy get standalone p",
    "ns-isolation-policy brokers standalone",
    "ns-isolation-policy delete standalone p",
    "broker-stats monitoring-metrics -i",
    "broker-stats mbeans",
    "broker-stats topics",
    "broker-stats allocator-stats default",
    "broker-stats load-report",
    "resourcegroups create g -mp 100 -bp 1000",
    "resourcegroups update g -md 7",
    "resourcegroups get g",
    "resourcegroups list",
    "namespaces set-resource-group {ns} -rgn g",
    "namespaces get-resource-group {ns}",
    "namespaces remove-resource-group {ns}",
    "resourcegroups delete g",
    "resource-quotas get",
    "resource-quotas set -n {ns} -b 0x00000000_0x40000000 -mi 1 -mo 1 -bi 1 -bo 1 -mem 1",
    "resource-quotas get -n {ns} -b 0x00000000_0x40000000",
    "resource-quotas reset-namespace-bundle-quota -n {ns} -b 0x00000000_0x40000000",
    "namespaces set-anti-affinity-group {ns} -g apart",
    "namespaces get-anti-affinity-group {ns}",
    "namespaces get-anti-affinity-namespaces -c standalone -g apart",
    "namespaces delete-anti-affinity-group {ns}",
    "namespaces set-allowed-clusters {ns} -c standalone",
    "namespaces get-allowed-clusters {ns}",
    "namespaces set-subscription-types-enabled {ns} -t Shared,Failover",
    "namespaces get-subscription-types-enabled {ns}",
    "namespaces remove-subscription-types-enabled {ns}",
    "namespaces get-topic-positions {ns} -b 0x00000000_0x40000000",
    "namespaces list-cluster standalone",
    "topics create-partitioned-topic {ns}/p -p 2",
    "topics create-subscription {ns}/p -s s",
    "topics stats {ns}/p -gpb -sbs -etb",
    "topics partitioned-stats {ns}/p -gpb -sbs -etb",
    "topics partitioned-lookup {ns}/p -s",
    "topicPolicies set-subscription-dispatch-rate {ns}/p -s s -md 9",
    "topicPolicies get-subscription-dispatch-rate {ns}/p -s s",
    "topicPolicies remove-subscription-dispatch-rate {ns}/p -s s",
    "topics set-retention {ns}/p -t 3h -s 10G",
    "topics get-maxProducers {ns}/p",
    "topics partitioned-terminate {ns}/p",
    "topics delete-partitioned-topic -d -f {ns}/p",
    "non-persistent list {ns}",
    "non-persistent create-partitioned-topic non-persistent://{ns}/np -p 1",
    "non-persistent stats non-persistent://{ns}/np-partition-0",
    "non-persistent list-in-bundle {ns} -b 0x00000000_0x40000000",
    "persistent list {ns}",
    "bookies racks-placement",
    "bookies list-bookies",
    "clusters list -c",
]


@pytest.mark.parametrize("form", ["text", "json"])
def test_commands_of_pulsar_admin(
    server: ServerProcess,
    namespace: str,
    client: pulsar.Client,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", server.http_url)
    kept: Any = client.subscribe(f"non-persistent://{namespace}/np-partition-0", "s") if form == "json" else None
    for words in COMMANDS:
        if words.startswith("non-persistent stats") and kept is None:
            kept = client.subscribe(f"non-persistent://{namespace}/np-partition-0", "s")
        args = words.format(ns=namespace).split()
        code = run([*args, "--json"] if form == "json" else args)
        assert code == 0, f"{words}: {capsys.readouterr().err}"
    assert run(["proxy-stats", "connections"]) == 1
    assert "there is no proxy" in capsys.readouterr().err


def test_unknown_routes_name_what_was_asked(api: Api, namespace: str) -> None:
    for path in (f"namespaces/{namespace}/unicorns", f"persistent/{namespace}/t/shadowTopics", "unicorns"):
        assert path in api.reason("GET", path, status=404)


def test_groups_reach_topics_that_are_loaded_later(start_server: Callable[..., ServerProcess], connect: Any) -> None:
    """The group is a part of what holds for a namespace, also after a restart."""
    server = start_server()
    api = Api(server)
    api.put("resourcegroups/g", {"publishRateInMsgs": 1})
    api.post("namespaces/public/default/resourcegroup/g")
    server.restart()
    assert api.call("GET", "namespaces/public/default/resourcegroup").text == "g"
    producer = connect(server.service_url).create_producer("late")
    producer.send(b"free")
    began_s = time.monotonic()
    producer.send(b"is taken, and stops the connection for a second")
    producer.send(b"waits")
    assert time.monotonic() - began_s > 0.5
    api.delete("namespaces/public/default/resourcegroup")


NUMBERS = [
    ("GET", "messageid/{}", 64),
    ("POST", "subscription/s/resetcursor/{}", 64),
    ("POST", "subscription/s/skip/{}", 32),
    ("POST", "subscription/s/expireMessages/{}", 32),
    ("POST", "all_subscription/expireMessages/{}", 32),
    ("GET", "subscription/s/position/{}", 32),
    ("GET", "ledger/{}/entry/0", 64),
    ("GET", "ledger/0/entry/{}", 64),
    ("GET", "examinemessage?messagePosition={}", 64),
    ("GET", "getMessageIdByIndex?index={}", 64),
    ("POST", "messageTTL?messageTTL={}", 32),
    ("POST", "subscriptionExpirationTime?subscriptionExpirationTime={}", 32),
]


@pytest.mark.parametrize(("method", "path", "bits"), NUMBERS, ids=[path for _, path, _ in NUMBERS])
def test_what_is_no_number_is_not_found(api: Api, namespace: str, method: str, path: str, bits: int) -> None:
    """As with Pulsar, whose web server looks for another route then: a tool takes it for "not there", never for a malformed request."""
    topic = f"persistent/{namespace}/t"
    api.put(topic)
    api.put(f"{topic}/subscription/s")
    for text in ("abc", "1.5", "0x10", "null", "%22%22", "%20", str(2 ** (bits - 1)), "9" * 30):
        reason = api.reason(method, f"{topic}/{path.format(text)}", status=404)
        assert "must be a number" in reason or "has no route" in reason
    assert api.get(f"{topic}/subscriptions") == ["s"]
    assert api.get(f"{topic}/messageTTL", status=204) is None


def test_the_time_after_which_subscriptions_go_is_a_parameter_of_the_query(api: Api, namespace: str) -> None:
    """That of pulsar-admin 4.2 was lost, since there was no body."""
    url = f"persistent/{namespace}/t/subscriptionExpirationTime"
    api.put(f"persistent/{namespace}/t")
    api.call("POST", f"{url}?subscriptionExpirationTime=30", status=204)
    assert api.get(url) == 30
    assert "expected ?subscriptionExpirationTime" in api.reason("POST", url, 45, status=400)
    assert api.get(url) == 30
