"""Cursors that the server keeps for itself: nobody subscribes to them, reads, moves or removes them, by whatever command or route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Access
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.security.conftest import Secured, check_log, error_code, grant, start
from tests.integration.security.test_route_matrix import path_of
from tests.support.waiting import wait_until

TOPIC = "persistent://t/ns/one"
STATS = "/admin/v2/persistent/t/ns/one/internalStats"
REPLICATOR = "pulsar.repl.west"
KEPT = ("pulsar.dedup", REPLICATOR, "pulsar.transactions", "pulsar.replicated.subscriptions", "__compaction")
"""One of each kind; the topic has them all."""

NEVER_THERE = ("pulsar.repl.nowhere", "pulsar.", "pulsar.replicated.subscriptions.scan", "pulsar.of-tomorrow")
ADMINISTRATORS = ("tenant-admin", "root")
CONSUMERS = ("consumer", "topic-role")

ROUTES = sorted(
    (route for route in all_routes() if "{subscription}" in route.path and "non-persistent" not in route.path),
    key=lambda route: (route.path, route.method),
)
OF_BACKLOGS = ("skip/{count}", "skip_all", "expireMessages", "expireMessages/{seconds}")
"""What an administrator may do to the backlog of a replicator, as in Pulsar."""

POSITION = {"ledgerId": 0, "entryId": 3}
BODIES: dict[str, Any] = {
    "properties": {},
    "replicatedSubscriptionStatus": True,
    "expireMessages": POSITION,
    "resetcursor": POSITION,
    "{subscription}": ["somebody"],
}
"""By the end of the path; what a body must be for the request to be obeyed."""


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """`t/ns/one` is deduplicated, compacted, replicated to `west`, which is away, and saw a transaction and a replicated subscription."""
    server = start(tmp_path_factory.mktemp("keeping"))
    try:
        grant(server)
        server.admin(
            "PUT", "clusters/west", {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
        )
        server.admin("POST", "tenants/t", {"adminRoles": ["tenant-admin"], "allowedClusters": ["standalone", "west"]})
        server.admin("POST", "namespaces/t/ns/replication", ["standalone", "west"])
        server.admin("POST", "namespaces/t/ns/deduplication", True)
        with server.raw("root") as client:
            assert client.subscribe(TOPIC, "clients", replicate_subscription_state=True).type == BaseCommand.SUCCESS
            assert client.producer(TOPIC, producer_name="raw").type == BaseCommand.PRODUCER_SUCCESS
            for number in range(10):
                assert client.publish(b"m", number, partition_key="k").type == BaseCommand.SEND_RECEIPT
            client.send(BaseCommand(type=BaseCommand.NEW_TXN, newTxn={"request_id": 9, "txn_ttl_millis": 60_000}))
            number = client.until(BaseCommand.NEW_TXN_RESPONSE).newTxnResponse.txnid_least_bits
            joining = {"partitions": [TOPIC], "txnid_least_bits": number, "request_id": 10}
            client.send(BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN, addPartitionToTxn=joining))
            assert error_code(client.until(BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)) is None
        server.admin("PUT", "persistent/t/ns/one/compaction")
        compacted = "/admin/v2/persistent/t/ns/one/compaction"
        wait_until(lambda: server.http("GET", compacted).json()["status"] == "SUCCESS", what="the compaction")
        wait_until(lambda: set(KEPT) <= set(cursors(server)), what="all internal cursors")
        yield server
        check_log(server.process.log())
    finally:
        server.process.close()


def cursors(server: Secured) -> dict[str, str]:
    """Where each cursor of the topic is."""
    found = server.http("GET", STATS).json()["cursors"]
    return {name: cursor["markDeletePosition"] for name, cursor in found.items()}


@pytest.fixture
def untouched(keeping: Secured) -> Iterator[Secured]:
    """Afterwards they are where they were. (The one of replicated subscriptions follows its topic by itself.)"""
    before = cursors(keeping)
    yield keeping
    after = cursors(keeping)
    assert set(after) == set(before)
    stays = [name for name in KEPT if name != "pulsar.replicated.subscriptions"]
    assert {name: after[name] for name in stays} == {name: before[name] for name in stays}


@pytest.mark.parametrize("name", KEPT + NEVER_THERE)
def test_nobody_subscribes_to_one(untouched: Secured, name: str) -> None:
    for role in CONSUMERS + ADMINISTRATORS:
        expected = ServerError.NotAllowedError if role in ADMINISTRATORS else ServerError.AuthorizationError
        for kind in ("Exclusive", "Shared", "Failover", "Key_Shared"):
            for durable in (True, False):
                with untouched.raw(role) as client:
                    answer = client.subscribe(TOPIC, name, kind=kind, durable=durable)
                    assert error_code(answer) == expected, (role, kind, durable)
        with untouched.raw(role) as client:
            non_persistent = client.subscribe(TOPIC.replace("persistent", "non-persistent"), name)
            assert error_code(non_persistent) == expected


@pytest.mark.parametrize("name", KEPT + NEVER_THERE)
def test_nobody_makes_one_on_the_way(untouched: Secured, name: str) -> None:
    """The initial subscription of a producer, and a transaction that names it."""
    for role in ("topic-role", *ADMINISTRATORS):
        with untouched.raw(role) as client:
            expected = ServerError.NotAllowedError if role in ADMINISTRATORS else ServerError.AuthorizationError
            assert error_code(client.producer(TOPIC, initial_subscription_name=name)) == expected
            client.send(BaseCommand(type=BaseCommand.NEW_TXN, newTxn={"request_id": 9, "txn_ttl_millis": 1000}))
            number = client.until(BaseCommand.NEW_TXN_RESPONSE).newTxnResponse.txnid_least_bits
            joining = {
                "subscription": [{"topic": TOPIC, "subscription": name}],
                "txnid_least_bits": number,
                "request_id": 10,
            }
            client.send(BaseCommand(type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=joining))
            assert error_code(client.until(BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)) is not None


def body_of(route: Route) -> Any:
    return next((body for end, body in BODIES.items() if route.path.endswith(end) and route.method != "GET"), None)


def spares(route: Route, name: str) -> bool:
    """An administrator may do it: the backlog of a replicator is given up."""
    return name.startswith("pulsar.repl.") and route.path.partition("{subscription}/")[2] in OF_BACKLOGS


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_no_route_touches_one(untouched: Secured, route: Route) -> None:
    for name in KEPT + NEVER_THERE:
        path = path_of(route, subscription=name)
        for role in CONSUMERS:
            assert untouched.http(route.method, path, role, json=body_of(route)).status_code == 403, (role, name)
        if not spares(route, name):
            for role in ADMINISTRATORS:
                answer = untouched.http(route.method, path, role, json=body_of(route))
                if route.access in (Access.SUPERUSER, Access.REPLICATE) and role != "root":
                    assert answer.status_code == 403, (role, name, answer.text)
                    continue
                assert answer.status_code == 405, (role, name, answer.text)
                assert "a cursor of the server itself" in answer.text


@pytest.mark.parametrize("name", KEPT + NEVER_THERE)
def test_no_segment_is_created_with_one(untouched: Secured, name: str) -> None:
    segment = "/admin/v2/segments/t/ns/fresh/0000-ffff-0"
    answer = untouched.http("PUT", segment, "root", json=["mine", name])
    assert answer.status_code == 405, answer.text
    assert "a cursor of the server itself" in answer.text
    assert untouched.http("GET", f"{segment}/stats", "root").status_code == 404


def test_clearing_a_namespace_leaves_them(untouched: Secured) -> None:
    assert untouched.http("POST", "/admin/v2/namespaces/t/ns/clearBacklog", "tenant-admin").status_code == 204
    assert untouched.http("POST", "/admin/v2/persistent/t/ns/one/all_subscription/expireMessages/1").status_code == 204


def test_an_administrator_gives_up_the_backlog_of_a_replicator(keeping: Secured) -> None:
    """What waits for a cluster that does not come back fills the disk. Taking the cluster off the list would lose the same."""
    path = f"/admin/v2/persistent/t/ns/one/subscription/{REPLICATOR}"
    before = cursors(keeping)[REPLICATOR]
    for leaf in ("skip/1", "skip_all", "expireMessages/1"):
        assert keeping.http("POST", f"{path}/{leaf}", "consumer").status_code == 403
    assert cursors(keeping)[REPLICATOR] == before
    assert keeping.http("POST", f"{path}/skip/1", "tenant-admin").status_code == 204
    assert cursors(keeping)[REPLICATOR] != before
    missing = path.replace("west", "nowhere")
    assert keeping.http("POST", f"{missing}/skip_all", "tenant-admin").status_code == 404


@pytest.mark.parametrize(
    "name", ["pulsar", "pulsar-clients", "reader-1a2b3c", "multiTopicsReader-1", "__mine", "compaction"]
)
def test_names_that_only_look_alike_are_clients(keeping: Secured, name: str) -> None:
    with keeping.raw("consumer") as client:
        assert client.subscribe("persistent://t/ns/other", name).type == BaseCommand.SUCCESS
