"""The znode of one managed ledger: its list of ledgers, written only by compare-and-set. Losing one means another broker owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from google.protobuf.message import DecodeError

from magnetar.base.errors import BadVersionError
from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.stored_value import StoredValueError, plain_value
from magnetar.metadata.lost_answers import delete_or_look, put_or_look
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedLedgerInfo


class LedgerListStore:
    """`index`, `terminated_at` and `properties` are what the znode says; they change only after the znode has changed.

    `lock` is held over every decision that ends in a save, so that no two of them work on the same list.
    """

    def __init__(self, metadata: MetadataStore, path: str) -> None:
        self.path = path
        self.lock = asyncio.Lock()
        self.index = LedgerIndex()
        self.terminated_at: Position | None = None
        self.properties: dict[str, str] = {}
        self._metadata = metadata
        self._version = MUST_NOT_EXIST
        self._unknown = b""

    async def load(self) -> bool:
        """Read the znode; False when it does not exist."""
        node = await self._metadata.get(self.path)
        if node is None:
            return False
        try:
            info = ManagedLedgerInfo.FromString(plain_value(node.value, self.path))
        except DecodeError as error:
            raise StoredValueError(f"{self.path} is not a ManagedLedgerInfo: {error}") from error
        self._version = node.version
        for item in sorted(info.ledgerInfo, key=lambda held: held.ledgerId):
            self.index.add(_summary_of(item))
        if info.HasField("terminatedPosition"):
            self.terminated_at = Position(info.terminatedPosition.ledgerId, info.terminatedPosition.entryId)
        self.properties = {item.key: item.value for item in info.properties}
        for name in ("ledgerInfo", "terminatedPosition", "properties"):
            info.ClearField(name)
        self._unknown = info.SerializeToString()
        return True

    async def save(
        self,
        *,
        add: LedgerSummary | None = None,
        remove: Collection[int] = (),
        closed: LedgerSummary | None = None,
        terminated_at: Position | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Write the list with these changes, then take them over. `closed` replaces the summary with its ledger id.

        Raises ManagedLedgerFencedError when somebody else wrote in between, MetadataError when the store failed; nothing has
        changed then.
        """
        terminated_at = terminated_at or self.terminated_at
        properties = self.properties if properties is None else dict(properties)
        summaries = [
            closed if closed is not None and closed.ledger_id == held.ledger_id else held
            for held in self.index
            if held.ledger_id not in remove
        ]
        if add is not None:
            summaries.append(add)
        await self._write(_encode(summaries, terminated_at, properties, self._unknown))
        for ledger_id in remove:
            self.index.remove(ledger_id)
        if closed is not None and (held := self.index.get(closed.ledger_id)) is not None:
            held.entries, held.size_bytes, held.timestamp_ms = closed.entries, closed.size_bytes, closed.timestamp_ms
            self.index.forget_ranks()
        if add is not None:
            self.index.add(add)
        self.terminated_at, self.properties = terminated_at, dict(properties)

    async def verify_owner(self) -> None:
        """Raise ManagedLedgerFencedError unless the znode is still the one this store wrote."""
        node = await self._metadata.get(self.path)
        if node is None or node.version != self._version:
            found = "is gone" if node is None else f"is at version {node.version}, not {self._version}"
            raise ManagedLedgerFencedError(f"{self.path} {found}: another broker has taken the managed ledger over")

    async def delete(self) -> None:
        """Remove the znode (its cursors must be gone)."""
        await delete_or_look(self._metadata, self.path, self._version)

    async def _write(self, value: bytes) -> None:
        try:
            self._version = await self._put(value)
        except BadVersionError as error:
            raise ManagedLedgerFencedError(f"{self.path} was written by another broker: {error}") from error

    async def _put(self, value: bytes) -> int:
        try:
            return await put_or_look(self._metadata, self.path, value, self._version)
        except BadVersionError:
            node = await self._metadata.get(self.path) if self._version == MUST_NOT_EXIST else None
            if node is None or node.value:
                raise
            # Registered meanwhile, by an admin call at whichever broker: a topic that nobody has opened.
            return await put_or_look(self._metadata, self.path, value, node.version)


def _summary_of(item: ManagedLedgerInfo.LedgerInfo) -> LedgerSummary:
    rest = ManagedLedgerInfo.LedgerInfo()
    rest.CopyFrom(item)
    for name in ("ledgerId", "entries", "size", "timestamp"):
        rest.ClearField(name)
    return LedgerSummary(item.ledgerId, item.entries, item.size, item.timestamp, rest.SerializePartialToString())


def _encode(
    summaries: list[LedgerSummary], terminated_at: Position | None, properties: Mapping[str, str], unknown: bytes
) -> bytes:
    info = ManagedLedgerInfo.FromString(unknown)
    for summary in summaries:
        item = info.ledgerInfo.add()
        item.ledgerId = summary.ledger_id
        if summary.extra:
            item.MergeFromString(summary.extra)
        item.timestamp = summary.timestamp_ms
        if summary.timestamp_ms:
            item.entries, item.size = summary.entries, summary.size_bytes
    if terminated_at is not None:
        info.terminatedPosition.ledgerId, info.terminatedPosition.entryId = terminated_at
    for name in sorted(properties):
        info.properties.add(key=name, value=properties[name])
    return info.SerializeToString()
