"""Buckets of delayed messages as BookKeeper ledgers: one ledger a bucket, one entry a chunk, closed once written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import BYTES_PER_READ_MAX
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.reads import append_all, read_payloads

CUSTOM_METADATA: Final[Mapping[str, bytes]] = {"application": b"pulsar", "component": b"delayed-index"}
"""Tells these ledgers from a topic's and a cursor's in BookKeeper's tools."""


class LedgerBucketStore:
    """A `delayed_buckets.BucketStore`."""

    __slots__ = ("_client",)

    def __init__(self, client: BookKeeperClient) -> None:
        self._client = client

    async def write(self, chunks: list[bytes], config: ManagedLedgerConfig) -> int:
        """The ledger's id. LedgerError; what was written is deleted then."""
        writer = await self._client.create_ledger(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            custom_metadata=CUSTOM_METADATA,
        )
        try:
            await append_all(writer, chunks)
            await writer.close()
        except MagnetarError:
            await self._client.delete_ledger(writer.ledger_id)
            raise
        return writer.ledger_id

    async def read(self, bucket: int, chunk: int) -> bytes:
        """LedgerError."""
        reader = await self._client.open_ledger(bucket, recover=False)
        try:
            return (await read_payloads(reader, chunk, chunk, BYTES_PER_READ_MAX))[0]
        finally:
            await reader.close()

    async def delete(self, bucket: int) -> None:
        await self._client.delete_ledger(bucket)
