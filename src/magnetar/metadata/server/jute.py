"""ZooKeeper's wire format (jute): numbers big-endian, strings and buffers behind their length, -1 for none. Pure."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from magnetar.metadata.store import Stat

_INT: Final = struct.Struct("!i")
_LONG: Final = struct.Struct("!q")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_REPLY_HEADER: Final = struct.Struct("!iqi")

NOTIFICATION_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4
SET_WATCHES_XID: Final = -8
_CONNECTED: Final = 3


class Op(IntEnum):
    """Request types."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN_2 = 12
    CHECK = 13
    MULTI = 14
    CREATE_2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    SET_WATCHES_2 = 105
    ADD_WATCH = 106
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    ERROR = -1


class Code(IntEnum):
    """Error codes of replies."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    AUTH_FAILED = -115
    NO_WATCHER = -121
    SASL_REQUIRED = -124


class MalformedRequestError(Exception):
    """The bytes are not a request: the connection is closed."""


class Reader:
    """Reads one frame from front to back. Every method raises MalformedRequestError when the bytes end too soon."""

    __slots__ = ("_data", "_offset")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._offset

    def int32(self) -> int:
        value: int = _INT.unpack(self._take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _LONG.unpack(self._take(8))[0]
        return value

    def flag(self) -> bool:
        return self._take(1) != b"\0"

    def buffer(self) -> bytes:
        """None counts as empty."""
        size = self.int32()
        return b"" if size < 0 else self._take(size)

    def string(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise MalformedRequestError("a string is not UTF-8") from error

    def strings(self) -> list[str]:
        count = self.int32()
        if count > self.left // 4:
            raise MalformedRequestError(f"{count} strings do not fit into {self.left} bytes")
        return [self.string() for _ in range(count)]

    def skip_acl(self) -> None:
        """Access lists are taken and not looked at."""
        count = self.int32()
        if count > self.left // 12:
            raise MalformedRequestError(f"{count} access rules do not fit into {self.left} bytes")
        for _ in range(count):
            self.int32()
            self.string()
            self.string()

    def _take(self, size: int) -> bytes:
        end = self._offset + size
        if size < 0 or end > len(self._data):
            raise MalformedRequestError(f"{size} bytes are wanted and {self.left} are left")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken


def pack_int(value: int) -> bytes:
    return _INT.pack(value)


def pack_buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def pack_string(value: str) -> bytes:
    return pack_buffer(value.encode())


def pack_stat(stat: Stat) -> bytes:
    return _STAT.pack(*stat)


def pack_open_acl() -> bytes:
    """One rule: everybody may do everything."""
    return _INT.pack(1) + _INT.pack(31) + pack_string("world") + pack_string("anyone")


def pack_multi_header(kind: int, done: bool, error: int) -> bytes:
    return _INT.pack(kind) + (b"\1" if done else b"\0") + _INT.pack(error)


def frame(body: bytes) -> bytes:
    return _INT.pack(len(body)) + body


def reply(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    """A whole frame."""
    return frame(_REPLY_HEADER.pack(xid, zxid, error) + body)


def notification(kind: int, path: str) -> bytes:
    """A whole frame that tells of an event at a node."""
    body = _INT.pack(kind) + _INT.pack(_CONNECTED) + pack_string(path)
    return reply(NOTIFICATION_XID, -1, 0, body)


def connect_reply(timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """A whole frame. Nought for time and session: the session is over."""
    return frame(_INT.pack(0) + _INT.pack(timeout_ms) + _LONG.pack(session_id) + pack_buffer(password) + b"\0")
