"""Explanations name what a role was refused, and are only given to those who may use the topic."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import pytest

from magnetar.hashing.mapping import VnodeMapping
from tests.integration.security.conftest import Secured
from tests.support.tokens import token


def test_a_role_without_the_right_is_named(secured: Secured, connect: Callable[..., pulsar.Client]) -> None:
    topic = "persistent://t/ns/explained"
    connect(pulsar.AuthenticationToken(token("tenant-admin"))).subscribe(topic, "sub").close()
    for role, work in (
        ("consumer", lambda client: client.create_producer(topic, producer_name="intruder")),
        ("stranger", lambda client: client.subscribe(topic, "sub", consumer_name="unknown")),
    ):
        with pytest.raises(pulsar.PulsarException):
            work(connect(pulsar.AuthenticationToken(token(role))))
    path = f"{secured.process.http_url}/admin/v2/explain/topic?topic={topic}"
    reasons = secured.http("GET", path, "tenant-admin").json()["reasons"]
    refused = [reason for reason in reasons if reason["code"] == "not-permitted"]
    assert {"producer", "client"} <= {reason["facts"]["who"] for reason in refused}  # a stranger may not even look up
    assert any(reason["facts"]["name"] == "intruder" for reason in refused)
    assert any("stranger" in reason["text"] for reason in refused)


def test_a_name_in_the_query_is_the_one_that_is_authorized(secured: Secured) -> None:
    """However it is written, or given twice."""
    for query in (
        "topic=other/ns/x",
        "topic=persistent://other/ns/x",
        "topic=t/ns/one&topic=other/ns/x",
        "topic=other%2Fns%2Fx",
        "topic=non-persistent://other/ns/x",
        "topic=other/ns/x&tenant=t&namespace=ns&domain=persistent",
    ):
        for kind in ("topic", "producer", "subscription"):
            url = f"{secured.process.http_url}/admin/v2/explain/{kind}?{query}&subscription=s"
            response = secured.http("GET", url, "topic-role")
            assert response.status_code == 403, (kind, query, response.text)


def test_pipelines_belong_to_who_registered_them_and_are_seen_by_who_may_use_their_topics(secured: Secured) -> None:
    mapping = VnodeMapping.even(2).to_json()

    def report(role: str, topic: str, name: str = "p") -> int:
        source = {"positions": {f"persistent://{topic}": "1:0"}}
        body = {"name": name, "state": "running", "mapping": mapping, "sources": {"a": source}, "views": {"v": {}}}
        return secured.http("PUT", f"/admin/v2/pipelines/{name}", role, json=body).status_code

    assert report("producer", "t/ns/one") == 403, "it may not consume"
    assert report("consumer", "other/ns/x") == 403
    assert report("consumer", "t/ns/one") == 200
    assert report("topic-role", "t/ns/one") == 405, "the name is another role's"
    assert report("root", "t/ns/one") == 200
    for role, status in (("producer", 200), ("topic-role", 200), ("tenant-admin", 200), ("other-admin", 404)):
        for path in ("pipelines/p", "explain/view?pipeline=p&view=v"):
            assert secured.http("GET", f"/admin/v2/{path}", role).status_code == status, (role, path)
    assert secured.http("GET", "/admin/v2/pipelines", "other-admin").json() == []
    for role, status in (("other-admin", 404), ("topic-role", 403), ("root", 204)):
        assert secured.http("DELETE", "/admin/v2/pipelines/p", role).status_code == status, role
