"""Requests of ZooKeeper's protocol as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.metadata.server.jute import MalformedRequestError, Op, Reader

MULTI_OPERATIONS_MAX: Final = 10_000
"""Operations in one transaction: a request with more is malformed."""


class Connect(NamedTuple):
    """The first frame of a connection."""

    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes


@dataclass(slots=True)
class Request:
    """One request; which fields mean something depends on `op`."""

    xid: int
    op: int
    path: str = ""
    value: bytes = b""
    version: int = -1
    flags: int = 0
    """Of a creation: 1 ephemeral, 2 sequential. Of watches: their mode or type."""
    watch: bool = False
    parts: list[Request] = field(default_factory=list)
    zxid: int = 0
    watched: list[list[str]] = field(default_factory=list)
    """Of SET_WATCHES: paths of data, exist, child, persistent and recursive watches."""


def read_connect(data: bytes) -> Connect:
    """Raises MalformedRequestError."""
    reader = Reader(data)
    reader.int32()  # protocol version
    last_zxid, timeout_ms, session_id = reader.int64(), reader.int32(), reader.int64()
    return Connect(last_zxid, timeout_ms, session_id, reader.buffer())


def read_request(data: bytes) -> Request:
    """Raises MalformedRequestError. An unknown type is a request, too: the answer says that it is not implemented."""
    reader = Reader(data)
    request = Request(reader.int32(), reader.int32())
    if request.op == Op.MULTI:
        _read_parts(reader, request)
    elif request.op in (Op.SET_WATCHES, Op.SET_WATCHES_2):
        request.zxid = reader.int64()
        request.watched = [reader.strings() for _ in range(3 if request.op == Op.SET_WATCHES else 5)]
    else:
        _read_body(reader, request)
    return request


def _read_parts(reader: Reader, request: Request) -> None:
    while True:
        kind, done = reader.int32(), reader.flag()
        reader.int32()
        if done:
            return
        if kind not in (Op.CREATE, Op.CREATE_2, Op.CREATE_CONTAINER, Op.DELETE, Op.SET_DATA, Op.CHECK):
            raise MalformedRequestError(f"a transaction cannot contain an operation of type {kind}")
        if len(request.parts) == MULTI_OPERATIONS_MAX:
            raise MalformedRequestError(f"a transaction has more than {MULTI_OPERATIONS_MAX} operations")
        part = Request(request.xid, kind)
        _read_body(reader, part)
        request.parts.append(part)


def _read_body(reader: Reader, request: Request) -> None:
    op = request.op
    if op in (Op.CREATE, Op.CREATE_2, Op.CREATE_CONTAINER):
        request.path, request.value = reader.string(), reader.buffer()
        reader.skip_acl()
        request.flags = reader.int32()
    elif op in (Op.DELETE, Op.CHECK):
        request.path, request.version = reader.string(), reader.int32()
    elif op in (Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN_2):
        request.path, request.watch = reader.string(), reader.flag()
    elif op == Op.SET_DATA:
        request.path, request.value, request.version = reader.string(), reader.buffer(), reader.int32()
    elif op in (Op.GET_ACL, Op.SET_ACL, Op.SYNC):
        request.path = reader.string()
    elif op == Op.SASL:
        request.value = reader.buffer()
    elif op in (Op.CHECK_WATCHES, Op.REMOVE_WATCHES, Op.ADD_WATCH):
        request.path, request.flags = reader.string(), reader.int32()
