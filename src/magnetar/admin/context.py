"""What the handlers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie.statistics import BookieStatistics
from magnetar.broker.service import Broker
from magnetar.broker.topics.partitioned import PartitionedTopics


@dataclass(frozen=True, slots=True)
class AdminContext:
    """`settings`: the configuration by Pulsar's key names, as texts. `shut_down` asks the process to end, as SIGTERM does."""

    broker: Broker
    bookie_statistics: Callable[[], BookieStatistics]
    settings: Mapping[str, str]
    shut_down: Callable[[], None] | None = None
    partitioned: PartitionedTopics = field(init=False)

    def __post_init__(self) -> None:
        broker = self.broker
        partitioned = PartitionedTopics(broker.metadata, broker.namespaces, broker.lookup, broker.topics)
        object.__setattr__(self, "partitioned", partitioned)
