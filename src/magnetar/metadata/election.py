"""One leader among several processes: sequential votes below a node, the lowest leads, the others watch the one before them.

As BookKeeper elects its auditor and Pulsar its load manager. Whoever is cut off for too long, or loses its session, leads no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from magnetar.base.errors import MetadataError, NodeNotFoundError
from magnetar.base.tasks import TaskScope
from magnetar.metadata.store import MetadataStore, SessionEvent, split_path

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S: Final = 1.0
"""Between attempts to vote while the metadata store cannot be reached; the end of the interruption cuts it short."""


class Election:
    """`async with Election(store, ".../auditorelection/V_", vote) as election:`; `on_change(leads)` tells of gain and loss.

    `vote` is the value of this process's node: what others may know about the leader.
    """

    def __init__(
        self, metadata: MetadataStore, vote_prefix: str, vote: bytes, on_change: Callable[[bool], None] | None = None
    ) -> None:
        self._metadata = metadata
        self._prefix = vote_prefix
        self._parent, self._name_prefix = split_path(vote_prefix)
        self._vote = vote
        self._on_change = on_change
        self._is_leader = False
        self._epoch = 0
        """Grows when the session is lost: what was found out before does not count any more."""
        self._wake = asyncio.Event()
        self._elected = asyncio.Event()
        self._scope = TaskScope(f"election {self._parent}")

    @property
    def is_leader(self) -> bool:
        return self._is_leader

    async def wait_elected(self) -> None:
        """Until this process leads."""
        await self._elected.wait()

    async def leader(self) -> bytes | None:
        """The vote of whoever leads now; None while there is nobody."""
        for name in await self._votes():
            node = await self._metadata.get(f"{self._parent}/{name}")
            if node is not None:
                return node.value
        return None

    async def __aenter__(self) -> Election:
        self._end_session = self._metadata.on_session(self._session)
        self._end_watch = self._metadata.watch(lambda _: self._wake.set(), self._parent)
        await self._scope.__aenter__()
        self._scope.supervise(self._take_part, "take part")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_session()
        self._end_watch()
        # Without the body's exception: a task group would wrap it, and callers could not catch it by its class.
        await self._scope.__aexit__(None, None, None)
        self._lead(False)
        try:
            await self._withdraw()
        except MetadataError:
            logger.info("the vote below %s stays until the session ends", self._parent)

    def _session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._epoch += 1
            self._lead(False)
        self._wake.set()

    async def _take_part(self) -> None:
        while True:
            self._wake.clear()
            epoch = self._epoch
            try:
                leads = await self._is_first()
            except MetadataError as error:
                logger.warning("no vote below %s: %s; trying again", self._parent, error)
                await self._pause()
                continue
            if epoch == self._epoch:
                self._lead(leads)
                await self._wake.wait()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _is_first(self) -> bool:
        """Vote unless there is a vote of this session already: one whose answer was lost counts, too."""
        own = await self._own()
        if own is None:
            path, _ = await self._metadata.put(self._prefix, self._vote, ephemeral=True, sequential=True)
            own = split_path(path)[1]
        votes = await self._votes()
        return bool(votes) and votes[0] == own

    async def _votes(self) -> list[str]:
        """Names, lowest number first."""
        names = await self._metadata.children(self._parent)
        return sorted((name for name in names if name.startswith(self._name_prefix)), key=lambda name: name[-10:])

    async def _own(self) -> str | None:
        for name in await self._votes():
            node = await self._metadata.get(f"{self._parent}/{name}")
            if node is not None and node.owner == self._metadata.session_id and node.value == self._vote:
                return name
        return None

    async def _withdraw(self) -> None:
        own = await self._own()
        if own is not None:
            try:
                await self._metadata.delete(f"{self._parent}/{own}")
            except NodeNotFoundError:
                return

    def _lead(self, leads: bool) -> None:
        if leads == self._is_leader:
            return
        self._is_leader = leads
        if leads:
            self._elected.set()
        else:
            self._elected.clear()
        if self._on_change is not None:
            self._on_change(leads)
