"""Requests carried out on the tree, on the thread that owns it: a batch of them is one transaction and one fsync."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.base.errors import BadVersionError, InvalidArgumentError, MagnetarError, NodeNotFoundError
from magnetar.metadata.errors import EphemeralParentError, NodeExistsError, NodeHasChildrenError
from magnetar.metadata.server.jute import (
    Code,
    Op,
    pack_buffer,
    pack_int,
    pack_multi_header,
    pack_open_acl,
    pack_stat,
    pack_string,
)
from magnetar.metadata.server.requests import Request
from magnetar.metadata.server.watches import CHILDREN_CHANGED, Kind
from magnetar.metadata.sqlite_tree import Change, SqliteTree
from magnetar.metadata.store import Stat, check_path

EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2
CONTAINER: Final = 4
"""A flag value of its own. Containers are kept as nodes that stay: nobody deletes them when they become empty."""

_CREATIONS: Final = (Op.CREATE, Op.CREATE_2, Op.CREATE_CONTAINER)
_CODES: Final = (
    (NodeExistsError, Code.NODE_EXISTS),
    (BadVersionError, Code.BAD_VERSION),
    (NodeNotFoundError, Code.NO_NODE),
    (NodeHasChildrenError, Code.NOT_EMPTY),
    (EphemeralParentError, Code.NO_CHILDREN_FOR_EPHEMERALS),
    (InvalidArgumentError, Code.BAD_ARGUMENTS),
)


@dataclass(slots=True)
class Outcome:
    """What became of one request."""

    zxid: int = 0
    error: int = Code.OK
    body: bytes = b""
    changes: list[tuple[Change, str]] = field(default_factory=list)
    watches: list[tuple[Kind, str]] = field(default_factory=list)
    """To be set for the connection that asked."""
    missed: list[tuple[int, str]] = field(default_factory=list)
    """Events to be told to it at once: they happened while it was away."""


class Refusal(Exception):
    """A request that fails with a code and changes nothing."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


Work = Callable[[SqliteTree, Outcome], None]
"""One piece of work of a batch. Raises Refusal or one of the store's errors; has then changed nothing."""


def apply_batch(tree: SqliteTree, batch: list[Work]) -> list[Outcome]:
    """One transaction; durable when it returns. Raises sqlite3.Error, after which nothing of the batch has happened. Blocks."""
    outcomes: list[Outcome] = []
    before = tree.zxid
    tree.begin()
    try:
        for work in batch:
            outcome = Outcome()
            try:
                work(tree, outcome)
            except Refusal as refusal:
                outcome.error = refusal.code
            except MagnetarError as error:
                outcome.error = code_of(error)
            outcome.zxid = tree.zxid
            outcome.changes, tree.changes = tree.changes, []
            outcomes.append(outcome)
        if tree.zxid == before:
            tree.rollback()  # only reads: nothing to make durable
        else:
            tree.commit()
    except BaseException:
        tree.rollback()
        raise
    return outcomes


def work_of(request: Request, session_id: int) -> Work:
    """What a client's request does."""
    return lambda tree, outcome: _run(tree, outcome, request, session_id)


def code_of(error: MagnetarError) -> Code:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    raise error


def _run(tree: SqliteTree, outcome: Outcome, request: Request, session_id: int) -> None:
    op, path = request.op, request.path
    if op == Op.MULTI:
        _multi(tree, outcome, request, session_id)
    elif op in (Op.SET_WATCHES, Op.SET_WATCHES_2):
        _set_watches(tree, outcome, request)
    elif op in (*_CREATIONS, Op.DELETE, Op.SET_DATA, Op.CHECK):
        outcome.body = _change(tree, request, session_id)
    elif op == Op.GET_DATA:
        check_path(path)
        found = tree.get(path)
        if found is None:
            raise Refusal(Code.NO_NODE)
        outcome.body = pack_buffer(found[0]) + pack_stat(found[1])
        _watch(outcome, request, Kind.DATA)
    elif op == Op.EXISTS:
        check_path(path)
        _watch(outcome, request, Kind.DATA)  # also of a node that does not exist: it may come
        outcome.body = pack_stat(_stat(tree, path))
    elif op in (Op.GET_CHILDREN, Op.GET_CHILDREN_2):
        stat = _stat(tree, path)
        count, names = tree.packed_children(path)
        outcome.body = pack_int(count) + names + (pack_stat(stat) if op == Op.GET_CHILDREN_2 else b"")
        _watch(outcome, request, Kind.CHILDREN)
    elif op == Op.GET_ACL:
        outcome.body = pack_open_acl() + pack_stat(_stat(tree, path))
    elif op == Op.SET_ACL:
        outcome.body = pack_stat(_stat(tree, path))
    elif op == Op.SYNC:
        outcome.body = pack_string(path)
    elif op == Op.ADD_WATCH:
        check_path(path)
        outcome.body = pack_int(0)
        outcome.watches.append((Kind.RECURSIVE if request.flags == 1 else Kind.PERSISTENT, path))
    else:
        raise Refusal(Code.UNIMPLEMENTED)


def _stat(tree: SqliteTree, path: str) -> Stat:
    check_path(path)
    stat = tree.stat(path)
    if stat is None:
        raise Refusal(Code.NO_NODE)
    return stat


def _watch(outcome: Outcome, request: Request, kind: Kind) -> None:
    if request.watch:
        outcome.watches.append((kind, request.path))


def _change(tree: SqliteTree, request: Request, session_id: int) -> bytes:
    """The reply's body."""
    op, path = request.op, request.path
    version = None if request.version == -1 else request.version
    if op in _CREATIONS:
        return _create(tree, request, session_id)
    check_path(path)
    if op == Op.DELETE:
        if path == "/":
            raise Refusal(Code.BAD_ARGUMENTS)
        tree.delete(path, version)
        return b""
    if op == Op.CHECK:
        tree.check(path, version)
        return b""
    tree.set(path, request.value, version)
    return pack_stat(_stat(tree, path))


def _create(tree: SqliteTree, request: Request, session_id: int) -> bytes:
    if request.flags not in (0, EPHEMERAL, SEQUENTIAL, EPHEMERAL | SEQUENTIAL, CONTAINER):
        raise Refusal(Code.UNIMPLEMENTED)
    sequential = request.flags in (SEQUENTIAL, EPHEMERAL | SEQUENTIAL)
    # a sequential name may be nothing but its number: "/queue/" becomes "/queue/0000000000"
    check_path(request.path + "0" if sequential else request.path)
    if request.path == "/":
        raise Refusal(Code.NODE_EXISTS)
    owner = session_id if request.flags in (EPHEMERAL, EPHEMERAL | SEQUENTIAL) else 0
    path = tree.create(request.path, request.value, owner, sequential)
    body = pack_string(path)
    return body if request.op == Op.CREATE else body + pack_stat(_stat(tree, path))


def _multi(tree: SqliteTree, outcome: Outcome, request: Request, session_id: int) -> None:
    """All or nothing: after a failure the tree is as before, and the answer says which operation failed."""
    results: list[bytes] = []
    begun = tree.begin_part()
    failed: Code | None = None
    for part in request.parts:
        try:
            body = _change(tree, part, session_id)
        except Refusal as refusal:
            failed = refusal.code
        except MagnetarError as error:
            failed = code_of(error)
        if failed is not None:
            break
        results.append(pack_multi_header(part.op, False, 0) + body)
    if failed is not None:
        tree.undo_part(begun)
        codes = [Code.OK] * len(results) + [failed]
        codes += [Code.RUNTIME_INCONSISTENCY] * (len(request.parts) - len(codes))
        results = [pack_multi_header(Op.ERROR, False, code) + pack_int(code) for code in codes]
    tree.end_part()
    outcome.body = b"".join(results) + pack_multi_header(Op.ERROR, True, -1)


def _set_watches(tree: SqliteTree, outcome: Outcome, request: Request) -> None:
    """A client is back: what it watches is watched again, unless it has happened already."""
    data, exist, children, *persistent = request.watched
    for path in data:
        stat = tree.stat(path)
        if stat is None:
            outcome.missed.append((Change.DELETED, path))
        elif stat.mzxid > request.zxid:
            outcome.missed.append((Change.WRITTEN, path))
        else:
            outcome.watches.append((Kind.DATA, path))
    for path in exist:
        if tree.stat(path) is not None:
            outcome.missed.append((Change.CREATED, path))
        else:
            outcome.watches.append((Kind.DATA, path))
    for path in children:
        stat = tree.stat(path)
        if stat is None:
            outcome.missed.append((Change.DELETED, path))
        elif stat.pzxid > request.zxid:
            outcome.missed.append((CHILDREN_CHANGED, path))
        else:
            outcome.watches.append((Kind.CHILDREN, path))
    for kind, paths in zip((Kind.PERSISTENT, Kind.RECURSIVE), persistent, strict=False):
        outcome.watches.extend((kind, path) for path in paths)
