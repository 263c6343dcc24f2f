"""Names of the protocol that subscriptions use, with the protocol's numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from magnetar.base.errors import MagnetarError

AckId = tuple[int, int, Sequence[int] | None, int]
"""Ledger id, entry id, ack set (None = the whole entry), batch size (0 = not told)."""

AckDone = Callable[[MagnetarError | None], None]
"""Runs once an acknowledgement is durable, or with why it was refused."""


class SubscriptionType(IntEnum):
    """How consumers share a subscription (wire: CommandSubscribe.SubType)."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    Key_Shared = 3

    @property
    def sharing(self) -> bool:
        """Do several consumers get entries at the same time?"""
        return self in (SubscriptionType.Shared, SubscriptionType.Key_Shared)


class KeySharedMode(IntEnum):
    """Who decides about hash ranges: the broker or the consumers (wire: KeySharedMode)."""

    AUTO_SPLIT = 0
    STICKY = 1


class AckType(IntEnum):
    """Wire: CommandAck.AckType."""

    INDIVIDUAL = 0
    CUMULATIVE = 1
