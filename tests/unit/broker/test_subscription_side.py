"""What a replicated subscription tells, by what its cursor and its consumers' reading do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from magnetar.broker.replication.subscription_side import SubscriptionSide
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.markers import Snapshot, SubscriptionUpdate, encode


class Rig:
    """A cursor at 0:0 that moves as it is told."""

    def __init__(self) -> None:
        self.told: list[SubscriptionUpdate] = []
        self.cursor: Any = SimpleNamespace(mark_delete_position=Position(0, 0), moved=None)
        dispatch = SimpleNamespace(on_markers=self._on_markers)
        subscription: Any = SimpleNamespace(name="sub", cursor=self.cursor, dispatch=dispatch)
        acks: Any = SimpleNamespace(again=lambda: None, followed=lambda: None)
        self.side = SubscriptionSide(subscription, 5, self.told.append, acks)

    def _on_markers(self, read: Callable[[list[Entry]], None]) -> None:
        self.read = read

    def move(self, entry_id: int) -> None:
        self.cursor.mark_delete_position = Position(0, entry_id)
        self.cursor.moved()

    def read_marker(self, snapshot: Snapshot) -> None:
        self.read([Entry(0, snapshot.local_message_id[1] + 1, encode(snapshot, 0, "a"))])


def snapshot(entry_id: int) -> Snapshot:
    return Snapshot(f"id-{entry_id}", (0, entry_id), {"b": (7, entry_id)})


def update(entry_id: int) -> SubscriptionUpdate:
    return SubscriptionUpdate("sub", {"b": (7, entry_id)})


def test_a_snapshot_that_was_read_is_told_when_it_is_passed() -> None:
    rig = Rig()
    rig.read_marker(snapshot(10))
    rig.move(9)
    assert rig.told == []
    rig.move(10)
    rig.move(11)
    assert rig.told == [update(10)]


def test_the_newest_one_is_told_whether_or_not_its_marker_was_read() -> None:
    """Acknowledged with everything before it, the marker is read by nobody."""
    for read in (False, True):
        rig = Rig()
        rig.side.snapshot_stored(snapshot(10))
        if read:
            rig.read_marker(snapshot(10))
        rig.move(20)
        rig.move(21)
        assert rig.told == [update(10)], read


def test_one_read_late_is_told_at_once() -> None:
    rig = Rig()
    rig.move(20)
    rig.read_marker(snapshot(10))
    rig.side.snapshot_stored(snapshot(15))
    assert rig.told == [update(10), update(15)]


def test_what_another_cluster_has_told_is_not_told_again_unless_it_lacked_something() -> None:
    for quiet in (True, False):
        rig = Rig()
        rig.side.snapshot_stored(snapshot(10))
        rig.read_marker(snapshot(10))
        rig.side.follow(lambda rig=rig: rig.move(12), quiet)
        rig.move(13)
        assert rig.told == ([] if quiet else [update(10)]), quiet


def test_after_a_seek_back_a_snapshot_is_told_when_it_is_passed() -> None:
    rig = Rig()
    rig.move(8)
    rig.side.snapshot_stored(snapshot(10))
    rig.move(2)
    rig.move(10)
    assert rig.told == [update(10)]
