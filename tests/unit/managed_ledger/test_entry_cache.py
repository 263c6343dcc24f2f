"""The cache of entries: what is deleted or closed leaves nothing behind."""

from __future__ import annotations

from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import EntryCache


def test_ledgers_that_come_and_go_leave_nothing_while_the_cache_is_not_full() -> None:
    cache = EntryCache(1 << 30)
    for ledger_id in range(1000):
        ledger = cache.attach(ledger_id)
        ledger.insert(Entry(ledger_id, 0, b"x"))
        ledger.detach()
        ledger.insert(Entry(ledger_id, 1, b"late"))
    assert not cache.queue
    assert cache.size_bytes == 0
    cache.validate()


def test_a_full_cache_gives_up_the_entries_of_the_ledger_that_was_written_first() -> None:
    cache = EntryCache(3_000)
    for ledger_id in range(3):
        cache.attach(ledger_id).insert(Entry(ledger_id, 0, bytes(1_200)))
    assert [ledger.ledger_id for ledger in cache.queue] == [1, 2]
    assert cache.evictions == 1
    cache.validate()
