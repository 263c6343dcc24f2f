"""Chooses the bundles that are split because they hold too much, and the boundaries."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from magnetar.broker.load_balance.load_report import BundleLoad
from magnetar.broker.load_balance.shedding import Held
from magnetar.broker.load_balance.view import BrokerProjection, Projection, namespace_of
from magnetar.broker.settings.load_balance import FLOW_OR_QPS, MIB, TOPIC_COUNT, LoadBalanceSettings

TRAFFIC: Final = ("messages/s", "bytes/s")

HOT_BUNDLE_SHARE: Final = 0.5
"""Of its broker's traffic: a bundle above it cannot be shed from an overloaded broker without overloading the next one."""


class Split(NamedTuple):
    """A bundle becomes two; its owner, who knows the topics, finds the boundary by `algorithm`."""

    bundle: str
    broker: str
    algorithm: str
    load: BundleLoad
    reason: str


class TopicLoad(NamedTuple):
    """A topic's place in the hash space and its load: messages or bytes a second."""

    place: int
    load: float = 0.0


def decide_splits(
    projection: Projection,
    bundle_counts: Mapping[str, int],
    settings: LoadBalanceSettings,
    without: Container[str] = (),
) -> tuple[list[Split], list[Held]]:
    """`bundle_counts`: bundles by namespace; of what is not in it those that the brokers report are counted.

    `without`: bundles whose owner has not reported them yet.
    """
    counted: dict[str, int] = {}
    for standing in projection.standing.values():
        for namespace, number in standing.namespaces.items():
            counted[namespace] = counted.get(namespace, 0) + number
    counts = counted | dict(bundle_counts)
    over = projection.mean_percent() + settings.load_balancer_broker_threshold_shedder_percentage
    splits: list[Split] = []
    held: list[Held] = []
    for broker, standing in projection.active.items():
        for bundle, load in standing.bundles.items():
            if bundle in without:
                continue
            reason = too_much(load, settings) or _hot(load, standing, over, settings)
            if not reason:
                continue
            namespace = namespace_of(bundle)
            if load.topics < 2:
                held.append(Held(bundle, f"{reason}, but a single topic cannot be split; give it partitions"))
            elif counts[namespace] >= settings.load_balancer_namespace_maximum_bundles:
                held.append(
                    Held(
                        bundle,
                        f"{reason}, but {namespace} has {counts[namespace]} bundles; loadBalancerNamespaceMaximumBundles",
                    )
                )
            else:
                counts[namespace] += 1
                # Halves of the range would leave one hot topic in as busy a bundle as before.
                by_traffic = reason.startswith("hot") or reason.split()[1] in TRAFFIC
                algorithm = FLOW_OR_QPS if by_traffic else settings.default_namespace_bundle_split_algorithm
                splits.append(Split(bundle, broker, algorithm, load, reason))
    return splits, held


def too_much(load: BundleLoad, settings: LoadBalanceSettings) -> str:
    """The limit that a bundle exceeds, as text; empty if none."""
    for name, value, limit in (
        ("topics", load.topics, settings.load_balancer_namespace_bundle_max_topics),
        ("producers and consumers", load.sessions, settings.load_balancer_namespace_bundle_max_sessions),
        ("messages/s", load.rate, settings.load_balancer_namespace_bundle_max_msg_rate),
        ("bytes/s", load.throughput, settings.load_balancer_namespace_bundle_max_bandwidth_mbytes * MIB),
    ):
        if value > limit:
            return f"{value:.0f} {name} are more than {limit:.0f}"
    return ""


def _hot(load: BundleLoad, standing: BrokerProjection, over: float, settings: LoadBalanceSettings) -> str:
    """One bundle makes its broker overloaded: nothing that could be shed would help, and no other broker could take it whole."""
    if (
        standing.percent <= max(over, settings.load_balancer_broker_overloaded_threshold_percentage)
        or standing.throughput <= 0
    ):
        return ""
    share = load.throughput / standing.throughput
    if share <= HOT_BUNDLE_SHARE:
        return ""
    return f"hot: {100 * share:.0f} % of the traffic of a broker at {standing.percent:.0f} %"


def boundary(algorithm: str, low: int, high: int, topics: Sequence[TopicLoad]) -> int | None:
    """The boundary at which to split the range from `low` to `high`; None if none has topics on both sides. `topics`: the bundle's."""
    if algorithm == FLOW_OR_QPS and sum(topic.load for topic in topics) > 0:
        cut = _by_load(topics)
    elif algorithm in (TOPIC_COUNT, FLOW_OR_QPS):
        cut = _between(sorted(topic.place for topic in topics), len(topics) // 2)
    else:
        cut = low + (high - low) // 2
    return cut if cut is not None and low < cut < high else None


def _by_load(topics: Sequence[TopicLoad]) -> int | None:
    """The cut between two topics that leaves the halves of the load as near to each other as whole topics allow."""
    ordered = sorted(topics)
    before = list(accumulate(topic.load for topic in ordered))
    total = before[-1]
    best = min(range(1, len(ordered)), key=lambda place: (abs(2 * before[place - 1] - total), place), default=0)
    return _between([topic.place for topic in ordered], best)


def _between(places: Sequence[int], place: int) -> int | None:
    """So that `place` topics are below the cut, or as near to that as equal hashes allow: they stay together."""
    cuts = [number for number in range(1, len(places)) if places[number - 1] < places[number]]
    nearest = min(cuts, key=lambda number: (abs(number - place), number), default=None)
    if nearest is None:
        return None
    below, above = places[nearest - 1], places[nearest]
    return below + (above - below + 1) // 2
