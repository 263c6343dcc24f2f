"""Where and how the topics of a broker keep what they know of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.factory import ManagedLedgerFactory


@dataclass(frozen=True, slots=True)
class TransactionStorage:
    """The same for all topics. `ledgers`: settings of the logs of pending acknowledgements."""

    factory: ManagedLedgerFactory
    ledgers: ManagedLedgerConfig
    snapshot_transactions: int = 1000
    snapshot_interval_ms: int = 5000
