"""One compaction: read the topic twice, write what is left into a ledger of its own. Changes nothing that anybody reads.

Phase one finds the newest message of each key, phase two writes those. Both read the compacted ledger there is and then the topic
up to the same last entry; the cursor `__compaction` keeps what they read from being trimmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.limits import COMPACTION_KEY_MEMORY_BYTES_MAX
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.broker.compaction import raw_message
from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.latest_keys import LatestKeys
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.reads import append_all, read_page

COMPACTED_TO = "pulsar/compactedTo"

SLICE_S = 0.002
"""After this long everything else on the event loop has its turn: batches of a thousand messages take some milliseconds each."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """A written, closed compacted ledger, and what was done for it."""

    ledger_id: int
    horizon: Position
    messages_seen: int
    messages_kept: int

    @property
    def messages_removed(self) -> int:
        return self.messages_seen - self.messages_kept


class Compactor:
    """Reads through the cursor `__compaction`, which nobody else reads through."""

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        cursor: ManagedCursor,
        previous: CompactedLedger | None,
        upto: Position,
        retain_null_key: bool,
        clock: Clock,
        hides: Callable[[Entry], bool] | None = None,
    ) -> None:
        """`hides`: which entries of the topic nobody may see (aborted transactions)."""
        self._topic = topic
        self._partition = partition
        self._cursor = cursor
        self._previous = previous
        self._upto = upto
        self._clock = clock
        self._hides = hides
        self._slice_ends_s = 0.0
        self._keys = LatestKeys(retain_null_key=retain_null_key, memory_bytes_max=COMPACTION_KEY_MEMORY_BYTES_MAX)

    def custom_metadata(self) -> dict[str, bytes]:
        """Custom metadata of the compacted ledger, as Pulsar writes it."""
        return {
            "application": b"pulsar",
            "component": b"compacted-ledger",
            "pulsar/compactedTopic": self._topic.encode(),
            COMPACTED_TO: raw_message.encode_id(self._upto, self._partition),
        }

    async def find_keys(self) -> None:
        """Phase one. Raises TooManyKeysError, or why the topic cannot be read."""
        async for page in self._pages():
            for entry in page:
                self._keys.see(entry.position, entry.data)
                await self._turn()

    async def create(self, client: BookKeeperClient, config: ManagedLedgerConfig) -> LedgerWriter:
        """The ledger that phase two fills."""
        return await client.create_ledger(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            custom_metadata=self.custom_metadata(),
        )

    async def write(self, writer: LedgerWriter) -> CompactionResult:
        """Phase two. The ledger is complete and closed on return."""
        async for page in self._pages():
            payloads: list[bytes] = []
            for entry in page:
                payload = self._left_of(entry)
                if payload is not None:
                    payloads.append(payload)
                await self._turn()
            if payloads:
                await append_all(writer, payloads)
        await writer.close()
        return CompactionResult(writer.ledger_id, self._upto, self._keys.messages_seen, self._keys.messages_kept)

    def _left_of(self, entry: Entry) -> bytes | None:
        position = entry.position
        kept = self._keys.rewrite(position, entry.data)
        if kept is None:
            return None
        return raw_message.encode(raw_message.encode_id(position, self._partition, kept.ack_set), kept.data)

    async def _turn(self) -> None:
        if self._clock.monotonic_s() >= self._slice_ends_s:
            await asyncio.sleep(0)
            self._slice_ends_s = self._clock.monotonic_s() + SLICE_S

    async def _pages(self) -> AsyncIterator[list[Entry]]:
        """Everything up to the last entry, in order."""
        if self._previous is not None:
            async for page in self._previous.pages():
                yield page
        self._cursor.rewind()
        while page := await read_page(self._cursor):
            inside = [entry for entry in page if entry.position <= self._upto]
            hides = self._hides
            yield inside if hides is None else [entry for entry in inside if not hides(entry)]
            if len(inside) < len(page):
                return


async def discard(client: BookKeeperClient, ledger_id: int) -> MagnetarError | None:
    """Delete a compacted ledger that nothing refers to; answers why that failed."""
    try:
        await client.delete_ledger(ledger_id)
    except MagnetarError as error:
        return error
    return None
