"""Bundles of a namespace and what happens to their topics; properties; bookie affinity."""

from __future__ import annotations

import itertools

import pulsar

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api


def bundles_of(api: Api, namespace: str) -> list[str]:
    boundaries = api.get(f"namespaces/{namespace}/bundles")["boundaries"]
    return [f"{low}_{high}" for low, high in itertools.pairwise(boundaries)]


def test_a_bundle_is_split_and_its_topics_go_on(api: Api, client: pulsar.Client, namespace: str) -> None:
    name = f"persistent://{namespace}/one"
    producer = client.create_producer(name)
    before = bundles_of(api, namespace)
    own = api.call("GET", f"{api.base}/lookup/v2/topic/persistent/{namespace}/one/bundle").text
    assert own in before
    api.put(f"namespaces/{namespace}/{own}/split?unload=true")
    after = bundles_of(api, namespace)
    assert len(after) == len(before) + 1
    assert own not in after
    assert api.get(f"namespaces/{namespace}")["bundles"]["numBundles"] == len(after)
    moved = api.call("GET", f"{api.base}/lookup/v2/topic/persistent/{namespace}/one/bundle").text
    assert moved in after
    producer.send(b"still here")
    owned = api.get(f"brokers/standalone/{api.base.removeprefix('http://')}/ownedNamespaces")
    assert f"{namespace}/{moved}" in owned
    assert f"{namespace}/{own}" not in owned
    reason = api.reason("PUT", f"namespaces/{namespace}/{own}/split", status=412)
    assert reason == f"{own} is not a bundle of {namespace}"
    api.reason("PUT", f"namespaces/{namespace}/{moved}/split?splitAlgorithmName=magic", status=412)


def test_a_split_by_topics_puts_half_on_each_side(api: Api, server: ServerProcess) -> None:
    api.put("namespaces/public/many", 1)
    for number in range(10):
        api.put(f"persistent/public/many/topic-{number}")
    (whole,) = bundles_of(api, "public/many")
    api.put(f"namespaces/public/many/{whole}/split?splitAlgorithmName=topic_count_equally_divide")
    found = [
        api.call("GET", f"{server.http_url}/lookup/v2/topic/persistent/public/many/topic-{number}/bundle").text
        for number in range(10)
    ]
    assert sorted(found.count(bundle) for bundle in bundles_of(api, "public/many")) == [5, 5]


def test_a_bundle_is_unloaded_and_deleted(api: Api, namespace: str) -> None:
    api.put(f"persistent/{namespace}/one")
    own = api.call("GET", f"{api.base}/lookup/v2/topic/persistent/{namespace}/one/bundle").text
    api.put(f"namespaces/{namespace}/{own}/unload")
    api.reason("PUT", f"namespaces/{namespace}/{own}/unload?destinationBroker=nobody:1", status=412)
    api.put(f"namespaces/{namespace}/{own}/unload?destinationBroker={api.base.removeprefix('http://')}")
    assert api.reason("DELETE", f"namespaces/{namespace}/{own}", status=409) == "Cannot delete non empty bundle"
    empty = next(bundle for bundle in bundles_of(api, namespace) if bundle != own)
    api.delete(f"namespaces/{namespace}/{empty}")
    api.delete(f"namespaces/{namespace}/{own}?force=true")
    assert api.get(f"persistent/{namespace}") == []


def test_properties(api: Api, namespace: str) -> None:
    path = f"namespaces/{namespace}"
    assert api.get(f"{path}/properties") == {}
    api.put(f"{path}/properties", {"a": "1", "b": "2"})
    api.put(f"{path}/property/c/x%2Fy")
    assert api.get(f"{path}/properties") == {"a": "1", "b": "2", "c": "x/y"}
    assert api.call("GET", f"{path}/property/c").text == "x/y"
    assert api.call("DELETE", f"{path}/property/c").text == "x/y"
    assert api.call("GET", f"{path}/property/c", status=204).text == ""
    api.reason("DELETE", f"{path}/property/c", status=404)
    api.reason("PUT", f"{path}/properties", {"a": 1}, status=400)
    api.delete(f"{path}/properties")
    assert api.get(f"{path}/properties") == {}


def test_bookie_affinity(api: Api, namespace: str) -> None:
    path = f"namespaces/{namespace}/persistence/bookieAffinity"
    assert api.get(path, status=204) is None
    body = {"bookkeeperAffinityGroupPrimary": "near", "bookkeeperAffinityGroupSecondary": None}
    api.post(path, body)
    assert api.get(path) == body
    api.reason("POST", path, {}, status=400)
    api.delete(path)
    assert api.get(path, status=204) is None
    api.reason("GET", "namespaces/public/nowhere/persistence/bookieAffinity", status=404)
