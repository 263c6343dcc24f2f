"""Answers to GET_TOPICS_OF_NAMESPACE: encoded once for all who ask while the list stays the same."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.base.checksum import crc32c_extend
from magnetar.broker.namespaces.topic_lists import in_turns
from magnetar.wire.pulsar import commands

SYSTEM_TOPIC_PREFIX = "__"
"""Topics that belong to the server (`__change_events`, ...): hidden from lists."""

ANSWERS_KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Over all namespaces: those that were asked for longest ago go first. A longer answer is never kept."""


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """`topics` as `commands.topics_of_namespace` takes them. `digest` is what clients show to ask whether something has changed."""

    digest: str
    topics: bytes


class ListAnswers:
    """One per broker. One list is encoded at a time, in turns with everything else."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Sequence[str], list[str], ListAnswer]] = OrderedDict()
        self._kept_bytes = 0
        self._encoding = asyncio.Lock()

    async def of(self, key: str, stored: Sequence[str], others: list[str]) -> ListAnswer:
        """The answer that lists `stored` (the same object while it is the same list), and then `others`."""
        answer = self._known(key, stored, others)
        if answer is None:
            async with self._encoding:
                answer = self._known(key, stored, others)
                if answer is None:
                    answer = await _encoded([*stored, *others])
                    self._keep(key, stored, others, answer)
        return answer

    def _known(self, key: str, stored: Sequence[str], others: list[str]) -> ListAnswer | None:
        kept = self._kept.get(key)
        if kept is None or kept[0] is not stored or kept[1] != others:
            return None
        self._kept.move_to_end(key)
        return kept[2]

    def _keep(self, key: str, stored: Sequence[str], others: list[str], answer: ListAnswer) -> None:
        before = self._kept.pop(key, None)
        self._kept_bytes -= len(before[2].topics) if before is not None else 0
        if len(answer.topics) > ANSWERS_KEPT_BYTES_MAX:
            return
        self._kept[key] = (stored, others, answer)
        self._kept_bytes += len(answer.topics)
        while self._kept_bytes > ANSWERS_KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1][2].topics)


async def _encoded(topics: list[str]) -> ListAnswer:
    visible = await in_turns(topics, _visible)
    encoded = await in_turns(visible, lambda some: [commands.topic_list(some)])
    joined = await in_turns(sorted(visible), lambda some: [",".join(some).encode()])
    return ListAnswer(topics_hash(joined), b"".join(encoded))


def _visible(topics: Sequence[str]) -> list[str]:
    return [topic for topic in topics if not topic.rsplit("/", 1)[1].startswith(SYSTEM_TOPIC_PREFIX)]


def topics_hash(joined: Sequence[bytes]) -> str:
    """CRC32C of the names joined by commas, as Guava prints it: hex, lowest byte first. `joined`: the names, sorted, or parts of that."""
    digest = 0
    for number, part in enumerate(joined):
        digest = crc32c_extend(digest, b"," + part if number else part)
    return digest.to_bytes(4, "little").hex() if joined else ""
