"""Which brokers may serve a namespace: isolation policies, failure domains and anti-affinity groups, as Pulsar has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """Namespaces of these names go to the primary brokers; to the secondary ones while fewer than `min_limit` primary
    brokers are there and below `usage_threshold_percent`. All three are regular expressions for whole names."""

    name: str
    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1
    usage_threshold_percent: float = 100.0

    def holds_for(self, namespace: str) -> bool:
        return any(_matches(expression, namespace) for expression in self.namespaces)

    def is_primary(self, broker: str) -> bool:
        return names_broker(self.primary, broker)

    def is_secondary(self, broker: str) -> bool:
        return names_broker(self.secondary, broker)


class Eligible(NamedTuple):
    """The brokers to choose from, and why there are no more or none."""

    brokers: list[str]
    reason: str


@dataclass(frozen=True, slots=True)
class Isolation:
    """`domains`: broker to failure domain. `groups`: namespace to anti-affinity group."""

    policies: tuple[IsolationPolicy, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    def policy_of(self, namespace: str) -> IsolationPolicy | None:
        """The first by name that holds for it."""
        return next((policy for policy in self.policies if policy.holds_for(namespace)), None)

    def eligible(self, namespace: str, used_percent: Mapping[str, float]) -> Eligible:
        """The brokers (given with their usage) that may serve the namespace, in the order given.

        Namespaces without a policy get the brokers that are nobody's primary; all of them where no such broker is there.
        """
        policy = self.policy_of(namespace)
        if policy is None:
            shared = [name for name in used_percent if not any(other.is_primary(name) for other in self.policies)]
            if not self.policies:
                return Eligible(shared, "")
            if shared or not used_percent:
                return Eligible(shared, "not the primary broker of any isolation policy")
            return Eligible(list(used_percent), "every broker is the primary of an isolation policy, so any will do")
        primary = [name for name in used_percent if policy.is_primary(name)]
        usable = [name for name in primary if used_percent[name] <= policy.usage_threshold_percent]
        if len(usable) >= policy.min_limit:
            return Eligible(primary, f"primary of isolation policy {policy.name}")
        secondary = [name for name in used_percent if policy.is_secondary(name) and name not in primary]
        found = primary + secondary
        if not found:
            return Eligible(
                [], f"isolation policy {policy.name} names no broker that is there: start one, or change it"
            )
        if not secondary:
            return Eligible(primary, f"primary of isolation policy {policy.name}, no secondary broker is there")
        return Eligible(
            found,
            f"isolation policy {policy.name} fails over: {len(usable)} of at least {policy.min_limit} primary brokers usable",
        )

    def spread(self, namespace: str, brokers: list[str], owners: Mapping[str, Iterable[str]]) -> list[str]:
        """The `brokers` that hold the fewest other namespaces of the same anti-affinity group: first by failure domain, then
        by broker. `owners`: broker to the namespaces it serves."""
        group = self.groups.get(namespace)
        if group is None or len(brokers) < 2:
            return brokers
        held = {
            broker: sum(other != namespace and self.groups.get(other) == group for other in set(owners.get(broker, ())))
            for broker in dict.fromkeys([*owners, *brokers])
        }
        by_domain: dict[str, int] = {}
        for broker, count in held.items():
            domain = self.domains.get(broker, broker)
            by_domain[domain] = by_domain.get(domain, 0) + count
        fewest = min(by_domain[self.domains.get(broker, broker)] for broker in brokers)
        found = [broker for broker in brokers if by_domain[self.domains.get(broker, broker)] == fewest]
        least = min(held[broker] for broker in found)
        return [broker for broker in found if held[broker] == least]


def names_broker(expressions: Iterable[str], broker: str) -> bool:
    """True if one of the expressions matches the broker: its `host:port`, or the host alone."""
    host = broker.rpartition(":")[0]
    return any(_matches(text, broker) or (bool(host) and _matches(text, host)) for text in expressions)


def read_policies(document: Mapping[str, Any]) -> tuple[IsolationPolicy, ...]:
    """Policies by name, from the JSON below `/admin/clusters/<cluster>/namespaceIsolationPolicies`. Unreadable ones are ignored."""
    found = []
    for name, policy in sorted(document.items()):
        if not isinstance(policy, dict):
            continue
        parameters = (policy.get("auto_failover_policy") or {}).get("parameters") or {}
        found.append(
            IsolationPolicy(
                name,
                _texts(policy.get("namespaces")),
                _texts(policy.get("primary")),
                _texts(policy.get("secondary")),
                int(_digits(parameters.get("min_limit"), 1)),
                float(_digits(parameters.get("usage_threshold"), 100)),
            )
        )
    return tuple(found)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def _digits(value: Any, default: int) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else default


def _matches(expression: str, text: str) -> bool:
    try:
        return re.fullmatch(expression, text) is not None
    except (re.error, RecursionError, OverflowError):
        return False
