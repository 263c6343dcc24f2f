"""The metadata store of tests and the simulator: a dict shared by sessions, with the rules of `store`.

A session is cut off, expired or abandoned by calling its methods: that is how a simulator plays a process that hangs or dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from magnetar.base.errors import NodeNotFoundError
from magnetar.metadata.errors import (
    EphemeralParentError,
    MetadataClosedError,
    MetadataConnectionError,
    NodeHasChildrenError,
)
from magnetar.metadata.listeners import Listeners
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    RESYNC,
    SEQUENCE_DIGITS,
    Listener,
    Node,
    SessionEvent,
    SessionListener,
    Stat,
    check_path,
    check_put,
    check_version,
    split_path,
)


class _Record:
    __slots__ = ("children", "next_sequence", "owner", "value", "version")

    def __init__(self, value: bytes, owner: int) -> None:
        self.value = value
        self.version = 0
        self.owner = owner
        self.next_sequence = 0
        self.children: dict[str, None] = {}


class MemoryTree:
    """What several sessions share: `MemoryMetadataStore(tree)` opens one."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {"/": _Record(b"", owner=0)}
        self._stores: dict[int, MemoryMetadataStore] = {}
        self._sessions = 0

    def attach(self, store: MemoryMetadataStore) -> int:
        """A new session of `store`; its id."""
        self._sessions += 1
        self._stores[self._sessions] = store
        return self._sessions

    def end(self, session_id: int) -> None:
        """Forget the session and delete its ephemeral nodes."""
        self._stores.pop(session_id, None)
        for path in [path for path, record in self._records.items() if record.owner == session_id]:
            self._remove(path)

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._stores

    def find(self, path: str) -> _Record | None:
        return self._records.get(path)

    def put(self, path: str, value: bytes, expected: int | None, owner: int, sequential: bool) -> tuple[str, int]:
        record = None
        if not sequential:
            record = self._records.get(path)
            check_version(path, None if record is None else record.version, expected)
        if record is None:
            path, record = self._create(path, owner, sequential)
        else:
            record.version += 1
        record.value = bytes(value)
        self._notify(path)
        return path, record.version

    def delete(self, path: str, expected: int | None) -> None:
        record = self._records.get(path)
        if record is None:
            raise NodeNotFoundError(f"{path} does not exist")
        check_version(path, record.version, expected)
        if record.children or path == "/":
            raise NodeHasChildrenError(f"{path} has {len(record.children)} children; delete them first")
        self._remove(path)

    def _create(self, path: str, owner: int, sequential: bool) -> tuple[str, _Record]:
        parent_path, name = split_path(path)
        parent = self._records.get(parent_path)
        if parent is None:
            _, parent = self._create(parent_path, owner=0, sequential=False)
        elif parent.owner:
            raise EphemeralParentError(f"{parent_path} is ephemeral and cannot have the child {name}")
        if sequential:
            suffix = f"{parent.next_sequence:0{SEQUENCE_DIGITS}d}"
            parent.next_sequence += 1
            name, path = name + suffix, path + suffix
        record = _Record(b"", owner)
        self._records[path] = record
        parent.children[name] = None
        return path, record

    def _remove(self, path: str) -> None:
        parent, name = split_path(path)
        del self._records[path]
        del self._records[parent].children[name]
        self._notify(path)

    def _notify(self, path: str) -> None:
        for store in list(self._stores.values()):
            store.tell(path)


class MemoryMetadataStore:
    """Nothing survives the process. Every call is done when it returns, without yielding to the event loop."""

    def __init__(self, tree: MemoryTree | None = None, session_timeout_s: float = 0.0) -> None:
        """`session_timeout_s` is only answered: sessions end when `expire_session` is called, not with time."""
        self.tree = tree if tree is not None else MemoryTree()
        self._listeners = Listeners()
        self._connected = True
        self._closed = False
        self._gave_up = False
        self._session_timeout_s = session_timeout_s
        self._session_id = self.tree.attach(self)

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def proven_until_s(self) -> float:
        return math.inf

    @property
    def session_timeout_s(self) -> float:
        return self._session_timeout_s

    async def get(self, path: str) -> Node | None:
        record = self._find(path)
        return None if record is None else Node(record.value, record.version, record.owner)

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, int]:
        self._check_open()
        check_put(path, expected_version, sequential)
        return self.tree.put(path, value, expected_version, self._session_id if ephemeral else 0, sequential)

    async def create_missing(self, paths: Sequence[str], value: bytes = b"") -> int:
        self._check_open()
        for path in paths:
            check_put(path, MUST_NOT_EXIST, sequential=False)
        new = [path for path in dict.fromkeys(paths) if self.tree.find(path) is None]
        for path in new:
            self.tree.put(path, value, MUST_NOT_EXIST, owner=0, sequential=False)
        return len(new)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        self._check_open()
        check_path(path)
        self.tree.delete(path, expected_version)

    async def children(self, path: str) -> list[str]:
        record = self._find(path)
        return [] if record is None else sorted(record.children)

    async def children_count(self, path: str) -> int:
        record = self._find(path)
        return 0 if record is None else len(record.children)

    async def exists(self, path: str) -> bool:
        return self._find(path) is not None

    async def stat(self, path: str) -> Stat | None:
        record = self._find(path)
        if record is None:
            return None
        return Stat(
            version=record.version, owner=record.owner, data_length=len(record.value), children=len(record.children)
        )

    def watch(self, listener: Listener, prefix: str = "/") -> Callable[[], None]:
        return self._listeners.watch(listener, prefix)

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return self._listeners.on_session(listener)

    async def close(self) -> None:
        if not self._closed:
            self.abandon()
            self.tree.end(self._session_id)

    # ---- What a test or a simulator does to the session

    def abandon(self) -> None:
        """The process dies: nobody is told any more, its ephemeral nodes stay until `expire_session`."""
        self._closed = True
        self._listeners.clear()

    def disconnect(self) -> None:
        """Calls fail and changes are not heard until `reconnect`; the session lives on."""
        if self._connected:
            self._connected = False
            self._listeners.session(SessionEvent.CONNECTION_LOST)

    def give_up_session(self) -> None:
        """What a client does that has been cut off for nearly its session's time: it takes the session for lost, unasked."""
        if not self._connected and not self._gave_up:
            self._gave_up = True
            self._listeners.session(SessionEvent.SESSION_LOST)

    def reconnect(self) -> None:
        """The same session goes on if it still lives, else a new one begins."""
        if self._connected:
            return
        self._connected = True
        if self.tree.is_alive(self._session_id) and not self._gave_up:
            self._listeners.session(SessionEvent.RECONNECTED)
            self.tell(RESYNC)
        else:
            self.tree.end(self._session_id)
            self._begin_again()

    def expire_session(self) -> None:
        """Its ephemeral nodes vanish. A connected store hears of it and begins a new session; a cut off one when it is back."""
        self.tree.end(self._session_id)
        if self._connected and not self._closed:
            self._begin_again()

    def tell(self, path: str) -> None:
        """A node has changed, or RESYNC."""
        if self._connected and not self._closed:
            self._listeners.changed(path)

    def _begin_again(self) -> None:
        if not self._gave_up:
            self._listeners.session(SessionEvent.SESSION_LOST)
        self._gave_up = False
        self._session_id = self.tree.attach(self)
        self._listeners.session(SessionEvent.SESSION_REESTABLISHED)
        self.tell(RESYNC)

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosedError("the metadata store is closed")
        if not self._connected:
            raise MetadataConnectionError("the metadata store is cut off")

    def _find(self, path: str) -> _Record | None:
        self._check_open()
        check_path(path)
        return self.tree.find(path)
