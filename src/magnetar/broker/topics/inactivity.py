"""When a topic counts as abandoned (pure): nobody connected, nothing kept for anybody, for long enough."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.broker.namespaces.policies import DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP, InactivePolicy


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a look at a topic found. `retention_s`: -1 for ever."""

    connected: bool
    subscriptions: int
    backlog: bool
    retention_s: int


class Inactivity:
    """Since when nobody has needed the topic. Looked at now and then; a visit between two looks goes unnoticed, as in Pulsar."""

    __slots__ = ("_last_active_s",)

    def __init__(self, now_s: float) -> None:
        self._last_active_s = now_s

    def abandoned(self, policy: InactivePolicy, state: TopicState, now_s: float) -> bool:
        """Should the topic be deleted now?"""
        if needed(policy.mode, state):
            self._last_active_s = now_s
            return False
        idle_s = now_s - self._last_active_s
        if not policy.delete or idle_s < policy.max_inactive_s:
            return False
        return 0 <= state.retention_s <= idle_s


def needed(mode: str, state: TopicState) -> bool:
    """Does somebody use the topic, or will come back for it?"""
    if state.connected:
        return True
    return state.backlog if mode == DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP else state.subscriptions > 0
