"""A bookie's place in the cluster's lists: an ephemeral node (BookKeeper discover/ZKRegistrationManager).

The node that says what the bookie is now exists before the one that says what it was goes, so it is never absent from both lists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from magnetar.base.errors import BadVersionError, MetadataError, NodeNotFoundError
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.errors import RegistrationError
from magnetar.bookkeeper.service_info import BookieServiceInfo, check_bookie_id
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S: Final = 1.0
"""Between attempts to register while the metadata store cannot be reached; RECONNECTED cuts it short."""

EXPIRY_FACTOR: Final = 2.0
"""How many session times-out a bookie waits for the node of its former self before it takes it for another bookie's."""


class BookieRegistration:
    """`async with BookieRegistration(store, "host:3181", info) as registration:` keeps the bookie listed.

    `on_refused` is called when another process has registered under this id while the session was lost: the bookie must stop.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        bookie_id: str,
        info: BookieServiceInfo,
        *,
        read_only: bool = False,
        on_refused: Callable[[RegistrationError], None] | None = None,
    ) -> None:
        check_bookie_id(bookie_id)
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._value = info.to_bytes()
        self._read_only = read_only
        self._on_refused = on_refused
        self._scope = TaskScope(f"registration of {bookie_id}")
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def read_only(self) -> bool:
        """What was last asked for."""
        return self._read_only

    @property
    def registered(self) -> bool:
        """True while the lists say what was last asked for, as far as the session has told."""
        return self._settled.is_set()

    def set_read_only(self, read_only: bool) -> None:
        """Move to the other list, soon."""
        if read_only != self._read_only:
            self._read_only = read_only
            self._again()

    async def wait_registered(self) -> None:
        """Until the lists say what was last asked for."""
        await self._settled.wait()

    async def __aenter__(self) -> BookieRegistration:
        """Raises RegistrationError when another bookie has this id."""
        await self._apply()
        self._settled.set()
        await self._scope.__aenter__()
        self._scope.supervise(self._keep, "keep")
        self._end = (
            self._metadata.on_session(self._session),
            self._metadata.watch(lambda _: self._again(), self._path(read_only=False)),
            self._metadata.watch(lambda _: self._again(), self._path(read_only=True)),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settled.clear()
        for end in self._end:
            end()
        await self._scope.__aexit__(kind, error, trace)
        for read_only in (False, True):
            try:
                await self._drop(self._path(read_only))
            except MetadataError:
                logger.info("bookie %s leaves without a word; its session's end will tell", self._bookie_id)

    # ---- Keeping it so

    def _session(self, event: SessionEvent) -> None:
        if event in (SessionEvent.SESSION_REESTABLISHED, SessionEvent.RECONNECTED):
            self._again()
        elif event is SessionEvent.SESSION_LOST:
            self._settled.clear()

    def _again(self) -> None:
        self._settled.clear()
        self._wake.set()

    async def _keep(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._apply()
            except RegistrationError as error:
                logger.error("bookie %s cannot register again: %s", self._bookie_id, error)
                if self._on_refused is not None:
                    self._on_refused(error)
                return
            except MetadataError as error:
                logger.warning("bookie %s is not registered: %s; trying again", self._bookie_id, error)
                await self._pause()
            else:
                if not self._wake.is_set():
                    self._settled.set()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            self._wake.set()

    async def _apply(self) -> None:
        wanted, other = self._path(self._read_only), self._path(not self._read_only)
        await self._await_own(other)
        await self._own(wanted)
        await self._drop(other)

    def _path(self, read_only: bool) -> str:
        return (
            paths.read_only_bookie_path(self._bookie_id) if read_only else paths.available_bookie_path(self._bookie_id)
        )

    async def _own(self, path: str) -> None:
        while True:
            if await self._await_own(path):
                return
            try:
                await self._metadata.put(path, self._value, MUST_NOT_EXIST, ephemeral=True)
                return
            except BadVersionError:
                continue  # somebody was faster: whose node it is decides

    async def _await_own(self, path: str) -> bool:
        """Whether the node is this session's; waits for a former session's to vanish. Raises RegistrationError."""
        wake = asyncio.Event()
        end = self._metadata.watch(lambda _: wake.set(), path)
        give_up_at = asyncio.get_running_loop().time() + self._metadata.session_timeout_s * EXPIRY_FACTOR
        try:
            while True:
                wake.clear()
                node = await self._metadata.get(path)
                if node is None or node.owner == self._metadata.session_id:
                    return node is not None
                async with asyncio.timeout_at(give_up_at):
                    await wake.wait()
        except TimeoutError:
            raise RegistrationError(
                f"a bookie {self._bookie_id} is registered already, by a session that goes on: stop that bookie, "
                "or give this one another bookieId"
            ) from None
        finally:
            end()

    async def _drop(self, path: str) -> None:
        node = await self._metadata.get(path)
        if node is not None and node.owner == self._metadata.session_id:
            try:
                await self._metadata.delete(path)
            except NodeNotFoundError:
                return
