"""What a topic needs: of the connection of a producer (implemented in `connection/`), and of whatever has a backlog."""

from __future__ import annotations

from typing import Protocol

from magnetar.base.errors import MagnetarError
from magnetar.broker.reasons import Rule
from magnetar.broker.topics.publish import PublishOp
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.position import Position


class BacklogHolder(Protocol):
    """A subscription, or a replicator: entries wait for it, and need not."""

    @property
    def cursor(self) -> ManagedCursor: ...

    async def skip_messages(self, count: int) -> int:
        """The first `count` entries; returns how many there were."""
        ...

    async def clear_backlog(self) -> None: ...

    async def expire(self, upto: Position, rule: Rule = Rule.REQUEST) -> int:
        """Everything up to `upto`, inclusive; returns how many entries that were."""
        ...


class ProducerChannel(Protocol):
    """One per connection; the producer id says whom it concerns."""

    address: str
    client_version: str

    def receipt(self, producer_id: int, op: PublishOp) -> None:
        """The entries are stored (or were duplicates, or dropped): answer SEND_RECEIPT for each."""
        ...

    def refuse(self, producer_id: int, op: PublishOp, error: MagnetarError) -> None:
        """The entries could not be stored: answer SEND_ERROR for each. The client reconnects and sends it again."""
        ...

    def ignore_producer(self, producer_id: int) -> None:
        """Take nothing more from it; receipts still leave. `close_producer` follows."""
        ...

    def close_producer(self, producer_id: int) -> None:
        """Tell the client that the server closed its producer; it comes back by itself."""
        ...

    def hold_publishing(self, change: int) -> None:
        """One topic more (1) or less (-1) whose publish rate is reached: nothing is read while there is any."""
        ...

    async def probe(self) -> bool:
        """True if the client at the other end is alive."""
        ...
