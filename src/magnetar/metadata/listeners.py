"""Who is told: the listeners of a store, in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.metadata.store import Listener, SessionEvent, SessionListener, check_path, within


class Listeners:
    """Watches and session listeners of one store. A listener may end its own watch, or another's, while it is told."""

    __slots__ = ("_count", "_session", "_watches")

    def __init__(self) -> None:
        self._count = 0
        self._watches: dict[int, tuple[Listener, str]] = {}
        self._session: dict[int, SessionListener] = {}

    def watch(self, listener: Listener, prefix: str) -> Callable[[], None]:
        check_path(prefix)
        self._count += 1
        number = self._count
        self._watches[number] = (listener, prefix)
        return lambda: self._watches.pop(number, None) and None

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._count += 1
        number = self._count
        self._session[number] = listener
        return lambda: self._session.pop(number, None) and None

    def prefixes(self) -> list[str]:
        """What is watched, each once."""
        return list(dict.fromkeys(prefix for _, prefix in self._watches.values()))

    def hear_of(self, path: str) -> bool:
        """Whether anybody is told when it changes."""
        return any(within(path, prefix) for _, prefix in self._watches.values())

    def changed(self, path: str) -> None:
        for number, (listener, prefix) in list(self._watches.items()):
            if within(path, prefix) and number in self._watches:
                listener(path)

    def session(self, event: SessionEvent) -> None:
        for number, listener in list(self._session.items()):
            if number in self._session:
                listener(event)

    def clear(self) -> None:
        self._watches.clear()
        self._session.clear()
