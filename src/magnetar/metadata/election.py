"""One leader among several processes. Whoever is cut off for too long, or loses its session, leads no more.

`VoteElection` is what BookKeeper elects its auditor by, `NodeElection` what Pulsar elects the broker by that places bundles.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from magnetar.base.errors import BadVersionError, MetadataError, NodeNotFoundError
from magnetar.base.tasks import TaskScope
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, SessionEvent, split_path

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S: Final = 1.0
"""Between attempts to stand while the metadata store cannot be reached; the end of the interruption cuts it short."""


class Election(ABC):
    """`async with` a subclass stands for leader; `on_change(leads)` tells of gain and loss."""

    def __init__(self, metadata: MetadataStore, watched: str, on_change: Callable[[bool], None] | None = None) -> None:
        """`watched`: the node whose changes, or whose children's, decide who leads."""
        self._metadata = metadata
        self._watched = watched
        self.on_change = on_change
        self.is_leader = False
        self._epoch = 0
        """Grows when the session is lost: what was found out before does not count any more."""
        self._wake = asyncio.Event()
        self._elected = asyncio.Event()
        self._scope = TaskScope(f"election {watched}")

    async def wait_elected(self) -> None:
        """Until this process leads."""
        await self._elected.wait()

    async def __aenter__(self) -> Self:
        self._end_session = self._metadata.on_session(self._session)
        self._end_watch = self._metadata.watch(lambda _: self._wake.set(), self._watched)
        await self._entered()
        await self._scope.__aenter__()
        self._scope.supervise(self._take_part, "take part")
        return self

    async def _entered(self) -> None:
        """Called before entering returns; subclasses may stand at once."""
        return

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
            logger.info("the node of the election %s stays until the session ends", self._watched)

    def _session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._epoch += 1
            self._lead(False)
        self._wake.set()

    async def _take_part(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._stand_once()
            except MetadataError as error:
                logger.warning("not standing in the election %s: %s; trying again", self._watched, error)
                await self._pause()
                continue
            await self._wake.wait()

    async def _stand_once(self) -> None:
        epoch = self._epoch
        leads = await self._stand()
        if epoch == self._epoch:
            self._lead(leads)
        else:
            self._wake.set()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            return

    def _lead(self, leads: bool) -> None:
        if leads == self.is_leader:
            return
        self.is_leader = leads
        if leads:
            self._elected.set()
        else:
            self._elected.clear()
        if self.on_change is not None:
            self.on_change(leads)

    @abstractmethod
    async def _stand(self) -> bool:
        """Stand unless this session stands already, and say whether it leads. A node whose answer was lost counts, too."""

    @abstractmethod
    async def _withdraw(self) -> None:
        """Take back what `_stand` has written."""


class VoteElection(Election):
    """Sequential votes below a node, the lowest leads: `VoteElection(store, ".../auditorelection/V_", vote)`.

    `vote` is the value of this process's node: what others may know about the leader.
    """

    def __init__(
        self, metadata: MetadataStore, vote_prefix: str, vote: bytes, on_change: Callable[[bool], None] | None = None
    ) -> None:
        self._prefix = vote_prefix
        self._parent, self._name_prefix = split_path(vote_prefix)
        self._vote = vote
        super().__init__(metadata, self._parent, on_change)

    async def leader(self) -> bytes | None:
        """The vote of whoever leads now; None while there is nobody."""
        for name in await self._votes():
            node = await self._metadata.get(f"{self._parent}/{name}")
            if node is not None:
                return node.value
        return None

    async def _stand(self) -> bool:
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


class NodeElection(Election):
    """Whoever has the one ephemeral node leads; `record` is its value."""

    def __init__(
        self, metadata: MetadataStore, path: str, record: bytes, on_change: Callable[[bool], None] | None = None
    ) -> None:
        super().__init__(metadata, path, on_change)
        self._record = record
        self._resigned = False

    async def resign(self) -> None:
        """Lead no more, now or later."""
        self._resigned = True
        if self.is_leader:
            self._lead(False)
            await self._withdraw()

    async def _stand(self) -> bool:
        if self._resigned:
            return False
        node = await self._metadata.get(self._watched)
        if node is not None:
            return node.owner == self._metadata.session_id and not self._resigned
        try:
            await self._metadata.put(self._watched, self._record, MUST_NOT_EXIST, ephemeral=True)
        except BadVersionError:
            self._wake.set()  # somebody was faster, or our own answer was lost: look again
            return False
        return not self._resigned

    async def _withdraw(self) -> None:
        node = await self._metadata.get(self._watched)
        if node is not None and node.owner == self._metadata.session_id:
            try:
                await self._metadata.delete(self._watched, node.version)
            except (BadVersionError, NodeNotFoundError):
                return
