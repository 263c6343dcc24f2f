"""Policies of single topics: one metadata node a topic, `/admin/topic-policies/<tenant>/<namespace>/<domain>/<topic>`.

Pulsar keeps them in a system topic `__change_events` of each namespace, which has to be read to its end before any topic of the
namespace may be loaded, and compacted for ever. A node needs neither: it is read with one get when a topic is loaded, survives
restarts as the namespace's own policies do, is seen by every broker of a cluster through the store's watch, and is changed by
compare-and-set from whichever broker an admin call reaches. The properties of the managed ledger would not do: a partitioned topic
has many ledgers, a non-persistent one has none, and only the owner may write them.

The document has Pulsar's field names (TopicPolicies). What was set with `isGlobal=true`, for all clusters, lies below `global`; the
cluster's own value wins.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.broker.naming import DOMAINS, NamespaceName, TopicName
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

GLOBAL = "global"


class TopicPolicyStore:
    """Takes names without a partition."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def get(self, topic: TopicName, is_global: bool = False) -> dict[str, Any]:
        """The topic's own values, {} without any."""
        node = await self._metadata.get(_path(topic))
        document = _decode(node.value) if node else {}
        return dict(document.get(GLOBAL) or {}) if is_global else _without_global(document)

    async def merged(self, topic: TopicName) -> dict[str, Any]:
        """Both kinds as one document."""
        node = await self._metadata.get(_path(topic))
        if node is None:
            return {}
        document = _decode(node.value)
        own = {key: value for key, value in _without_global(document).items() if value is not None}
        return {**(document.get(GLOBAL) or {}), **own}

    async def update(self, topic: TopicName, change: Callable[[dict[str, Any]], None], is_global: bool = False) -> None:
        """Apply `change` by compare-and-set, as often as another writer comes in between."""
        path = _path(topic)
        while True:
            node = await self._metadata.get(path)
            document = _decode(node.value) if node else {}
            section = dict(document.get(GLOBAL) or {}) if is_global else document
            change(section)
            if is_global:
                document[GLOBAL] = section
            value = json.dumps(document, separators=(",", ":")).encode()
            try:
                await self._metadata.put(path, value, node.version if node else MUST_NOT_EXIST)
            except BadVersionError:
                continue
            return

    async def copy(self, source: TopicName, target: TopicName) -> None:
        """All values, unless `target` has any."""
        node = await self._metadata.get(_path(source))
        if node is None:
            return
        try:
            await self._metadata.put(_path(target), node.value, MUST_NOT_EXIST)
        except BadVersionError:
            return

    async def delete(self, topic: TopicName) -> None:
        """The topic is gone: one that is created later under its name begins without policies."""
        try:
            await self._metadata.delete(_path(topic))
        except NodeNotFoundError:
            return

    async def delete_all(self, namespace: NamespaceName) -> None:
        """The namespace goes: policies of topics that no longer exist go with it."""
        parent = paths.topics_policies_path(namespace.tenant, namespace.namespace)
        for domain in DOMAINS:
            for name in await self._metadata.children(f"{parent}/{domain}"):
                try:
                    await self._metadata.delete(f"{parent}/{domain}/{name}")
                except NodeNotFoundError:
                    continue


def topic_of_path(path: str) -> TopicName | None:
    """The topic whose policies lie at `path`, None for any other path."""
    parts = path.removeprefix(paths.TOPIC_POLICIES_PATH + "/").split("/")
    if not path.startswith(paths.TOPIC_POLICIES_PATH + "/") or len(parts) != 4:
        return None
    tenant, namespace, domain, topic = parts
    return TopicName(domain, tenant, namespace, paths.decode(topic))


def _path(topic: TopicName) -> str:
    return paths.topic_policies_path(topic.tenant, topic.namespace, topic.domain, topic.local_name)


def _without_global(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != GLOBAL}


def _decode(value: bytes) -> dict[str, Any]:
    document = json.loads(value or b"{}")
    return document if isinstance(document, dict) else {}
