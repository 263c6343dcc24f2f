"""Giving every entry its Qw copies back after a bookie is lost (BookKeeper replication/*).

`auditor` finds ledgers that miss copies and marks them (`underreplication`); `worker` takes marked ledgers one by one, has
`ledger_checker` find out what is missing and `replicator` copy it. `service.AutoRecovery` runs both, in a process of its own or in
a bookie's. Pure: `fragments`, `lost_bookies`, `backoff`.
"""
