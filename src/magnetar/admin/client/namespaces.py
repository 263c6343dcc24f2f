"""Namespaces, given as `tenant/namespace`: what they hold, their bundles, permissions and properties."""

from __future__ import annotations

from typing import Any, Literal

from magnetar.admin.client.noun import NAMESPACE, Noun, Texts, namespace_names
from magnetar.admin.documents.cluster import BookieAffinity, TopicGrant, TopicHashPositions
from magnetar.admin.documents.policies import BacklogQuota, StoredBundles, StoredPolicies
from magnetar.admin.documents.topics import PolicySource, TopicPage

Grants = list[TopicGrant]
QuotaType = Literal["destination_storage", "message_age"]
Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
Sort = Literal["name", "backlog", "rateIn", "rateOut", "size"]

_BUNDLE = NAMESPACE + "/{bundle}"
_AFFINITY = NAMESPACE + "/persistence/bookieAffinity"


class Namespaces(Noun):
    """What topics have in common. Single policies are in `AdminClient.namespace_policies`."""

    def list(self, tenant: str) -> Texts:
        """Complete names."""
        return list(self._get("/namespaces/{tenant}", Texts, tenant=tenant))

    def create(self, namespace: str, *, bundles: int | None = None, policies: dict[str, Any] | None = None) -> None:
        """`policies` is Pulsar's document; what it leaves out is the broker's."""
        self._put(NAMESPACE, policies, {"bundles": bundles}, **namespace_names(namespace))

    def delete(self, namespace: str, *, force: bool = False) -> None:
        """`force` deletes its topics."""
        self._delete(NAMESPACE, {"force": force}, **namespace_names(namespace))

    def policies(self, namespace: str) -> StoredPolicies:
        """What every namespace has; `document` has the rest."""
        found: StoredPolicies = self._get(NAMESPACE, StoredPolicies, **namespace_names(namespace))
        return found

    def document(self, namespace: str) -> dict[str, Any]:
        """The complete policies document."""
        return dict(self._get(NAMESPACE, dict[str, Any], **namespace_names(namespace)))

    def topics(self, namespace: str, *, mode: Mode | None = None, include_system_topics: bool | None = None) -> Texts:
        """Partitions are listed separately."""
        query = {"mode": mode, "includeSystemTopic": include_system_topics}
        return list(self._get(NAMESPACE + "/topics", Texts, query, **namespace_names(namespace)))

    def topics_page(
        self,
        namespace: str,
        *,
        sort: Sort | None = None,
        domain: Literal["persistent", "non-persistent"] | None = None,
        filter: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        here: bool | None = None,
    ) -> TopicPage:
        """Some topics with their numbers, by name or the largest first; the page's `next` is what `after` takes for the next one."""
        query = {"sort": sort, "domain": domain, "filter": filter, "after": after, "limit": limit, "here": here}
        found: TopicPage = self._get(NAMESPACE + "/topicsPage", TopicPage, query, **namespace_names(namespace))
        return found

    def policy_sources(self, namespace: str) -> dict[str, PolicySource]:
        """Every policy with the level that it comes from."""
        template = NAMESPACE + "/policySources"
        return dict(self._get(template, dict[str, PolicySource], **namespace_names(namespace)))

    # ---- Bundles

    def bundles(self, namespace: str) -> StoredBundles:
        found: StoredBundles = self._get(NAMESPACE + "/bundles", StoredBundles, **namespace_names(namespace))
        return found

    def unload(self, namespace: str, *, destination_broker: str | None = None) -> None:
        """Close all topics; clients come back by themselves."""
        query = {"destinationBroker": destination_broker}
        self._put(NAMESPACE + "/unload", None, query, **namespace_names(namespace))

    def unload_bundle(self, namespace: str, bundle: str, *, destination_broker: str | None = None) -> None:
        query = {"destinationBroker": destination_broker}
        self._put(_BUNDLE + "/unload", None, query, bundle=bundle, **namespace_names(namespace))

    def split_bundle(self, namespace: str, bundle: str, *, unload: bool = False, algorithm: str | None = None) -> None:
        """`algorithm`: range_equally_divide or topic_count_equally_divide."""
        query = {"unload": unload, "splitAlgorithmName": algorithm}
        self._put(_BUNDLE + "/split", None, query, bundle=bundle, **namespace_names(namespace))

    def delete_bundle(self, namespace: str, bundle: str, *, force: bool = False) -> None:
        self._delete(_BUNDLE, {"force": force}, bundle=bundle, **namespace_names(namespace))

    def topic_positions(self, namespace: str, bundle: str, topics: Texts | None = None) -> TopicHashPositions:
        """Where the bundle's topics stand in the hash range."""
        query = {"topics": ",".join(topics) if topics else None}
        template, names = _BUNDLE + "/topicHashPositions", namespace_names(namespace)
        found: TopicHashPositions = self._get(template, TopicHashPositions, query, bundle=bundle, **names)
        return found

    def non_persistent_topics(self, namespace: str, bundle: str) -> Texts:
        """Of one bundle."""
        names = namespace_names(namespace)
        return [*self._get("/non-persistent/{tenant}/{namespace}/{bundle}", Texts, bundle=bundle, **names)]

    # ---- Where it may be

    def allowed_clusters(self, namespace: str) -> Texts:
        """Empty: those of the tenant."""
        return [*self._get(NAMESPACE + "/allowedClusters", Texts, **namespace_names(namespace))]

    def set_allowed_clusters(self, namespace: str, clusters: Texts) -> None:
        self._post(NAMESPACE + "/allowedClusters", clusters, **namespace_names(namespace))

    def anti_affinity_group(self, namespace: str) -> str:
        """Empty without one."""
        return self._text("GET", NAMESPACE + "/antiAffinity", **namespace_names(namespace))

    def set_anti_affinity_group(self, namespace: str, group: str) -> None:
        self._post(NAMESPACE + "/antiAffinity", group, **namespace_names(namespace))

    def delete_anti_affinity_group(self, namespace: str) -> None:
        self._delete(NAMESPACE + "/antiAffinity", **namespace_names(namespace))

    def anti_affinity_namespaces(self, cluster: str, group: str, *, tenant: str | None = None) -> Texts:
        template = "/namespaces/{cluster}/antiAffinity/{group}"
        return [*self._get(template, Texts, {"property": tenant}, cluster=cluster, group=group)]

    def resource_group(self, namespace: str) -> str:
        """Empty without one."""
        return self._text("GET", NAMESPACE + "/resourcegroup", **namespace_names(namespace))

    def set_resource_group(self, namespace: str, group: str) -> None:
        self._post(NAMESPACE + "/resourcegroup/{resourcegroup}", resourcegroup=group, **namespace_names(namespace))

    def remove_resource_group(self, namespace: str) -> None:
        self._delete(NAMESPACE + "/resourcegroup", **namespace_names(namespace))

    # ---- Permissions on many topics

    def grant_on_topics(self, grants: Grants) -> None:
        self._post("/namespaces/grantPermissionsOnTopics", grants)

    def revoke_on_topics(self, grants: Grants) -> None:
        self._post("/namespaces/revokePermissionsOnTopics", grants)

    # ---- Backlogs of all topics

    def clear_backlog(self, namespace: str, *, subscription: str | None = None, bundle: str | None = None) -> None:
        """Clear the backlog of one subscription or of all, in one bundle or in all."""
        names = namespace_names(namespace)
        template = _BUNDLE if bundle else NAMESPACE
        leaf = "/clearBacklog/{subscription}" if subscription else "/clearBacklog"
        self._post(template + leaf, subscription=subscription, bundle=bundle, **names)

    def unsubscribe(self, namespace: str, subscription: str, *, bundle: str | None = None) -> None:
        """Delete the subscription wherever it exists."""
        template = (_BUNDLE if bundle else NAMESPACE) + "/unsubscribe/{subscription}"
        self._post(template, subscription=subscription, bundle=bundle, **namespace_names(namespace))

    # ---- Backlog quotas

    def backlog_quotas(self, namespace: str) -> dict[str, BacklogQuota]:
        """By type."""
        kind = dict[str, BacklogQuota]
        return dict(self._get(NAMESPACE + "/backlogQuotaMap", kind, **namespace_names(namespace)))

    def set_backlog_quota(
        self, namespace: str, quota: BacklogQuota, *, quota_type: QuotaType = "destination_storage"
    ) -> None:
        query = {"backlogQuotaType": quota_type}
        self._post(NAMESPACE + "/backlogQuota", quota, query, **namespace_names(namespace))

    def remove_backlog_quota(self, namespace: str, *, quota_type: QuotaType = "destination_storage") -> None:
        self._delete(NAMESPACE + "/backlogQuota", {"backlogQuotaType": quota_type}, **namespace_names(namespace))

    # ---- Permissions

    def permissions(self, namespace: str) -> dict[str, Texts]:
        """Actions by role."""
        return dict(self._get(NAMESPACE + "/permissions", dict[str, Texts], **namespace_names(namespace)))

    def grant(self, namespace: str, role: str, actions: Texts) -> None:
        """Replaces what the role had."""
        self._post(NAMESPACE + "/permissions/{role}", actions, role=role, **namespace_names(namespace))

    def revoke(self, namespace: str, role: str) -> None:
        self._delete(NAMESPACE + "/permissions/{role}", role=role, **namespace_names(namespace))

    def subscription_permissions(self, namespace: str) -> dict[str, Texts]:
        """Roles by subscription."""
        template, kind = NAMESPACE + "/permissions/subscription", dict[str, Texts]
        return dict(self._get(template, kind, **namespace_names(namespace)))

    def grant_subscription(self, namespace: str, subscription: str, roles: Texts) -> None:
        template = NAMESPACE + "/permissions/subscription/{subscription}"
        self._post(template, roles, subscription=subscription, **namespace_names(namespace))

    def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        template = NAMESPACE + "/permissions/{subscription}/{role}"
        self._delete(template, subscription=subscription, role=role, **namespace_names(namespace))

    # ---- Properties, bookie affinity

    def properties(self, namespace: str) -> dict[str, str]:
        return dict(self._get(NAMESPACE + "/properties", dict[str, str], **namespace_names(namespace)))

    def add_properties(self, namespace: str, properties: dict[str, str]) -> None:
        self._put(NAMESPACE + "/properties", properties, **namespace_names(namespace))

    def clear_properties(self, namespace: str) -> None:
        self._delete(NAMESPACE + "/properties", **namespace_names(namespace))

    def property(self, namespace: str, key: str) -> str:
        return self._text("GET", NAMESPACE + "/property/{key}", key=key, **namespace_names(namespace))

    def set_property(self, namespace: str, key: str, value: str) -> None:
        self._put(NAMESPACE + "/property/{key}/{value}", key=key, value=value, **namespace_names(namespace))

    def remove_property(self, namespace: str, key: str) -> str:
        """Answers the value it had."""
        return self._text("DELETE", NAMESPACE + "/property/{key}", key=key, **namespace_names(namespace))

    def bookie_affinity(self, namespace: str) -> BookieAffinity | None:
        found: BookieAffinity | None = self._get(_AFFINITY, BookieAffinity, **namespace_names(namespace))
        return found

    def set_bookie_affinity(self, namespace: str, affinity: BookieAffinity) -> None:
        self._post(_AFFINITY, affinity, **namespace_names(namespace))

    def remove_bookie_affinity(self, namespace: str) -> None:
        self._delete(_AFFINITY, **namespace_names(namespace))
