"""The objects that all handlers share, and the settings that they show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol, TypeVar, cast

from magnetar.admin.answers import NameLists
from magnetar.admin.errors import UnhealthyError
from magnetar.admin.pacing import Workload
from magnetar.base.settings import table_of
from magnetar.bookkeeper.bookie.statistics import BookieStatistics
from magnetar.broker.peers import RemoteTopics
from magnetar.broker.service import Broker
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.topics.partitioned import PartitionedTopics


class Storage(Protocol):
    """Where the broker's entries go: a bookie in the same process, or bookies elsewhere."""

    def problem(self) -> str | None:
        """Why nothing can be stored, with the fix; None while it can."""
        ...

    def bookie_statistics(self) -> BookieStatistics | None:
        """Statistics of the bookie in this process, if there is one."""
        ...


T = TypeVar("T")


class ForAMoment:
    """A value that takes work to make: made again when somebody asks and the last one is old, so that many viewers cost what one does.

    The pause between two is at least `OVERVIEW_AGE_S` and `OVERVIEW_PAUSE` times what making it took.
    """

    def __init__(self) -> None:
        self._value: object = None
        self._until_s = 0.0
        self._making = asyncio.Lock()

    async def get(self, make: Callable[[], Awaitable[T]]) -> T:
        async with self._making:
            began_s = monotonic()
            if self._value is None or began_s >= self._until_s:
                self._value = await make()
                now_s = monotonic()
                self._until_s = now_s + max(OVERVIEW_AGE_S, OVERVIEW_PAUSE * (now_s - began_s))
            return cast("T", self._value)


OVERVIEW_AGE_S = 1.0
OVERVIEW_PAUSE = 10


class AnyStorage:
    """Nothing is known about it."""

    def problem(self) -> str | None:
        return None

    def bookie_statistics(self) -> BookieStatistics | None:
        return None


def check_storage(storage: Storage) -> None:
    """Before a topic is created that could not take a message. Raises UnhealthyError (503)."""
    problem = storage.problem()
    if problem is not None:
        raise UnhealthyError(problem)


@dataclass(frozen=True, slots=True)
class AdminContext:
    """`shut_down` asks the process to end, as SIGTERM does."""

    broker: Broker
    storage: Storage
    shut_down: Callable[[], None] | None = None
    takes_origin: Callable[[str, str], bool] = lambda host, origin: False
    """Whether a page of that origin may open WebSockets here without a token."""
    partitioned: PartitionedTopics = field(init=False)
    workload: Workload = field(default_factory=Workload, init=False)
    name_lists: NameLists = field(default_factory=NameLists, init=False)
    overview: ForAMoment = field(default_factory=ForAMoment, init=False)
    unpacking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held while one message is decompressed to be shown: the memory of one at a time."""

    def __post_init__(self) -> None:
        broker = self.broker
        partitioned = PartitionedTopics(
            broker.metadata, broker.namespaces, broker.lookup, broker.topics, RemoteTopics(broker.peers)
        )
        object.__setattr__(self, "partitioned", partitioned)


def runtime_settings(settings: BrokerSettings) -> dict[str, str]:
    """Every setting that is in effect, by its key. Secrets are hidden."""
    rows = table_of(type(settings)).values()
    return {row.key: as_text(row.shown(getattr(settings, row.name))) for row in rows}


def as_text(value: object) -> str:
    """Booleans as in Java's property files."""
    return str(value).lower() if isinstance(value, bool) else str(value)
