"""magnetar: Pulsar's messaging model and Spark's pipelines, at laptop weight, in Python.

Packages, top to bottom (imports point down only; `lint-imports` checks it):

    cli | testing      commands; pytest fixtures
    standalone         one process: metadata + bookie + broker + admin
    admin | pipeline   Pulsar's admin REST; Spark pipelines
    broker             topics, subscriptions, dispatch, connections
    managed_ledger     a topic as a chain of ledgers, cursors as positions in it
    bookkeeper         bookie (journal, write cache, entry logs, index) and ledger client
    metadata | wire    the metadata store; the protocols' bytes
    hashing | base     hash functions, rings and vnodes; errors, clock, tasks, limits, config
"""

__version__ = "0.1.0"
