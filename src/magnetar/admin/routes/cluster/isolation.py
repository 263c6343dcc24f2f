"""What a cluster says about its brokers and neighbours: peers, failure domains, and which brokers serve which namespaces.

Kept, checked and answered as in Pulsar; the load manager places bundles by them (`broker.load_balance.isolation`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import FailureDomain, IsolatedBroker, IsolationPolicy
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.routes.cluster.clusters import CLUSTER, cluster_document, cluster_name, store_cluster
from magnetar.admin.routing import Route
from magnetar.base.errors import NodeNotFoundError
from magnetar.broker.auth.decide import Access
from magnetar.broker.load_balance.isolation import names_broker
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.naming import entity_name
from magnetar.metadata import paths

REGEX_CHARS_MAX = 1024
"""A longer expression is refused with 400."""

POLICY_PARAMETERS = ("min_limit", "usage_threshold")


# ---- Peers


@documented(answer=list[str])
async def get_peers(call: Call) -> Response:
    """Clusters that may not replicate to this one, but stand in for it."""
    return as_json((await cluster_document(call)).get("peerClusterNames") or [])


@documented("Set the peers; null is none.", body=list[str] | None)
async def put_peers(call: Call) -> Response:
    document, names = await cluster_document(call), await call.body_as(list[str], unset=[])
    known = await call.broker.metadata.children(paths.CLUSTERS_PATH)
    for name in names:
        if name == cluster_name(call):
            raise PreconditionFailedError(f"{name} itself can't be part of peer-list")
        if name not in known:
            raise PreconditionFailedError(f"Peer cluster {name} does not exist")
    await store_cluster(call, {**document, "peerClusterNames": sorted(set(names))})
    return done()


# ---- Failure domains


async def _domains(call: Call) -> dict[str, Any]:
    await cluster_document(call)
    metadata, cluster = call.broker.metadata, cluster_name(call)
    found = {}
    for name in await metadata.children(paths.failure_domains_path(cluster)):
        node = await metadata.get(paths.failure_domain_path(cluster, name))
        if node is not None:
            found[name] = json.loads(node.value)
    return found


def _domain_path(call: Call) -> str:
    name = entity_name(call.params["domainName"], "failure domain")
    return paths.failure_domain_path(cluster_name(call), name)


@documented(answer=dict[str, FailureDomain])
async def get_domains(call: Call) -> Response:
    """Failure domains by name."""
    return as_json(await _domains(call))


@documented("One failure domain.", answer=FailureDomain)
async def get_domain(call: Call) -> Response:
    await cluster_document(call)
    node = await call.broker.metadata.get(_domain_path(call))
    if node is None:
        raise NotFoundError(f"Domain {call.params['domainName']} for cluster {cluster_name(call)} does not exist")
    return as_json(json.loads(node.value))


@documented(body=FailureDomain)
async def put_domain(call: Call) -> Response:
    """A broker belongs to one domain at most: 409."""
    path, body = _domain_path(call), await call.body_as(FailureDomain)
    for name, domain in (await _domains(call)).items():
        for broker in body.brokers:
            if name != call.params["domainName"] and broker in domain.get("brokers", ()):
                raise AlreadyExistsError(f"{broker} already exists in {name}")
    await call.broker.metadata.put(path, json.dumps({"brokers": sorted(set(body.brokers))}).encode())
    return done()


@documented("Remove a failure domain.")
async def delete_domain(call: Call) -> Response:
    await cluster_document(call)
    try:
        await call.broker.metadata.delete(_domain_path(call))
    except NodeNotFoundError:
        name = call.params["domainName"]
        raise NotFoundError(f"Domain {name} for cluster {cluster_name(call)} does not exist") from None
    return done()


# ---- Isolation policies


async def isolation_policies(call: Call) -> dict[str, Any]:
    """By name, {} without any."""
    await cluster_document(call)
    node = await call.broker.metadata.get(paths.isolation_policies_path(cluster_name(call)))
    found = json.loads(node.value or b"{}") if node is not None else {}
    return found if isinstance(found, dict) else {}


@documented(answer=dict[str, IsolationPolicy])
async def get_policies(call: Call) -> Response:
    """Isolation policies by name; 404 for a cluster that never had one."""
    await cluster_document(call)
    if await call.broker.metadata.get(paths.isolation_policies_path(cluster_name(call))) is None:
        raise NotFoundError(f"NamespaceIsolationPolicies for cluster {cluster_name(call)} does not exist")
    return as_json(await isolation_policies(call))


@documented("One isolation policy.", answer=IsolationPolicy)
async def get_policy(call: Call) -> Response:
    found = (await isolation_policies(call)).get(_policy_name(call))
    if found is None:
        raise NotFoundError(f"Cannot find NamespaceIsolationPolicy {call.params['policyName']}")
    return as_json(found)


@documented("Set an isolation policy.", body=IsolationPolicy)
async def put_policy(call: Call) -> Response:
    name, body = _policy_name(call), await call.body_as(IsolationPolicy)
    _check(body)
    failover = {
        "policy_type": body.auto_failover_policy.policy_type,
        "parameters": body.auto_failover_policy.parameters,
    }
    document = {"namespaces": body.namespaces, "primary": body.primary, "secondary": body.secondary}
    await _store(call, {**await isolation_policies(call), name: {**document, "auto_failover_policy": failover}})
    return done()


@documented()
async def delete_policy(call: Call) -> Response:
    """One that is not there is gone already."""
    name, policies = _policy_name(call), await isolation_policies(call)
    await _store(call, {other: policy for other, policy in policies.items() if other != name})
    return done()


@documented(answer=list[IsolatedBroker])
async def get_brokers(call: Call) -> Response:
    """Every broker, once for each policy that names it, and once without one that none names."""
    policies = await isolation_policies(call)
    names = await call.broker.metadata.children(paths.BROKERS_PATH)
    return as_json([row for name in names for row in _rows(name, policies) or [_row(IsolatedBroker(broker_name=name))]])


@documented("One broker and the policy that names it.", answer=IsolatedBroker)
async def get_broker(call: Call) -> Response:
    policies, name = await isolation_policies(call), call.params["broker"]
    if name not in await call.broker.metadata.children(paths.BROKERS_PATH):
        raise NotFoundError(f"Broker {name} does not exist")
    rows = _rows(name, policies)
    return as_json(rows[0] if rows else _row(IsolatedBroker(broker_name=name)))


def _rows(broker: str, policies: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, policy in sorted(policies.items()):
        primary = _matches(policy.get("primary"), broker)
        if primary or _matches(policy.get("secondary"), broker):
            regex = list(policy.get("namespaces") or ())
            row = IsolatedBroker(broker_name=broker, policy_name=name, is_primary=primary, namespace_regex=regex)
            found.append(_row(row))
    return found


def _row(broker: IsolatedBroker) -> dict[str, Any]:
    return {
        "brokerName": broker.broker_name,
        "policyName": broker.policy_name,
        "isPrimary": broker.is_primary,
        "namespaceRegex": broker.namespace_regex,
    }


def _matches(expressions: Any, broker: str) -> bool:
    return isinstance(expressions, list) and names_broker(expressions, broker)


def _policy_name(call: Call) -> str:
    return entity_name(call.params["policyName"], "policy")


def _check(policy: IsolationPolicy) -> None:
    """Raises BadRequestError."""
    if not policy.namespaces or not policy.primary:
        raise BadRequestError("namespaces and primary must each name at least one")
    for text in (*policy.namespaces, *policy.primary, *policy.secondary):
        try:
            if len(text) > REGEX_CHARS_MAX:
                raise BadRequestError(f"a regular expression has at most {REGEX_CHARS_MAX} characters")
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise BadRequestError(f"{text[:80]!r} is not a valid regular expression: {error}") from None
    failover = policy.auto_failover_policy
    if failover.policy_type != "min_available":
        raise BadRequestError("auto_failover_policy.policy_type must be min_available")
    for name in POLICY_PARAMETERS:
        number = failover.parameters.get(name, "")
        if not (number.isascii() and number.isdigit() and len(number) <= 10):
            raise BadRequestError(f"auto_failover_policy.parameters needs a number in {name}, as a text")


async def _store(call: Call, policies: dict[str, Any]) -> None:
    path = paths.isolation_policies_path(cluster_name(call))
    await call.broker.metadata.put(path, json.dumps(policies).encode())


_DOMAINS = f"{CLUSTER}/failureDomains"
_POLICIES = f"{CLUSTER}/namespaceIsolationPolicies"

ROUTES = (
    Route("GET", f"{CLUSTER}/peers", Access.SUPERUSER, get_peers),
    Route("POST", f"{CLUSTER}/peers", Access.SUPERUSER, put_peers),
    Route("GET", _DOMAINS, Access.SUPERUSER, get_domains),
    Route("GET", f"{_DOMAINS}/{{domainName}}", Access.SUPERUSER, get_domain),
    Route("POST", f"{_DOMAINS}/{{domainName}}", Access.SUPERUSER, put_domain),
    Route("DELETE", f"{_DOMAINS}/{{domainName}}", Access.SUPERUSER, delete_domain),
    Route("GET", _POLICIES, Access.SUPERUSER, get_policies),
    Route("GET", f"{_POLICIES}/brokers", Access.SUPERUSER, get_brokers),
    Route("GET", f"{_POLICIES}/brokers/{{broker}}", Access.SUPERUSER, get_broker),
    Route("GET", f"{_POLICIES}/{{policyName}}", Access.SUPERUSER, get_policy),
    Route("POST", f"{_POLICIES}/{{policyName}}", Access.SUPERUSER, put_policy),
    Route("DELETE", f"{_POLICIES}/{{policyName}}", Access.SUPERUSER, delete_policy),
)
