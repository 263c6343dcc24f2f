"""Who hears of which change: ZooKeeper's one-shot watches, and its persistent ones (3.6). Pure.

A watcher is a number, that of a connection.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from magnetar.metadata.sqlite_tree import Change
from magnetar.metadata.store import split_path


class Kind(IntEnum):
    """What a watch waits for. DATA also waits for the creation of a node that does not exist yet."""

    CHILDREN = 1
    DATA = 2
    PERSISTENT = 3
    RECURSIVE = 4


CHILDREN_CHANGED: Final = 4
"""The event's number; the others are those of `Change`."""

ONE_SHOT: Final = (Kind.CHILDREN, Kind.DATA)

_AT_NODE: Final = {
    Change.CREATED: (Kind.DATA, Kind.PERSISTENT, Kind.RECURSIVE),
    Change.WRITTEN: (Kind.DATA, Kind.PERSISTENT, Kind.RECURSIVE),
    Change.DELETED: (Kind.DATA, Kind.CHILDREN, Kind.PERSISTENT, Kind.RECURSIVE),
}


class Watches:
    """Each watcher hears of an event at most once, however many of its watches it meets."""

    def __init__(self) -> None:
        self._by_path: dict[Kind, dict[str, dict[int, None]]] = {kind: {} for kind in Kind}
        self._by_watcher: dict[int, dict[tuple[Kind, str], None]] = {}

    def add(self, kind: Kind, path: str, watcher: int) -> None:
        self._by_path[kind].setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, {})[kind, path] = None

    def has(self, kind: Kind, path: str, watcher: int) -> bool:
        return watcher in self._by_path[kind].get(path, ())

    def remove(self, kind: Kind, path: str, watcher: int) -> bool:
        """Whether there was one."""
        watchers = self._by_path[kind].get(path)
        if watchers is None or watcher not in watchers:
            return False
        del watchers[watcher]
        if not watchers:
            del self._by_path[kind][path]
        del self._by_watcher[watcher][kind, path]
        return True

    def forget(self, watcher: int) -> None:
        """The connection is gone."""
        for kind, path in list(self._by_watcher.pop(watcher, ())):
            watchers = self._by_path[kind][path]
            del watchers[watcher]
            if not watchers:
                del self._by_path[kind][path]

    def fire(self, change: Change, path: str) -> list[tuple[int, int, str]]:
        """(watcher, event, path) of everything that is to be told; one-shot watches among them are spent."""
        told = dict.fromkeys((watcher, int(change), path) for watcher in self._met(path, _AT_NODE[change]))
        if change is not Change.WRITTEN:
            parent, _ = split_path(path)
            for watcher in self._met(parent, (Kind.CHILDREN, Kind.PERSISTENT)):
                told[watcher, CHILDREN_CHANGED, parent] = None
        return list(told)

    def __len__(self) -> int:
        return sum(map(len, self._by_watcher.values()))

    def _met(self, path: str, kinds: tuple[Kind, ...]) -> list[int]:
        found: dict[int, None] = {}
        for kind in kinds:
            if kind is Kind.RECURSIVE:
                continue
            watchers = list(self._by_path[kind].get(path, ()))
            found.update(dict.fromkeys(watchers))
            if kind in ONE_SHOT:
                for watcher in watchers:
                    self.remove(kind, path, watcher)
        if Kind.RECURSIVE in kinds and self._by_path[Kind.RECURSIVE]:
            while path:
                found.update(self._by_path[Kind.RECURSIVE].get(path, {}))
                path, _ = split_path(path)
        return list(found)
