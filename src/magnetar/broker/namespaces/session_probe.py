"""Brokers of one machine watch each other's processes, and end the sessions that ended processes leave behind.

A session outlives its process by its time-out, because a store cannot tell a dead process from one that is silent. On the same machine
the kernel can: it reports that exactly this process has ended, even if another one has its number by now. A process that is stopped or cut
off has not ended, and keeps its session until it times out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from magnetar.base.errors import MetadataError
from magnetar.base.process_watch import ProcessIdentity, ProcessWatch
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.namespaces.records import decode
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore, SessionEnder

logger = logging.getLogger(__name__)

FIELD: Final = "magnetarProcess"
"""Field of a broker's node with its process and the key of its session. Pulsar's brokers ignore unknown fields."""


class SessionProbe:
    """Ends the sessions of brokers of this machine whose processes have ended. After `start` it follows the list of brokers by itself."""

    def __init__(self, metadata: MetadataStore, processes: ProcessWatch, scope: TaskScope) -> None:
        self._metadata = metadata
        self._sessions = metadata if isinstance(metadata, SessionEnder) else None
        self._processes = processes
        self._scope = scope
        self._keys: dict[ProcessIdentity, str] = {}
        """Session key by watched process."""
        self._stops: dict[ProcessIdentity, Callable[[], None]] = {}
        self.sessions_ended = 0
        """Sessions ended since the start."""
        self._unwatch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        if self._sessions is None or self._processes.own() is None:
            return
        self._unwatch = self._metadata.watch(self._changed, paths.BROKERS_PATH)
        await self._look_at_all()

    def close(self) -> None:
        self._unwatch()
        for stop in self._stops.values():
            stop()
        self._stops.clear()

    def _changed(self, path: str) -> None:
        work = self._look_at_all() if path == RESYNC else self._look_at(path)
        self._scope.spawn(work, f"look at {path}", REPORTED)

    async def _look_at_all(self) -> None:
        try:
            names = await self._metadata.children(paths.BROKERS_PATH)
        except MetadataError as error:
            logger.info("brokers of this machine not listed: %s", error)
            return
        for name in names:
            await self._look_at(paths.broker_path(name))

    async def _look_at(self, path: str) -> None:
        try:
            node = await self._metadata.get(path)
        except MetadataError as error:
            logger.info("node of a broker not read: %s", error)
            return
        record = decode(node.value).get(FIELD) if node is not None else None
        identity = ProcessIdentity.parse(record) if isinstance(record, dict) else None
        if identity is None or identity == self._processes.own():
            return
        key = str(record.get("session") or "") if isinstance(record, dict) else ""
        if identity in self._keys:
            self._keys[identity] = key
            return
        stop = self._processes.watch(identity, lambda: self._ended(identity))
        if stop is not None:
            self._keys[identity] = key
            self._stops[identity] = stop

    def _ended(self, identity: ProcessIdentity) -> None:
        self._stops.pop(identity, None)
        key = self._keys.pop(identity)
        if key:
            self._scope.spawn(
                self._end_session(identity.pid, key), f"end the session of process {identity.pid}", REPORTED
            )

    async def _end_session(self, pid: int, key: str) -> None:
        assert self._sessions is not None
        try:
            if await self._sessions.end_session(key):
                self.sessions_ended += 1
                logger.info("the process of a broker on this machine has ended: ended its session pid=%d", pid)
        except ValueError:
            logger.warning("the session key of a broker is not valid pid=%d", pid)


def process_fields(metadata: MetadataStore, processes: ProcessWatch) -> dict[str, Any]:
    """Fields of this broker's node for the other brokers of the machine; none where they would be of no use."""
    own = processes.own()
    if own is None or not isinstance(metadata, SessionEnder):
        return {}
    return {FIELD: {**own.record(), "session": metadata.session_key}}
