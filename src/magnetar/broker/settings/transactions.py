"""The settings of transactions, part of the server's configuration."""

from __future__ import annotations

from magnetar.base.settings import Settings, setting


class TransactionSettings(Settings):
    """Pulsar's keys; docs/explanation/transactions.md says what they mean."""

    transaction_coordinator_enabled: bool = setting(
        True,
        "transactionCoordinatorEnabled",
        "Serve transactions. A topic that sees none pays nothing.",
        differs="A topic that sees no transaction pays nothing, so there is nothing to switch off.",
    )
    initial_num_transaction_coordinators: int = setting(
        16,
        "initialNumTransactionCoordinators",
        "Transaction coordinators of a new cluster; `magnetar transactions scale-transactionCoordinators` adds more.",
        minimum=1,
        maximum=1024,
    )
    max_active_transactions_per_coordinator: int = setting(
        10_000,
        "maxActiveTransactionsPerCoordinator",
        "Open transactions of one coordinator; more are refused. 0: no limit, as in Pulsar.",
        minimum=0,
        differs="Without a bound one client could fill the coordinator's memory.",
    )
    max_active_transactions_per_role: int = setting(
        1000,
        "maxActiveTransactionsPerRole",
        "Open transactions of one role at one coordinator; more are refused. 0: no limit. Without authentication there are no roles.",
        minimum=0,
    )
    max_transaction_timeout_s: int = setting(
        86_400,
        "maxTransactionTimeoutInSeconds",
        "Longest timeout of a transaction; a longer one is refused. An open transaction holds up what it publishes to.",
        minimum=1,
        maximum=10**9,
    )
    transaction_buffer_snapshot_max_transaction_count: int = setting(
        1000,
        "transactionBufferSnapshotMaxTransactionCount",
        "Transactions ended in a topic after which it stores what it knows of them, to be loaded sooner.",
        minimum=1,
    )
    transaction_buffer_snapshot_min_time_ms: int = setting(
        5000,
        "transactionBufferSnapshotMinTimeInMillis",
        "With the first transaction that ends so long after the last time, it does so, too.",
        minimum=1,
    )
