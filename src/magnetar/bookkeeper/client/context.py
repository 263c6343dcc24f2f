"""What all ledgers of one client share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from magnetar.base.clock import Clock
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.config import DEFAULT_CONFIG, ClientConfig
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.statistics import ClientStatistics


@dataclass(frozen=True, slots=True)
class ClientContext:
    """`scope` runs ensemble changes; when it ends, ledgers whose change is under way stop confirming."""

    manager: LedgerManager
    bookies: BookieDirectory
    clock: Clock
    rng: random.Random
    scope: TaskScope
    config: ClientConfig = DEFAULT_CONFIG
    statistics: ClientStatistics = field(default_factory=ClientStatistics)
