"""The metadata store of tests and the simulator: a dict, with the rules of `store`."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.base.errors import NodeNotFoundError
from magnetar.metadata.errors import EphemeralParentError, MetadataClosedError, NodeHasChildrenError
from magnetar.metadata.store import (
    SEQUENCE_DIGITS,
    Listener,
    Node,
    check_path,
    check_put,
    check_version,
    split_path,
)


class _Record:
    __slots__ = ("children", "ephemeral", "next_sequence", "value", "version")

    def __init__(self, value: bytes, ephemeral: bool) -> None:
        self.value = value
        self.version = 0
        self.ephemeral = ephemeral
        self.next_sequence = 0
        self.children: dict[str, None] = {}


class MemoryMetadataStore:
    """Nothing survives the process. Every call is done when it returns, without yielding to the event loop."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {"/": _Record(b"", ephemeral=False)}
        self._listeners: dict[int, Listener] = {}
        self._watches = 0
        self._closed = False

    async def get(self, path: str) -> Node | None:
        record = self._find(path)
        return None if record is None else Node(record.value, record.version)

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
        record = None
        if not sequential:
            record = self._records.get(path)
            check_version(path, None if record is None else record.version, expected_version)
        if record is None:
            path, record = self._create(path, ephemeral, sequential)
        else:
            record.version += 1
        record.value = bytes(value)
        self._notify(path)
        return path, record.version

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        record = self._find(path)
        if record is None:
            raise NodeNotFoundError(f"{path} does not exist")
        check_version(path, record.version, expected_version)
        if record.children or path == "/":
            raise NodeHasChildrenError(f"{path} has {len(record.children)} children; delete them first")
        self._remove(path)

    async def children(self, path: str) -> list[str]:
        record = self._find(path)
        return [] if record is None else sorted(record.children)

    async def children_count(self, path: str) -> int:
        record = self._find(path)
        return 0 if record is None else len(record.children)

    async def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def watch(self, listener: Listener) -> Callable[[], None]:
        self._watches += 1
        number = self._watches
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None) and None

    async def close(self) -> None:
        self._closed = True
        self._listeners.clear()

    def expire_session(self) -> None:
        """Delete the ephemeral nodes, as if the session had ended and a new one begun."""
        for path in [path for path, record in self._records.items() if record.ephemeral]:
            self._remove(path)

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosedError("the metadata store is closed")

    def _find(self, path: str) -> _Record | None:
        self._check_open()
        check_path(path)
        return self._records.get(path)

    def _create(self, path: str, ephemeral: bool, sequential: bool) -> tuple[str, _Record]:
        parent_path, name = split_path(path)
        parent = self._records.get(parent_path)
        if parent is None:
            _, parent = self._create(parent_path, ephemeral=False, sequential=False)
        elif parent.ephemeral:
            raise EphemeralParentError(f"{parent_path} is ephemeral and cannot have the child {name}")
        if sequential:
            suffix = f"{parent.next_sequence:0{SEQUENCE_DIGITS}d}"
            parent.next_sequence += 1
            name, path = name + suffix, path + suffix
        record = _Record(b"", ephemeral)
        self._records[path] = record
        parent.children[name] = None
        return path, record

    def _remove(self, path: str) -> None:
        parent, name = split_path(path)
        del self._records[path]
        del self._records[parent].children[name]
        self._notify(path)

    def _notify(self, path: str) -> None:
        for listener in list(self._listeners.values()):
            listener(path)
