"""Clients that were refused of late, by topic: what they were told, since when, and how often. Asked when somebody wants to know why."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from magnetar.base.errors import MagnetarError, client_text

TOPICS_MAX: Final = 1000
"""Topics of which refusals are remembered; the one whose last refusal lies longest back is forgotten."""

PER_TOPIC_MAX: Final = 16
"""Refusals remembered of one topic; a client that tries again and again is one."""

NAME_CHARS_MAX: Final = 200
PROBLEM_CHARS_MAX: Final = 500

REMEMBERED_MS: Final = 10 * 60_000
"""A refusal that lies longer back explains nothing any more."""


@dataclass(slots=True)
class Refused:
    """`who`: producer, consumer, or client (of a look-up). `error`: the slug of the error, `problem` its text."""

    who: str
    name: str
    subscription: str
    address: str
    error: str
    problem: str
    first_ms: int
    last_ms: int
    times: int = 1


class RecentRefusals:
    """Of one broker. Only what is asked for once in a while comes here: look-ups, new producers and consumers."""

    def __init__(self) -> None:
        self._by_topic: OrderedDict[str, OrderedDict[tuple[str, str, str, str], Refused]] = OrderedDict()

    def remember(
        self, topic: str, who: str, name: str, subscription: str, address: str, error: MagnetarError, now_ms: int
    ) -> None:
        """`topic`: complete name."""
        name, subscription = name[:NAME_CHARS_MAX], subscription[:NAME_CHARS_MAX]
        kept = self._by_topic.setdefault(topic, OrderedDict())
        self._by_topic.move_to_end(topic)
        if len(self._by_topic) > TOPICS_MAX:
            self._by_topic.popitem(last=False)
        key = (who, name, subscription, error.slug)
        known = kept.get(key)
        if known is not None and now_ms - known.last_ms < REMEMBERED_MS:
            known.last_ms, known.times, known.address = now_ms, known.times + 1, address
        else:
            problem = client_text(error)[:PROBLEM_CHARS_MAX].rstrip(". ")
            kept[key] = Refused(who, name, subscription, address, error.slug, problem, now_ms, now_ms)
        kept.move_to_end(key)
        if len(kept) > PER_TOPIC_MAX:
            kept.popitem(last=False)

    def of(self, topic: str, now_ms: int) -> list[Refused]:
        """Those that are not too old, the last one first."""
        found = reversed(self._by_topic.get(topic, OrderedDict()).values())
        return [refused for refused in found if now_ms - refused.last_ms < REMEMBERED_MS]

    def count(self) -> int:
        """Topics of which refusals are remembered."""
        return len(self._by_topic)
