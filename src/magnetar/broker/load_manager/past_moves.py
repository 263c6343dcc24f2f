"""What leaders have moved not long ago, in one node of the metadata store: the next leader lets it cool down as they would have.

`/loadbalance/moves`: bundle to the time of its move in ms, JSON. Ours; Pulsar's leaders forget.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

from magnetar.base.clock import Clock
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 5_000
"""The latest; older ones may move again after a change of leaders. Keeps the node well below ZooKeeper's 1 MiB."""


class PastMoves:
    """Of the whole cluster; the leader writes."""

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    async def write(self, ages_s: Mapping[str, float]) -> None:
        """Replace what is remembered."""
        now_ms = self._clock.now_ms()
        latest = sorted(ages_s.items(), key=lambda item: (item[1], item[0]))[:REMEMBERED_MAX]
        value = {bundle: round(now_ms - 1000 * age_s) for bundle, age_s in latest}
        await self._metadata.put(paths.LOAD_MOVES_PATH, json.dumps(value, separators=(",", ":")).encode())

    async def read(self) -> dict[str, float]:
        """Seconds since each move; {} when nothing is remembered, or nothing that can be read."""
        node = await self._metadata.get(paths.LOAD_MOVES_PATH)
        if node is None:
            return {}
        try:
            now_ms = self._clock.now_ms()
            return {str(bundle): (now_ms - int(at_ms)) / 1000 for bundle, at_ms in json.loads(node.value).items()}
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("past moves not read, bundles may move again early error=%s", error)
            return {}
