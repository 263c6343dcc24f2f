"""Where the policies in effect come from: the topic, its namespace, or the broker's configuration. Ours; Pulsar shows the values only."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.documents.topics import PolicySource
from magnetar.admin.operation import documented
from magnetar.admin.routing import NAMESPACE, Route, both_domains
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.policy_layers import LAYERS, NOT_SET, Documents, namespace_value


@documented("Every policy of a topic with the level that it comes from.", answer=dict[str, PolicySource])
async def of_topic(call: Call) -> Response:
    namespaces, name = call.broker.namespaces, call.topic
    own = await namespaces.topic_policies.merged(name)
    return _answer(Documents(call.broker.config, await namespaces.policies(name.namespace_name), own))


@documented("Every policy of a namespace with the level that it comes from.", answer=dict[str, PolicySource])
async def of_namespace(call: Call) -> Response:
    return _answer(Documents(call.broker.config, await call.broker.namespaces.policies(call.namespace), {}))


def _answer(documents: Documents) -> Response:
    return as_json({name: msgspec.to_builtins(source(name, documents)) for name in LAYERS})


def source(name: str, documents: Documents) -> PolicySource:
    """One policy. What says the same as nothing (`policy_layers.NOT_SET`) counts as nothing."""
    layer, settings = LAYERS[name], documents.config.settings
    found = PolicySource(
        topic=documents.topic.get(layer.topic) if layer.topic else None,
        namespace=namespace_value(layer, documents.namespace, settings.cluster_name),
        broker=layer.default(settings),
    )
    if found.topic not in NOT_SET:
        found.effective, found.level = found.topic, "topic"
    elif found.namespace not in NOT_SET:
        found.effective, found.level = found.namespace, "namespace"
    else:
        found.effective = found.broker
    return found


ROUTES = (
    *both_domains("GET", "/{topic}/policySources", Access.TENANT, of_topic),
    Route("GET", f"{NAMESPACE}/policySources", Access.TENANT, of_namespace),
)
