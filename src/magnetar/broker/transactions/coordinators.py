"""The transaction coordinators of a broker: as many as the topic `pulsar/system/transaction_coordinator_assign` has partitions.

Clients look that topic up to find their coordinator. A coordinator's log is opened with its first transaction, or at start when there
is one; nothing is served before the logs that exist are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL, TaskScope
from magnetar.broker.errors import ServiceNotReadyError, TransactionCoordinatorNotFoundError
from magnetar.broker.namespaces.errors import NotMoreCoordinatorsError
from magnetar.broker.naming import SYSTEM_NAMESPACE, TRANSACTION_LOG_PREFIX, TopicName
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.coordinator import TransactionCoordinator
from magnetar.broker.transactions.coordinator_state import CoordinatorState
from magnetar.broker.transactions.grants import Grants, Naming
from magnetar.broker.transactions.log import RecordLog
from magnetar.broker.transactions.types import Participants, TransactionsDisabledError, TxnId
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata import paths

logger = logging.getLogger(__name__)

ASSIGN_TOPIC = TopicName.parse(f"{SYSTEM_NAMESPACE}/transaction_coordinator_assign")
COORDINATORS_MAX = 1024
"""More cannot be asked for."""

NOT_ENABLED = "Transactions are not enabled; set transactionCoordinatorEnabled=true"
LOG_CURSOR = "transaction.subscription"


class Names(Protocol):
    """The registry of tenants, namespaces and partition counts; implemented by the namespace registry."""

    async def ensure_partitioned(self, topic: TopicName, partitions: int) -> None:
        """The topic's tenant, namespace and partition count, unless they are there."""
        ...

    async def partitions(self, topic: TopicName) -> int: ...

    async def grow_partitioned(self, topic: TopicName, partitions: int) -> None:
        """Raises PreconditionFailedError unless there are fewer now."""
        ...


class TopicOwnership(Protocol):
    """The owner of a topic; implemented by the ownership of bundles."""

    async def require(self, topic: TopicName) -> object:
        """Take the topic's bundle unless it is ours. Raises ServiceNotReadyError when it is another broker's."""
        ...

    def serves_topic(self, topic: TopicName) -> bool:
        """True if the topic's bundle is ours, as far as is known without reading the store."""
        ...


class OtherCoordinators(Protocol):
    """The coordinators that other brokers serve; implemented over the brokers' admin API."""

    async def named(self, coordinator: int, topic: str) -> list[Naming]:
        """What may be done at a topic (given by its complete name) in the coordinator's open transactions. Raises ServiceNotReadyError."""
        ...


class Coordinators:
    """The coordinators of this broker by number. The settings name the count of the first start; `scale` raises it."""

    def __init__(
        self,
        *,
        settings: TransactionSettings,
        names: Names,
        owner: TopicOwnership,
        factory: ManagedLedgerFactory,
        ledgers: ManagedLedgerConfig,
        participants: Participants,
        others: OtherCoordinators,
        clock: Clock,
        scope: TaskScope,
    ) -> None:
        self.enabled = settings.transaction_coordinator_enabled
        self._settings = settings
        self._names = names
        self._owner = owner
        self._factory = factory
        self._ledgers = ledgers
        self._participants = participants
        self._others = others
        self._clock = clock
        self._scope = scope
        self._loaded: dict[int, TransactionCoordinator] = {}
        self._loading: dict[int, asyncio.Lock] = {}
        self.count = 0
        self._asking: dict[tuple[int, str], asyncio.Lock] = {}

    async def start(self) -> None:
        """Make the coordinators known, and go on with the transactions of those that have a log."""
        # Also where transactions are off: clients ask for this topic first, and then learn from its broker that they are.
        await self._names.ensure_partitioned(ASSIGN_TOPIC, self._settings.initial_num_transaction_coordinators)
        if not self.enabled:
            return
        self.count = await self._names.partitions(ASSIGN_TOPIC)
        for number in range(self.count):
            if await self._factory.exists(_log_name(number)):
                try:
                    await self.get(number)
                except TransactionCoordinatorNotFoundError:
                    continue  # another broker's
                except MagnetarError as error:
                    logger.error("transaction coordinator not loaded coordinator=%d error=%s", number, error)

    async def scale(self, count: int) -> None:
        """More coordinators; clients take them up when they connect anew. Raises NotMoreCoordinatorsError."""
        if count <= await self._names.partitions(ASSIGN_TOPIC):
            raise NotMoreCoordinatorsError(
                "Number of transaction coordinators should be more than the current number of transaction coordinator"
            )
        await self._names.grow_partitioned(ASSIGN_TOPIC, count)
        self.count = await self._names.partitions(ASSIGN_TOPIC)

    async def recounted(self) -> int:
        """The number of coordinators now: another broker may have added some."""
        if self.enabled:
            self.count = await self._names.partitions(ASSIGN_TOPIC)
        return self.count

    def get_loaded(self, number: int) -> TransactionCoordinator | None:
        """None while it has had no transaction. Raises what `check_served` raises."""
        self.check_served(number)
        return self._loaded.get(number)

    @property
    def loaded(self) -> Sequence[TransactionCoordinator]:
        """Those whose log is open, by number."""
        return [self._loaded[number] for number in sorted(self._loaded)]

    def check_served(self, number: int) -> None:
        """Raises TransactionsDisabledError, TransactionCoordinatorNotFoundError."""
        if not self.enabled:
            raise TransactionsDisabledError(NOT_ENABLED)
        if not 0 <= number < self.count:
            raise TransactionCoordinatorNotFoundError(f"Transaction coordinator not found! coordinator id : {number}")

    async def check_owned(self, number: int) -> None:
        """Serve this coordinator from here, with or without transactions. Raises what `check_served` raises."""
        if number >= self.count:
            await self.recounted()
        self.check_served(number)
        await self._require(number)

    async def look_around(self, served_elsewhere: Iterable[int]) -> None:
        """Coordinators have moved: these are other brokers' now. Those of ours that have a log go on with their transactions."""
        elsewhere = frozenset(served_elsewhere)
        for number in range(self.count):
            ours = number not in elsewhere and self._owner.serves_topic(_topic(number))
            if ours and number not in self._loaded and await self._factory.exists(_log_name(number)):
                await self.get(number)

    async def get(self, number: int) -> TransactionCoordinator:
        """Raises what `check_served` raises, and why its log cannot be read."""
        found = self._loaded.get(number)
        if found is not None:
            return found
        self.check_served(number)
        async with self._loading.setdefault(number, asyncio.Lock()):
            found = self._loaded.get(number)
            if found is None:
                found = await self._open(number)
                self._loaded[number] = found
        return found

    async def _open(self, number: int) -> TransactionCoordinator:
        await self._require(number)
        log = await RecordLog.open(self._factory, _log_name(number), LOG_CURSOR, self._ledgers)
        settings = self._settings
        state = CoordinatorState(
            number,
            settings.max_active_transactions_per_coordinator,
            settings.max_active_transactions_per_role,
            settings.max_transaction_timeout_s * 1000,
        )
        coordinator = TransactionCoordinator(state, log, self._participants, self._clock, self._scope)
        log.ledger.add_fence_listener(lambda error: self._fenced(number))
        await coordinator.recover()
        return coordinator

    def _fenced(self, number: int) -> None:
        """Another broker took the log over."""
        self._scope.spawn(self.unload(number), f"transaction coordinator {number} is served elsewhere", FATAL)

    async def _require(self, number: int) -> None:
        try:
            await self._owner.require(_topic(number))
        except ServiceNotReadyError:
            raise TransactionCoordinatorNotFoundError(
                f"Transaction coordinator not found! coordinator id : {number} is served by another broker"
            ) from None

    async def unload(self, number: int) -> None:
        """Close a coordinator here: another broker continues its transactions."""
        async with self._loading.setdefault(number, asyncio.Lock()):
            found = self._loaded.pop(number, None)
            if found is not None:
                await found.close()

    # ---- What topics ask

    def allows(self, txn: TxnId, topic: str, subscription: str, who: str | None, grants: Grants) -> bool | None:
        """True if the transaction is open, belongs to `who`, and has named this: the topic by TOPIC_ITSELF, or a subscription of it.

        `grants` are the topic's, for a coordinator that is not served here. None: `learn` first.
        """
        coordinator = self._loaded.get(txn.most)
        if coordinator is None:
            return grants.allows(txn, subscription, who)
        return coordinator.allows(txn, topic, subscription, who)

    async def learn(self, number: int, topic: str, grants: Grants) -> None:
        """Have the coordinator tell which of its transactions have named a topic. Raises ServiceNotReadyError while it has no broker."""
        asking = self._asking.setdefault((number, topic), asyncio.Lock())
        try:
            async with asking:
                if not grants.knows(number):
                    grants.told(number, await self._named(number, topic))
        finally:
            if not asking.locked():
                self._asking.pop((number, topic), None)

    async def _named(self, number: int, topic: str) -> list[Naming]:
        if not 0 <= number < COORDINATORS_MAX or not await self._factory.exists(_log_name(number)):
            return []  # it has had no transaction
        try:
            return (await self.get(number)).named(topic)
        except TransactionCoordinatorNotFoundError:
            return await self._others.named(number, topic)

    async def named(self, number: int, topic: str) -> list[Naming]:
        """The same for another broker's topic, of a coordinator that is served here. Raises TransactionCoordinatorNotFoundError."""
        if not await self._factory.exists(_log_name(number)):
            return []
        return (await self.get(number)).named(topic)


def _topic(number: int) -> TopicName:
    return ASSIGN_TOPIC.partition_name(number)


def _log_name(number: int) -> str:
    name = ASSIGN_TOPIC
    return paths.managed_ledger_name(name.tenant, name.namespace, name.domain, f"{TRANSACTION_LOG_PREFIX}{number}")
