"""What Key_Shared keeps in memory for consumers that cannot take it yet."""

from __future__ import annotations

import pytest

from magnetar.base import limits
from magnetar.broker.dispatch import kept as kept_entries
from magnetar.broker.dispatch.kept import KeptEntries
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import ENTRY_OVERHEAD_BYTES
from tests.unit.broker.dispatch_fakes import DispatchHarness, got

ONE_BYTES = 100 + ENTRY_OVERHEAD_BYTES


@pytest.fixture(autouse=True)
def nothing_else_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptEntries, "total_bytes", 0)


def add(kept: KeptEntries, *entry_ids: int) -> None:
    for entry_id in entry_ids:
        kept.add(Entry(1, entry_id, bytes(100)))


def test_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_entries, "KEPT_ENTRIES_OF_SUBSCRIPTION_BYTES_MAX", 3 * ONE_BYTES)
    kept = KeptEntries()
    add(kept, 4, 1, 2, 3, 3)
    assert list(kept.by_position) == [(1, 1), (1, 2), (1, 3)]
    kept.discard((1, 2))
    kept.discard((1, 2))
    assert KeptEntries.total_bytes == kept.size_bytes == 2 * ONE_BYTES
    kept.clear()
    assert KeptEntries.total_bytes == 0


def test_all_subscriptions_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_entries, "KEPT_ENTRIES_BYTES_MAX", 3 * ONE_BYTES)
    one, other = KeptEntries(), KeptEntries()
    add(one, 1, 2, 3)
    add(other, 1)
    assert not other.by_position
    one.discard((1, 1))
    add(other, 2)
    assert KeptEntries.total_bytes == 3 * ONE_BYTES
    assert limits.KEPT_ENTRIES_OF_SUBSCRIPTION_BYTES_MAX <= limits.KEPT_ENTRIES_BYTES_MAX


def test_what_waits_for_permits_is_kept_until_it_goes_out_or_the_consumers_leave() -> None:
    harness = DispatchHarness()
    full, other = harness.consumer(SubscriptionType.Key_Shared, 0), harness.consumer(SubscriptionType.Key_Shared, 1000)
    for number in range(100):
        harness.publish(1, f"key-{number}")
    harness.loop.run()
    waiting = 100 - len(got(other))
    kept = harness.subscription.dispatch.dispatcher.kept
    assert kept is not None
    assert len(kept) == waiting > 0
    harness.flow(full, waiting - 1)
    assert len(got(full)) == waiting - 1
    assert len(kept) == 1
    harness.leave(full)
    assert len(got(other)) == 100
    assert not kept
    assert KeptEntries.total_bytes == 0
