"""One kazoo client behind the event loop: its threads hand over what happened and touch nothing else of ours.

kazoo has no persistent watches (ZooKeeper 3.6), so its reader of notifications is replaced. Requests that it does not have, or not for a
million names, are made here: tree watches, many creations at once, long lists.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, AuthFailedError, KazooException
from kazoo.protocol.serialization import SASL, Connect, Watch, write_string
from kazoo.protocol.states import KazooState
from kazoo.security import ACL

from magnetar.base.clock import Clock
from magnetar.base.errors import BadVersionError, InvalidArgumentError, MetadataError, NodeNotFoundError
from magnetar.metadata.digest_md5 import ClientDigest, Credentials, MetadataAuthenticationError
from magnetar.metadata.errors import EphemeralParentError, NodeHasChildrenError, SessionExpiredError

NAMES_PER_TURN: Final = 5_000
"""Of a list that came; then the event loop has its turn, some 1 ms later."""

CREATIONS_PER_REQUEST: Final = 250
CREATION_BYTES_PER_REQUEST: Final = 256 * 1024
"""Of one transaction; ZooKeeper takes 1 MiB (`jute.maxbuffer`), and others' writes wait behind it."""

VALUE_BYTES_MAX: Final = 1024 * 1024 - 1024
"""A larger value is refused: ZooKeeper would drop the connection (`jute.maxbuffer`, less the rest of the request)."""

_INT: Final = struct.Struct("!i")
_MULTI_HEADER: Final = struct.Struct("!i?i")
_CREATE: Final = 1
_ERROR: Final = -1
_END: Final = _MULTI_HEADER.pack(-1, True, -1)
_NO_FLAGS: Final = _INT.pack(0)
_CREATION_OVERHEAD: Final = 64
_PERSISTENT_RECURSIVE: Final = 1
_ANY_WATCHER: Final = 3


@dataclass(frozen=True, slots=True)
class AddWatch:
    """Watch a node and everything below it until the connection ends."""

    path: str
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path)
        return encoded + _INT.pack(_PERSISTENT_RECURSIVE)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RemoveWatches:
    """End the watches that this connection has on exactly this path."""

    path: str
    type: ClassVar[int] = 18

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path)
        return encoded + _INT.pack(_ANY_WATCHER)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class CreateAll:
    """All of the nodes with one value and one access list, or none of them. The answer: a code for each, 0 or ZooKeeper's errors."""

    paths: Sequence[str]
    value: bytes
    acl: Sequence[ACL]
    type: ClassVar[int] = 14

    def serialize(self) -> bytes:
        header = _MULTI_HEADER.pack(_CREATE, False, -1)
        rules = [_INT.pack(each.perms) + write_string(each.id.scheme) + write_string(each.id.id) for each in self.acl]
        tail = _INT.pack(len(self.value)) + self.value + _INT.pack(len(rules)) + b"".join(rules) + _NO_FLAGS
        return b"".join([header + write_string(path) + tail for path in self.paths]) + _END

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[int]:
        codes: list[int] = []
        while True:
            kind, done, _ = _MULTI_HEADER.unpack_from(data, offset)
            offset += _MULTI_HEADER.size
            if done:
                return codes
            (number,) = _INT.unpack_from(data, offset)
            offset += _INT.size
            if kind == _ERROR:
                codes.append(number)
            else:  # a creation answers the path
                codes.append(0)
                offset += number


def check_size(path: str, value: bytes) -> None:
    """Raises InvalidArgumentError for a value that ZooKeeper would not take."""
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidArgumentError(f"{path}: a value of {len(value)} bytes; ZooKeeper takes {VALUE_BYTES_MAX}")


def batches(paths: Iterable[str], value: bytes) -> Iterator[list[str]]:
    """In order, as many together as a request may create."""
    batch: list[str] = []
    size = 0
    for path in paths:
        cost = len(path.encode()) + len(value) + _CREATION_OVERHEAD
        if batch and (len(batch) == CREATIONS_PER_REQUEST or size + cost > CREATION_BYTES_PER_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += cost
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class ListChildren:
    """The answer as it came, for `names_in`: kazoo would unpack it on its own thread and hold up its heartbeats meanwhile."""

    path: str
    type: ClassVar[int] = 8

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path)
        return encoded + b"\0"  # no watch

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bytes:
        return data[offset:]


async def names_in(data: bytes) -> list[str]:
    """The sorted names of a list of strings, unpacked and sorted in pieces: others go on in between, however long it is."""
    (count,) = _INT.unpack_from(data, 0)
    offset = _INT.size
    runs: list[list[str]] = []
    for first in range(0, count, NAMES_PER_TURN):
        if first:
            await asyncio.sleep(0)
        run = []
        for _ in range(min(NAMES_PER_TURN, count - first)):
            start = offset + 4
            offset = start + int.from_bytes(data[offset:start], "big")
            run.append(data[start:offset].decode())
        run.sort()
        while runs and len(runs[-1]) <= len(run):  # merged like a binary counter: no single sort of everything
            run = runs.pop() + run
            run.sort()
        runs.append(run)
    while len(runs) > 1:
        last = runs.pop()
        runs[-1] += last
        runs[-1].sort()
    return runs[0] if runs else []


def translate(path: str, error: kz.KazooException) -> MetadataError | InvalidArgumentError:
    if isinstance(error, kz.NoNodeError):
        return NodeNotFoundError(f"{path} does not exist")
    if isinstance(error, kz.NodeExistsError):
        return BadVersionError(f"{path} exists already")
    if isinstance(error, kz.BadVersionError):
        return BadVersionError(f"{path} is at another version than expected")
    if isinstance(error, kz.NotEmptyError):
        return NodeHasChildrenError(f"{path} has children; delete them first")
    if isinstance(error, kz.NoChildrenForEphemeralsError):
        return EphemeralParentError(f"the parent of {path} is ephemeral and cannot have children")
    if isinstance(error, kz.SessionExpiredError):
        return SessionExpiredError(f"{path}: the metadata session has expired")
    if isinstance(error, kz.BadArgumentsError):
        return InvalidArgumentError(f"ZooKeeper refuses the path {path!r}")
    if isinstance(error, kz.AuthFailedError | kz.SessionClosedRequireSaslError):
        return MetadataAuthenticationError(
            "the metadata server asks who its clients are; set metadataSecret to its secret"
        )
    if isinstance(error, kz.NoAuthError):
        return MetadataError(
            f"{path}: ZooKeeper grants no permission; give the node an open ACL or connect as its owner (metadataSecret)"
        )
    return MetadataError(f"{path}: ZooKeeper failed with {type(error).__name__} {error}")


logger = logging.getLogger(__name__)

RECONNECT_DELAY_MAX_S: Final = 1.0
"""Between attempts to connect again."""

STOP_S: Final = 1.0
"""For kazoo to take notice that it is to end; it does so at once."""

_PING_XID: Final = -2
_WATCH_XID: Final = -1
_NODE_EVENTS: Final = (1, 2, 3)  # created, deleted, data changed


class KazooBridge:
    """Callbacks run on the event loop, in the order in which things happened.

    `on_state(bridge, KazooState)` tells of the connection, `on_event(path)` of a changed node. A notification that the server sent
    before an answer is told before the answer's future is done.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        clock: Clock,
        on_state: Callable[[KazooBridge, str], None],
        on_event: Callable[[str], None],
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._on_state = on_state
        self._on_event = on_event
        self.session_timeout_s = session_timeout_s
        """What was asked for; once connected, what the server granted."""
        self.proven_s = clock.monotonic_s()
        """When the newest of those requests was sent that the server has answered: it has heard this client then, or later.

        What else the server says proves nothing: it may go on to send notifications to a client that it does not hear any more.
        """
        self.refusal = ""
        """Why the server and this client do not believe each other; the connection is not tried again."""
        self._unanswered_s: dict[int, float] = {}
        """Of this connection, by kazoo's number of the request: when it was sent. All pings have one number, the first one counts."""
        self._client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            logger=logger,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": RECONNECT_DELAY_MAX_S},
        )
        self._client.add_listener(self._state_changed)
        self._hook(self._client._connection)
        if credentials is not None:
            self._client._connection.sasl_options = {}  # not None: kazoo is to authenticate each connection
            self._client._connection._authenticate_with_sasl = self._authenticate

    @property
    def session_id(self) -> int:
        """0 before the first connection. As ZooKeeper's `ephemeralOwner` says it: a signed number of 64 bits."""
        session_id: int | None = self._client._session_id
        return session_id or 0

    @property
    def session_password(self) -> bytes:
        """With the number, all that it takes to go on with the session somewhere else."""
        password: bytes = self._client._session_passwd
        return password

    def start(self) -> None:
        """Begin to connect; `on_state` tells when. Blocks for a moment (threads start)."""
        self._client.start_async()

    def close(self) -> None:
        """End the session. Blocks until it has, or kazoo gives up."""
        try:
            self._client.stop()
            self._client.close()
        except (KazooException, OSError) as error:
            logger.warning("closing the ZooKeeper session failed: %s", error)

    def abandon(self) -> None:
        """End without a word to the server, and without waiting for one of it: the session is left as it is. May block as `close`."""
        ending = threading.Thread(target=self.close, daemon=True)
        ending.start()
        self._client._stopped.wait(STOP_S)
        end: socket.socket | None = self._client._connection._socket
        if end is not None:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        ending.join()

    def request(self, request: object) -> asyncio.Future[Any]:
        """Send; the future has the answer, or kazoo's exception."""
        future: asyncio.Future[Any] = self._loop.create_future()
        result = self._client.handler.async_result()
        result.rawlink(lambda done: self._post(_finish, future, done.value, done.exception))
        self._client._call(request, result)
        return future

    # ---- On kazoo's threads

    def _post(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop is closed: nobody is left to be told

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED and self._credentials is not None:
            return  # kazoo says so before it authenticates; `_authenticate` says it afterwards
        self._post(self._on_state, self, state)

    def _authenticate(self, host: str, timeout_s: float) -> None:
        """In the place of kazoo's, which needs another library and does not ask the server for its proof before it goes on.

        A connection that breaks is tried again; only a server's no, or its want of a proof, is final.
        """
        assert self._credentials is not None
        digest = ClientDigest(self._credentials)
        try:
            challenge = self._say_sasl(1, b"", timeout_s)
            digest.check(self._say_sasl(2, digest.respond(challenge), timeout_s))
        except MetadataAuthenticationError as error:
            self.refusal = str(error)
            raise AuthFailedError(self.refusal) from error
        self._post(self._on_state, self, KazooState.CONNECTED)

    def _say_sasl(self, xid: int, token: bytes, timeout_s: float) -> bytes:
        connection = self._client._connection
        connection._submit(SASL(token), timeout_s, xid)
        while True:
            header, data, offset = connection._read_header(timeout_s)
            if header.xid == xid:
                break
            if header.xid not in (_PING_XID, _WATCH_XID):
                raise MetadataAuthenticationError("the server does not answer the authentication")
        if header.err:
            name = EXCEPTIONS[header.err].__name__ if header.err in EXCEPTIONS else f"error {header.err}"
            raise MetadataAuthenticationError(
                f"the server refuses the authentication ({name}): it does not know this user and secret, or asks for none"
            )
        answer: bytes = SASL.deserialize(data, offset)[0] or b""
        return answer

    def _hook(self, connection: Any) -> None:
        """Hear what kazoo keeps to itself: notifications, the granted time-out, which requests have been answered."""
        read_header, submit, invoke = connection._read_header, connection._submit, connection._invoke

        def read_watch_event(data: bytes, offset: int) -> None:
            event, _ = Watch.deserialize(data, offset)
            if event.type in _NODE_EVENTS:
                self._post(self._on_event, event.path)

        def answered(timeout: float) -> Any:
            answer = read_header(timeout)
            sent_s = self._unanswered_s.pop(answer[0].xid, None)
            if sent_s is not None:
                self.proven_s = max(self.proven_s, sent_s)
            return answer

        def submitted(request: Any, timeout: float, xid: int | None = None) -> None:
            if xid is not None:
                self._unanswered_s.setdefault(xid, self._clock.monotonic_s())
            submit(request, timeout, xid)

        def invoked(timeout: float, request: Any, xid: int | None = None) -> Any:
            self._unanswered_s.clear()
            sent_s = self._clock.monotonic_s()
            answer = invoke(timeout, request, xid)
            if isinstance(request, Connect) and answer[0].time_out > 0:
                self.session_timeout_s = answer[0].time_out / 1000
                self.proven_s = sent_s
            return answer

        connection._read_watch_event = read_watch_event
        connection._read_header = answered
        connection._submit = submitted
        connection._invoke = invoked


def _finish(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
