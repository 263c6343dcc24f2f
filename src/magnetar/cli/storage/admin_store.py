"""The metadata tree of a running server, looked at through its admin API: what commands read without a directory or a store's address."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence

from magnetar.admin.client.client import AdminClient
from magnetar.admin.client.errors import NotFoundError
from magnetar.admin.documents.cluster import MetadataNode
from magnetar.cli.errors import CommandError
from magnetar.metadata.store import ANY_VERSION, Listener, Node, SessionListener, Stat


class AdminMetadataStore:
    """A MetadataStore that changes nothing and is told of no change. Each read is a request of its own."""

    session_id = 0
    session_timeout_s = 0.0
    proven_until_s = math.inf

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def _node(self, path: str) -> MetadataNode | None:
        try:
            return self._admin.metadata.node(path)
        except NotFoundError:
            return None

    async def get(self, path: str) -> Node | None:
        found = self._node(path)
        if found is None:
            return None
        return Node(base64.b64decode(found.value), found.version, found.ephemeral_owner)

    async def stat(self, path: str) -> Stat | None:
        found = self._node(path)
        if found is None:
            return None
        return Stat(
            czxid=found.czxid,
            mzxid=found.mzxid,
            ctime_ms=found.ctime,
            mtime_ms=found.mtime,
            version=found.version,
            cversion=found.cversion,
            aversion=found.aversion,
            owner=found.ephemeral_owner,
            data_length=found.data_length,
            children=found.num_children,
            pzxid=found.pzxid,
        )

    async def exists(self, path: str) -> bool:
        return self._node(path) is not None

    async def children(self, path: str) -> list[str]:
        try:
            return self._admin.metadata.children(path)
        except NotFoundError:
            return []

    async def children_count(self, path: str) -> int:
        return len(await self.children(path))

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, int]:
        raise CommandError(ONLY_LOOKS)

    async def create_missing(self, paths: Sequence[str], value: bytes = b"") -> int:
        raise CommandError(ONLY_LOOKS)

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        raise CommandError(ONLY_LOOKS)

    def watch(self, listener: Listener, prefix: str = "/") -> Callable[[], None]:
        return lambda: None

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None:
        self._admin.close()


ONLY_LOOKS = (
    "this changes or uses what lies below the topics, which the admin API does not do; give the store itself: --metadata URL, "
    "--dir DIR (magnetar cluster), or --data-dir DIR of a server that is stopped"
)
