"""What lies below the topics, for commands beside a running server: nodes of the metadata tree, entries of ledgers. Nothing is changed."""

from __future__ import annotations

import asyncio
import base64

from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import LedgerEntries, MetadataNode
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.broker.auth.decide import Access
from magnetar.metadata.store import check_path

READ_BYTES_MAX = 1024 * 1024
"""Of payloads in one answer; whoever wants more asks for what comes behind."""


def _path(call: Call) -> str:
    """Raises BadRequestError."""
    path = call.query("path")
    try:
        check_path(path)
    except InvalidArgumentError as error:
        raise BadRequestError(f"path: {error}") from None
    return path


def _missing(path: str) -> NotFoundError:
    return NotFoundError(f"node {path[:200]} does not exist")


@documented(answer=MetadataNode, query={"path": str})
async def node(call: Call) -> Response:
    """A node of the metadata tree: its value in Base64, its versions, times (ms) and sizes."""
    path, store = _path(call), call.broker.metadata
    found, stat = await store.get(path), await store.stat(path)
    if found is None or stat is None:
        raise _missing(path)
    document = {
        "czxid": stat.czxid,
        "mzxid": stat.mzxid,
        "pzxid": stat.pzxid,
        "ctime": stat.ctime_ms,
        "mtime": stat.mtime_ms,
        "version": stat.version,
        "cversion": stat.cversion,
        "aversion": stat.aversion,
        "ephemeralOwner": stat.owner,
        "dataLength": stat.data_length,
        "numChildren": stat.children,
    }
    return as_json({"path": path, "value": base64.b64encode(found.value).decode(), **document})


@documented(answer=list[str], query={"path": str}, heavy=True)
async def children(call: Call) -> Response:
    """Names of the children of a node of the metadata tree."""
    path, store = _path(call), call.broker.metadata
    found = await store.children(path)
    if not found and path != "/" and not await store.exists(path):
        raise _missing(path)
    return as_json(sorted(found))


@documented(answer=LedgerEntries, query={"first": int}, heavy=True)
async def entries(call: Call) -> Response:
    """Entries of a ledger from `first` on, in Base64, as many as fit into one answer. Of an open ledger confirmed ones; none is fenced."""
    ledger_id, first, client = call.number("ledgerId"), call.query_number("first", 0), call.broker.bookkeeper
    try:
        metadata = await client.read_metadata(ledger_id)
        reader = await client.open_ledger(ledger_id, recover=False, password=metadata.password or b"")
    except NoSuchLedgerError:
        raise NotFoundError(f"ledger {ledger_id} does not exist") from None
    last = reader.last_add_confirmed
    payloads = await _read(reader, first, last) if first <= last else []
    rows = [
        {"entryId": first + number, "payload": base64.b64encode(payload).decode()}
        for number, payload in enumerate(payloads)
    ]
    return as_json({"ledgerId": ledger_id, "lastConfirmed": last, "entries": rows})


async def _read(reader: LedgerReader, first: int, last: int) -> list[bytes]:
    """At least one payload."""
    answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None, payloads: list[bytes]) -> None:
        if not answer.done():
            answer.set_result(payloads) if error is None else answer.set_exception(error)

    reader.read(first, last, READ_BYTES_MAX, done)
    return await answer


ROUTES = (
    Route("GET", f"{ADMIN}/metadata/node", Access.SUPERUSER, node),
    Route("GET", f"{ADMIN}/metadata/children", Access.SUPERUSER, children),
    Route("GET", f"{ADMIN}/ledgers/{{ledgerId}}/entries", Access.SUPERUSER, entries),
)
