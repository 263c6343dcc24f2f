"""The load of each bundle of this broker: the sums over its topics."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from magnetar.base.tasks import in_turns
from magnetar.broker.load_balance.load_report import BundleLoad
from magnetar.broker.load_balance.splitting import TopicLoad
from magnetar.broker.namespaces.records import BundleName
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import AnyTopic
from magnetar.hashing.crc import crc32


class _Ranges(NamedTuple):
    """The held bundles of one namespace, from the lowest up."""

    lows: list[int]
    bundles: list[BundleName]


class BundleIndex:
    """Finds the held bundle of a topic, without a look at the metadata store."""

    def __init__(self, held: Iterable[BundleName]) -> None:
        by_namespace: dict[NamespaceName, list[tuple[int, BundleName]]] = {}
        for bundle in held:
            by_namespace.setdefault(bundle.namespace, []).append((edges(bundle)[0], bundle))
        self._ranges = {
            namespace: _Ranges([low for low, _ in found], [bundle for _, bundle in found])
            for namespace, found in ((name, sorted(each)) for name, each in by_namespace.items())
        }

    def find(self, topic: TopicName) -> BundleName | None:
        """None for a topic of a bundle that is not held."""
        ranges = self._ranges.get(topic.namespace_name)
        if ranges is None:
            return None
        place = crc32(str(topic))
        number = bisect_right(ranges.lows, place) - 1
        if number < 0:
            return None
        bundle = ranges.bundles[number]
        high = edges(bundle)[1]
        return bundle if place < high or high == 0xFFFFFFFF else None


def edges(bundle: BundleName) -> tuple[int, int]:
    low, _, high = bundle.range.partition("_")
    return int(low, 16), int(high, 16)


async def bundle_loads(topics: Iterable[AnyTopic], held: Iterable[BundleName]) -> dict[str, BundleLoad]:
    """Load by bundle, including bundles without a loaded topic."""
    index = BundleIndex(held)
    sums: dict[str, list[float]] = {str(bundle): [0.0] * 7 for bundle in held}
    async for topic in in_turns(topics):
        bundle = index.find(topic.name)
        if bundle is not None:
            total = sums[str(bundle)]
            for place, value in enumerate(_numbers(topic)):
                total[place] += value
    return {
        bundle: BundleLoad(*total[:4], *(int(count) for count in total[4:]))  # type: ignore[arg-type]  # four rates, three counts
        for bundle, total in sums.items()
    }


def topic_loads(topics: Iterable[AnyTopic], bundle: BundleName) -> list[TopicLoad]:
    """The hashes of the loaded topics of one bundle and their bytes a second, by which it is split."""
    index = BundleIndex([bundle])
    return [TopicLoad(crc32(str(topic.name)), sum(_numbers(topic)[2:4])) for topic in topics if index.find(topic.name)]


def _numbers(topic: AnyTopic) -> tuple[float, ...]:
    """The figures in the order of `BundleLoad`'s fields."""
    subscriptions = topic.subscriptions.all if isinstance(topic, PersistentTopic) else topic.subscriptions
    out = [subscription.rates for subscription in subscriptions]
    return (
        topic.rates.messages_per_s,
        sum(each.messages_per_s for each in out),
        topic.rates.bytes_per_s,
        sum(each.bytes_per_s for each in out),
        1,
        len(topic.publishers.producers),
        sum(len(subscription.consumers) for subscription in subscriptions),
    )
