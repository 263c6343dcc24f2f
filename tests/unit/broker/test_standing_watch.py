"""The log of changes: every subscription has its turn, however many there are, and what has not changed is not told again."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.explain import watch
from magnetar.broker.explain.watch import LINES_PER_ROUND_MAX, LOOKS_PER_ROUND_MAX, StandingWatch
from magnetar.broker.reasons import Code, Reason, Standing, because
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic


class Stuck:
    """As much of a subscription as is looked at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cursor = SimpleNamespace(backlog_entries=1)
        self.messages_out = self.last_acked_ms = 0
        self.last_flow_ms = 1
        self.backlog_entries = 1


class Looked:
    """Counts what is asked, and logs what is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.asked = 0
        self.reason: Reason | None = because(Code.NO_CONSUMERS, backlog=1)
        self.subscriptions = [Stuck(f"s{number}") for number in range(count)]
        self.topic = cast(
            "PersistentTopic", SimpleNamespace(name="t", subscriptions=SimpleNamespace(all=self.subscriptions))
        )
        self.watch = StandingWatch(cast("Any", None))
        monkeypatch.setattr(watch, "standing_of", self.standing_of)

    def standing_of(self, topic: PersistentTopic, subscription: Subscription, clock: object) -> Standing:
        self.asked += 1
        return Standing(True, []) if self.reason is None else Standing(False, [self.reason])

    def round(self) -> None:
        self.watch.begin_round()
        self.watch.look(self.topic)


def test_a_change_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    looked = Looked(monkeypatch, 1)
    for _ in range(4):
        looked.round()
    assert [record.message.split(" topic")[0] for record in caplog.records] == ["subscription stands still"]
    looked.subscriptions[0].messages_out = 1  # something went out: it moves
    looked.round()
    assert caplog.records[-1].message == "subscription goes on topic=t subscription=s0 after=no-consumers"
    looked.round()
    assert len(caplog.records) == 3


def test_what_nobody_has_used_is_no_change(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    looked = Looked(monkeypatch, 1)
    looked.subscriptions[0].last_flow_ms = 0
    for _ in range(3):
        looked.round()
    assert not caplog.records


def test_many_have_their_turns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No round looks at more than its share or writes more than its lines, and in the end all were told."""
    caplog.set_level(logging.INFO)
    looked = Looked(monkeypatch, LOOKS_PER_ROUND_MAX + 10)
    for _ in range(200):
        before, lines = looked.asked, len(caplog.records)
        looked.round()
        assert looked.asked - before <= LOOKS_PER_ROUND_MAX
        assert len(caplog.records) - lines <= LINES_PER_ROUND_MAX
    assert len(caplog.records) == len(looked.subscriptions)
