"""The tree of small versioned values which brokers and bookies share, in ZooKeeper's terms.

Owns the Protocol and the rules that every implementation keeps; `tests/contract/metadata` runs against each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol, runtime_checkable

from magnetar.base.errors import BadVersionError, InvalidArgumentError
from magnetar.metadata.errors import MetadataReplacedError, NodeExistsError

ANY_VERSION: Final = None
"""`expected_version`: write whatever is there."""

MUST_NOT_EXIST: Final = -1
"""`expected_version`: create, or fail with BadVersionError."""

SEQUENCE_DIGITS: Final = 10
"""Digits that a sequential node's name ends in, as in ZooKeeper."""

Listener = Callable[[str], None]
"""Called with the path of a node that was created, written or deleted. Must not raise and must not block."""

RESYNC: Final = "/"
"""What a listener hears instead of a node's path when changes may have been missed: read again whatever you depend on."""


class SessionEvent(Enum):
    """What happens to a store's session, as in Pulsar's metadata store."""

    CONNECTION_LOST = "ConnectionLost"
    """Calls fail and changes are not heard; the session, and what is ephemeral in it, may still live."""

    RECONNECTED = "Reconnected"
    """The same session goes on. Listeners of `watch` hear RESYNC."""

    SESSION_LOST = "SessionLost"
    """The session has ended, or may have: whoever relies on an ephemeral node must stop acting on it now."""

    SESSION_REESTABLISHED = "SessionReestablished"
    """A new session has begun: ephemeral nodes are gone and may be created again. Listeners of `watch` hear RESYNC."""


SessionListener = Callable[[SessionEvent], None]
"""Called on the event loop. Must not raise and must not block."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its version: 0 after creation, one more with every write."""

    value: bytes
    version: int
    owner: int = field(default=0, compare=False)
    """The session that an ephemeral node belongs to; 0: not ephemeral. A store's own is its `session_id`."""


class Stat(NamedTuple):
    """What a tree remembers of a node besides its value, in the order of ZooKeeper's Stat; zeros where a store does not know."""

    czxid: int = 0
    """Transaction that created it; `mzxid` wrote it last, `pzxid` created or deleted a child last."""
    mzxid: int = 0
    ctime_ms: int = 0
    mtime_ms: int = 0
    version: int = 0
    cversion: int = 0
    """Creations and deletions of children."""
    aversion: int = 0
    owner: int = 0
    """The session of an ephemeral node, or 0."""
    data_length: int = 0
    children: int = 0
    pzxid: int = 0


class MetadataStore(Protocol):
    """Every single call is atomic and durable when it returns. Paths look like `/ledgers/00/0000/L0001`.

    Any call may raise MetadataConnectionError when the store lies elsewhere: a write may then have been done, or not.
    """

    @property
    def session_id(self) -> int:
        """Never 0. Changes with SESSION_REESTABLISHED."""
        ...

    @property
    def session_timeout_s(self) -> float:
        """How long ephemeral nodes outlive a process that was killed; 0: they do not."""
        ...

    @property
    def proven_until_s(self) -> float:
        """Of the monotonic clock: until then nobody can have been given what depends on the session. Behind it, only once more is heard.

        A process that stood still looks here before it acts as an owner. Infinite where nobody else could be given anything.
        """
        ...

    async def get(self, path: str) -> Node | None:
        """The node, or None when the path does not exist (and only then)."""
        ...

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, int]:
        """Create or overwrite; answers (actual path, new version). Missing parents are created with empty values.

        `ephemeral` holds for a created node: it vanishes with the session. An existing node keeps its kind.
        `sequential` appends ten digits, rising per parent, and always creates.
        Raises BadVersionError when `expected_version` does not hold (a missing node has no version),
        EphemeralParentError below an ephemeral node.
        """
        ...

    async def create_missing(self, paths: Sequence[str], value: bytes = b"") -> int:
        """Create those that do not exist, parents as well; answers how many these were. Existing ones stay as they are.

        Many share a request and a commit. Each is atomic, together they are not: after an error some may be there.
        Raises EphemeralParentError.
        """
        ...

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Raises NodeNotFoundError, BadVersionError, or NodeHasChildrenError."""
        ...

    async def children(self, path: str) -> list[str]:
        """Names (not paths) of the direct children, sorted by code point; [] when the path is missing."""
        ...

    async def children_count(self, path: str) -> int:
        """`len(children(path))` without building the list."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def stat(self, path: str) -> Stat | None:
        """None when the path does not exist."""
        ...

    def watch(self, listener: Listener, prefix: str = "/") -> Callable[[], None]:
        """Tell `listener` of every named node's change at or below `prefix`, in commit order, before a changing call of
        this store returns. Parents that a put creates on the way may be told or not. After an interruption it hears RESYNC.

        Answers the function that ends the watch.
        """
        ...

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Tell `listener` what happens to the session. Answers the function that ends this."""
        ...

    async def close(self) -> None:
        """End the session. Repeating it does nothing; any other call raises MetadataClosedError afterwards."""
        ...


@runtime_checkable
class SessionEnder(Protocol):
    """A store whose sessions outlive their processes, and can be ended for those that were killed."""

    @property
    def session_key(self) -> str:
        """What somebody else has to know to end this session; changes with it."""
        ...

    async def end_session(self, key: str) -> bool:
        """End another process's session. Only with proof that the process is gone: it may serve until it has heard of this.

        False when the store could not be asked. Raises ValueError for what is not a key.
        """
        ...


@runtime_checkable
class ReplaceableStore(Protocol):
    """A store that lies elsewhere: behind its address there may be another one some day, or an empty one."""

    def require(self, path: str, value: bytes, on_replaced: Callable[[MetadataReplacedError], None]) -> None:
        """Use the store from now on only where `path` holds `value`, which is looked at with each connection, before anything else.

        Elsewhere nothing is read or written: every call raises MetadataReplacedError, and `on_replaced` is called once.
        """
        ...


def check_path(path: str) -> None:
    """Raise InvalidArgumentError unless `path` is absolute, without empty, `.` or `..` parts, NUL or lone surrogates."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path:
        raise InvalidArgumentError(f"metadata path {path!r} must start with '/' and have no empty part")
    if "/." in path and any(part in (".", "..") for part in path.split("/")):
        raise InvalidArgumentError(f"metadata path {path!r} must not contain '.' or '..' as a part")
    if not path.isprintable():
        _check_characters(path)


def check_put(path: str, expected_version: int | None, sequential: bool) -> None:
    """Raise InvalidArgumentError for arguments of `put` that no store accepts."""
    check_path(path)
    if path == "/":
        raise InvalidArgumentError("the root of the metadata tree has no value; put to a path below it")
    if expected_version is not None and expected_version < MUST_NOT_EXIST:
        raise InvalidArgumentError(f"expected_version {expected_version} must be None, -1 or a version")
    if sequential and expected_version not in (ANY_VERSION, MUST_NOT_EXIST):
        raise InvalidArgumentError("a sequential node is always created: leave expected_version out")


def check_version(path: str, actual: int | None, expected: int | None) -> None:
    """Raise BadVersionError unless the node at version `actual` (None: no node) may be written under `expected`."""
    if expected is None:
        return
    if expected == MUST_NOT_EXIST:
        if actual is not None:
            raise NodeExistsError(f"{path} exists already, at version {actual}")
    elif actual is None:
        raise BadVersionError(f"{path} does not exist, version {expected} was expected")
    elif actual != expected:
        raise BadVersionError(f"{path} is at version {actual}, version {expected} was expected")


def split_path(path: str) -> tuple[str, str]:
    """(parent's path, name); the root is ("", "")."""
    if path == "/":
        return "", ""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def within(path: str, prefix: str) -> bool:
    """Whether a listener for `prefix` hears of `path`."""
    return prefix == "/" or path in (prefix, RESYNC) or path.startswith(prefix + "/")


def _check_characters(path: str) -> None:
    if "\0" in path:
        raise InvalidArgumentError(f"metadata path {path!r} must not contain NUL")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"metadata path {path!r} is not valid Unicode") from None
