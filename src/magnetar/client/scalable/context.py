"""What all producers and consumers of a client share."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from magnetar.base.clock import Clock
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.client.client import RemoteClient


@dataclass(frozen=True)
class ClientContext:
    """`remote`: connections and lookups. `rng`: pauses between attempts, the segment that comes first, and names that nobody gave."""

    remote: RemoteClient
    clock: Clock
    scope: TaskScope
    rng: random.Random = field(default_factory=random.SystemRandom)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def new_id(self) -> int:
        """Of a producer, a consumer or a session: unique in the client, on whichever connection it is used."""
        return next(self._ids)

    def new_name(self, kind: str) -> str:
        """Of a consumer: not used by any other client."""
        return f"{kind}-{self.rng.getrandbits(40):010x}"

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.scope.spawn(work, name, REPORTED)
