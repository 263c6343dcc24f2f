"""The one function that says yes: roles, grants, and documents that were written by somebody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.auth.decide import Access, Facts, Resource, allowed
from magnetar.broker.naming import NamespaceName, TopicName

TOPIC = Resource.of_topic(TopicName.parse("t/ns/one"), "sub")
NAMESPACE = Resource.of_namespace(NamespaceName("t", "ns"))
GRANTABLE = (Access.NAMESPACE, Access.LOOKUP, Access.PRODUCE, Access.CONSUME)
SUPERUSERS = ("root",)


def facts(admins: tuple[str, ...] = (), **document: Any) -> Facts:
    return Facts(SUPERUSERS, admins, document)


def granted(**auth: Any) -> Facts:
    return facts(auth_policies=auth)


@pytest.mark.parametrize("access", Access)
def test_nothing_is_granted_by_default(access: Access) -> None:
    assert allowed("root", access, TOPIC, Facts(SUPERUSERS))
    assert allowed("role", access, TOPIC, Facts(SUPERUSERS)) == (access in (Access.OPEN, Access.AUTHENTICATED))
    assert not allowed("", access, TOPIC, Facts(("",)))


def test_replicating_is_granted_for_a_cluster_and_nowhere_else() -> None:
    """Neither producing nor administering the tenant serves; the role of another cluster neither."""
    stored = replace(
        facts(("admin",), auth_policies={"namespace_auth": {"role": ["produce", "consume"]}}),
        replicators={"west": ("peer", "second"), "north": ("other-peer",)},
    )
    west = replace(TOPIC, subscription="", source="west")
    for role in ("peer", "second", "root"):
        assert allowed(role, Access.REPLICATE, west, stored)
    for role in ("admin", "role", "other-peer", "west", ""):
        assert not allowed(role, Access.REPLICATE, west, stored)
    assert not allowed("peer", Access.REPLICATE, replace(west, source=""), stored)
    assert not allowed("peer", Access.PRODUCE, west, stored)


@pytest.mark.parametrize("name", ["pulsar.repl.west", "pulsar.dedup", "pulsar.x", "__compaction"])
def test_internal_cursors_are_not_consumed_through(name: str) -> None:
    """Not even where a grant names one."""
    auth = {"namespace_auth": {"role": ["consume"]}, "subscription_auth_roles": {name: ["role"]}}
    stored = facts(("admin",), auth_policies=auth)
    cursor = replace(TOPIC, subscription=name)
    assert not allowed("role", Access.CONSUME, cursor, stored)
    assert allowed("admin", Access.CONSUME, cursor, stored), "the backlog of a replicator is the administrator's"
    assert allowed("role", Access.CONSUME, replace(TOPIC, subscription=f"my-{name}"), stored)


def test_administrators_stop_at_their_tenant() -> None:
    for access in (*GRANTABLE, Access.TENANT):
        assert allowed("admin", access, TOPIC, facts(("admin",)))
        assert not allowed("admin", access, TOPIC, facts(("other",)))
    for access in (Access.SUPERUSER, Access.METRICS, Access.OWN):
        assert not allowed("admin", access, TOPIC, facts(("admin",)))


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["produce"], {Access.NAMESPACE, Access.LOOKUP, Access.PRODUCE}),
        (["consume"], {Access.NAMESPACE, Access.LOOKUP, Access.CONSUME}),
        (["produce", "consume"], set(GRANTABLE)),
        (["functions", "sources", "sinks", "packages"], set()),
        ([], set()),
    ],
)
def test_what_a_namespace_grants(actions: list[str], expected: set[Access]) -> None:
    stored = granted(namespace_auth={"role": actions})
    assert {access for access in Access if allowed("role", access, TOPIC, stored)} - {
        Access.OPEN,
        Access.AUTHENTICATED,
    } == expected
    assert not any(allowed("roles", access, TOPIC, stored) for access in GRANTABLE)


def test_what_a_topic_grants_stays_there() -> None:
    stored = granted(destination_auth={"persistent://t/ns/one": {"role": ["produce", "consume"]}})
    partition = Resource.of_topic(TopicName.parse("t/ns/one-partition-3"))
    for resource in (TOPIC, partition):
        assert allowed("role", Access.PRODUCE, resource, stored)
    for name in ("t/ns/on", "t/ns/one1", "non-persistent://t/ns/one"):
        assert not allowed("role", Access.PRODUCE, Resource.of_topic(TopicName.parse(name)), stored)
    assert not allowed("role", Access.NAMESPACE, NAMESPACE, stored)


def test_subscription_roles_and_prefix() -> None:
    auth = {"namespace_auth": {"app": ["consume"], "app2": ["consume"]}, "subscription_auth_roles": {"kept": ["app2"]}}

    def may(role: str, subscription: str, mode: str = "None") -> bool:
        resource = Resource.of_topic(TopicName.parse("t/ns/one"), subscription)
        stored = facts(auth_policies=auth, subscription_auth_mode=mode)
        return allowed(role, Access.CONSUME, resource, stored)

    assert may("app", "free")
    assert not may("app", "kept")
    assert may("app2", "kept")
    assert may("app", "app-x", "Prefix")
    assert may("app", "app", "Prefix")
    assert not may("app", "app2-x", "Prefix")
    assert not may("app", "free", "Prefix")
    assert not may("app2", "kept", "Prefix")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["role", "produce", "consume", "persistent://t/ns/one"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "produce", "sub", "persistent://t/ns/one"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    auth=st.one_of(
        JSON,
        st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("namespace_auth", "destination_auth", "subscription_auth_roles"), JSON)
        ),
    ),
    mode=JSON,
    access=st.sampled_from(Access),
)
def test_a_damaged_document_grants_nothing_that_is_not_written_in_it(auth: Any, mode: Any, access: Access) -> None:
    stored = facts(auth_policies=auth, subscription_auth_mode=mode)
    for role in ("role", "other"):
        yes = allowed(role, access, TOPIC, stored)
        if role == "other":
            assert yes == (access in (Access.OPEN, Access.AUTHENTICATED))
