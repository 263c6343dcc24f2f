"""Buckets of delayed messages as BookKeeper ledgers: one ledger a bucket, one entry a chunk, closed once written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from magnetar.base.errors import LedgerError, MagnetarError
from magnetar.base.limits import BYTES_PER_READ_MAX
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.managed_ledger.config import ManagedLedgerConfig

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
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = len(chunks)

        def added(error: LedgerError | None) -> None:
            nonlocal left
            left -= 1
            if stored.done():
                return
            if error is not None:
                stored.set_exception(error)
            elif left == 0:
                stored.set_result(None)

        for chunk in chunks:
            writer.append(chunk, added)
        try:
            await stored
            await writer.close()
        except MagnetarError:
            await self._client.delete_ledger(writer.ledger_id)
            raise
        return writer.ledger_id

    async def read(self, bucket: int, chunk: int) -> bytes:
        """LedgerError."""
        reader = await self._client.open_ledger(bucket, recover=False)
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(error: MagnetarError | None, payloads: list[bytes]) -> None:
            if found.done():
                return
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(payloads[0])

        try:
            reader.read(chunk, chunk, BYTES_PER_READ_MAX, done)
            return await found
        finally:
            await reader.close()

    async def delete(self, bucket: int) -> None:
        await self._client.delete_ledger(bucket)
