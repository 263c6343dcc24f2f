"""A lock that lasts as long as its holder's session: an ephemeral node."""

from __future__ import annotations

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, SessionEvent


class EphemeralLock:
    """`if await lock.try_acquire(): ...; await lock.release()`. `held` turns False by itself when the session is lost.

    `value` tells others who holds it.
    """

    def __init__(self, metadata: MetadataStore, path: str, value: bytes = b"") -> None:
        self._metadata = metadata
        self._path = path
        self._value = value
        self._held = False
        self._end = metadata.on_session(self._session)

    @property
    def held(self) -> bool:
        return self._held

    async def try_acquire(self) -> bool:
        """Whether the lock is this session's now; does not wait. Raises MetadataConnectionError: try again to find out."""
        session = self._metadata.session_id
        try:
            await self._metadata.put(self._path, self._value, MUST_NOT_EXIST, ephemeral=True)
            mine = True
        except BadVersionError:
            node = await self._metadata.get(self._path)  # a try whose answer was lost may have got it
            mine = node is not None and node.owner == self._metadata.session_id
        self._held = mine and session == self._metadata.session_id
        return self._held

    async def release(self) -> None:
        """Give it up; another's is left alone."""
        self._held = False
        node = await self._metadata.get(self._path)
        if node is not None and node.owner == self._metadata.session_id:
            try:
                await self._metadata.delete(self._path, node.version)
            except (NodeNotFoundError, BadVersionError):
                return

    def close(self) -> None:
        """Hear of the session no more. Does not release."""
        self._end()

    def _session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._held = False
