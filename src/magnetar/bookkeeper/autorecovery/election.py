"""Which of the auditors audits: the one with the lowest vote (BookKeeper replication/AuditorElector)."""

from __future__ import annotations

from typing import Final

from google.protobuf import text_format

from magnetar.base.errors import NodeNotFoundError
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.DataFormats_pb2 import AuditorVoteFormat

VOTES_PATH: Final = paths.AUDITOR_VOTE_PREFIX.rpartition("/")[0]


class AuditorVote:
    """One candidate. Its vote is an ephemeral sequential node: who was there first is in front, and leaves with its session."""

    def __init__(self, store: MetadataStore, bookie_id: str) -> None:
        self._store = store
        self._data = text_format.MessageToString(AuditorVoteFormat(bookieId=bookie_id)).encode()
        self._path = ""

    async def leads(self) -> bool:
        """Vote, if there is no vote of ours (any more), and tell whether it is the first one."""
        names = await self._votes()
        if self._path.rpartition("/")[2] not in names:
            self._path, _ = await self._store.put(
                paths.AUDITOR_VOTE_PREFIX, self._data, ephemeral=True, sequential=True
            )
            names = await self._votes()
        return bool(names) and self._path.endswith("/" + names[0])

    async def leader(self) -> str | None:
        """The bookie id in the first vote; None without one."""
        for name in await self._votes():
            node = await self._store.get(f"{VOTES_PATH}/{name}")
            if node is not None:
                return text_format.Parse(node.value, AuditorVoteFormat()).bookieId
        return None

    async def withdraw(self) -> None:
        """Let the next one lead."""
        path, self._path = self._path, ""
        if path:
            try:
                await self._store.delete(path)
            except NodeNotFoundError:
                return

    async def _votes(self) -> list[str]:
        """Names in the order in which they were given: the ten digits at their ends rise."""
        return sorted(await self._store.children(VOTES_PATH), key=lambda name: name[-10:])
