"""Queries over HTTP, beside PostgreSQL's protocol: `GET` or `POST /sql/PIPELINE`, answered as JSON or as Arrow's stream format.

The same roles, views, bounds and refusals as over PostgreSQL's port. Rows are sent as they are read: what fails behind the first of them
ends the connection, so that an answer is whole or visibly cut.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from starlette.requests import Request

from magnetar.admin.http.connection import CERTIFICATE, CLIENT_LEFT
from magnetar.admin.http.guard import is_of_foreign_page
from magnetar.pipeline.serving.engine import Engine, Result
from magnetar.pipeline.serving.server import AccessRefused, Served
from magnetar.pipeline.serving.sql.catalog_rows import sql_name
from magnetar.pipeline.serving.sql.translate import SQL_BYTES_MAX, Context, QueryError

ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final = "application/json"

WORKERS: Final = 4
"""Threads that run queries of HTTP clients; further ones wait."""

LOOK_S: Final = 0.05
"""Between two looks at whether the client still waits."""

_STATUS: Final = {"42501": 403, "57014": 503, "53200": 503, "58000": 500, "XX001": 500}
"""Of SQLSTATEs; the others are 400."""

T = TypeVar("T")
Send = Callable[[dict[str, Any]], Awaitable[None]]


class HttpGate(Protocol):
    """Who asks."""

    def by_headers(self, authorization: str, certificate: Mapping[str, Any] | None, client: str, scheme: str) -> str:
        """The role. Raises AccessRefused."""
        ...

    def may_read(self, role: str, pipeline: str) -> bool: ...


class Refused(Exception):
    """The request is answered by this status and a document with the reason, instead of rows."""

    def __init__(self, status: int, reason: str, **more: object) -> None:
        super().__init__(reason)
        self.status = status
        self.document = {"reason": reason, **{name: value for name, value in more.items() if value}}


class SqlOverHttp:
    """An ASGI application. `timeout_s`: of a statement, from the request to its last row."""

    def __init__(self, served: Mapping[str, Served], gate: HttpGate, timeout_s: float) -> None:
        self._served = served
        self._gate = gate
        self._timeout_s = timeout_s
        self._pool: Executor = ThreadPoolExecutor(WORKERS, "http-query")
        self._statements: set[Statement] = set()

    async def stop(self) -> None:
        """What still runs is cancelled."""
        for statement in list(self._statements):
            await statement.end()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        request = Request(scope, receive)
        try:
            if request.url.path == "/healthz":
                await _answer(send, 200, {"ok": True})
                return
            await self._asked(request, send)
        except Refused as refused:
            await _answer(send, refused.status, refused.document)
        except QueryError as error:
            status = _STATUS.get(error.code, 400)
            await _answer(
                send, status, {"reason": error.text, "code": error.code, **({"hint": error.hint} if error.hint else {})}
            )

    async def _asked(self, request: Request, send: Send) -> None:
        _, _, rest = request.url.path.partition("/sql/")
        if not request.url.path.startswith("/sql/") or not rest or "/" in rest:
            raise Refused(404, "ask for /sql/PIPELINE, with the query as ?query= or as the body of a POST")
        if request.method not in ("GET", "POST"):
            raise Refused(405, "GET and POST are answered")
        if is_of_foreign_page(request.headers):
            raise Refused(403, "queries are not taken from pages of other sites")
        role, served = await self._let_in(request, rest)
        text = request.query_params.get("query", "") if request.method == "GET" else await _body(request)
        if not text.strip():
            raise Refused(400, "the query is missing: send it as ?query= or as the body of a POST")
        statement = Statement(served.engine, text, role, self._pool, self._timeout_s, request.state._state[CLIENT_LEFT])
        self._statements.add(statement)
        try:
            await statement.answer(send, as_arrow=ARROW in request.headers.get("accept", ""))
        finally:
            await statement.end()
            self._statements.discard(statement)

    async def _let_in(self, request: Request, pipeline: str) -> tuple[str, Served]:
        certificate = request.state._state.get(CERTIFICATE)
        authorization, client = request.headers.get("authorization", ""), request.client.host if request.client else ""
        loop = asyncio.get_running_loop()
        try:
            role = await loop.run_in_executor(
                None, self._gate.by_headers, authorization, certificate, client, request.url.scheme
            )
        except AccessRefused as error:
            raise Refused(401, str(error)) from error
        served = self._served.get(pipeline)
        if served is None or not self._gate.may_read(role, pipeline):
            # the status says as little as the text: who may not read a pipeline does not learn whether it is served
            status = 404 if self._gate.may_read(role, pipeline) else 403
            raise Refused(status, f"{role or 'nobody'} may not read {pipeline}, or it is not served")
        return role, served


class Statement:
    """One query, from its text to its last row. `left`: whether the client has gone."""

    def __init__(
        self, engine: Engine, text: str, role: str, pool: Executor, timeout_s: float, left: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._text = text
        self._role = role
        self._pool = pool
        self._timeout_s = timeout_s
        self._left = left
        self._result: Result | None = None
        self._ended = ""
        self._working = threading.Lock()

    async def answer(self, send: Send, *, as_arrow: bool) -> None:
        """Raises QueryError before the first byte of the answer."""
        watcher = asyncio.get_running_loop().create_task(self._watch())
        try:
            result = await self._in_thread(self._open)
            parts = self._parts(result, as_arrow=as_arrow)
            first = await anext(parts)
            head = [
                (b"content-type", (ARROW if as_arrow else JSON).encode()),
                (b"cache-control", b"no-store"),
                (b"x-magnetar-epoch", str(result.epoch).encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except QueryError:
                return  # the answer stays without its end, which the client sees
            await send({"type": "http.response.body", "body": b""})
        finally:
            watcher.cancel()

    async def end(self) -> None:
        """Whatever it is at: its thread is free afterwards. An interrupt that comes before the engine begins is lost, hence several."""
        self._ended = self._ended or "the server ends"
        while self._working.locked():
            if self._result is not None:
                self._result.cancel()
            await asyncio.sleep(LOOK_S)
        result, self._result = self._result, None
        if result is not None:
            await asyncio.get_running_loop().run_in_executor(None, result.close)

    async def _watch(self) -> None:
        """Cancels the query when its time is over or nobody waits for it."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeout_s
        while not self._ended:
            await asyncio.sleep(LOOK_S)
            if self._left():
                self._ended = "the client has gone"
            elif loop.time() > until_s:
                self._ended = f"canceling statement due to statement timeout ({self._timeout_s:g} s)"
        while True:
            if self._result is not None and self._working.locked():
                self._result.cancel()
            await asyncio.sleep(LOOK_S)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def working() -> T:
            with self._working:
                if self._ended:
                    raise QueryError("57014", self._ended)
                return work()

        try:
            found = await asyncio.get_running_loop().run_in_executor(self._pool, working)
        except QueryError as error:
            if self._ended and error.code == "57014":
                raise QueryError("57014", self._ended) from error
            raise
        if self._ended:
            raise QueryError("57014", self._ended)
        return found

    def _open(self) -> Result:
        engine = self._engine
        query = engine.translate(self._text, Context(self._role, engine.database))
        if query.parameters:
            raise QueryError("42P02", "the query has parameters ($1); write their values into it")
        self._result = engine.run(query, {}, engine.snapshot(query.epoch))
        return self._result

    async def _parts(self, result: Result, *, as_arrow: bool) -> AsyncIterator[bytes]:
        writer = _ArrowParts(result) if as_arrow else _JsonParts(result)
        batches: Iterator[pa.RecordBatch] = iter(result.batches())

        def following() -> bytes | None:
            batch = next(batches, None)
            return None if batch is None else writer.rows(batch)

        def beginning() -> tuple[bytes, bytes | None]:
            return writer.head(), following()

        head, part = await self._in_thread(beginning)
        yield head + (part or b"")  # with the first rows, so that what fails at once is answered as an error
        while part is not None:
            part = await self._in_thread(following)
            if part:
                yield part
        yield writer.end()


class _JsonParts:
    """`{"epoch": n, "columns": [{"name", "type"}], "rows": [[...]]}`."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._any = False

    def head(self) -> bytes:
        columns = [{"name": column.name, "type": sql_name(column.kind)} for column in self._result.columns]
        return f'{{"epoch": {self._result.epoch}, "columns": {json.dumps(columns)}, "rows": ['.encode()

    def rows(self, batch: pa.RecordBatch) -> bytes:
        columns = [[_json(value) for value in column.to_pylist()] for column in batch.columns]
        found = json.dumps(list(zip(*columns, strict=True)), ensure_ascii=False, allow_nan=False)[1:-1]
        before, self._any = (", " if self._any else ""), True
        return (before + found).encode(errors="replace")

    def end(self) -> bytes:
        return b"]}"


class _ArrowParts:
    """The IPC stream of the result's own types."""

    def __init__(self, result: Result) -> None:
        self._names = [column.name for column in result.columns]
        self._result = result
        self._out = io.BytesIO()
        self._writer: Any = None

    def head(self) -> bytes:
        fields = [field.with_name(name) for field, name in zip(self._result.schema(), self._names, strict=True)]
        self._writer = pa.ipc.new_stream(self._out, pa.schema(fields))
        return self._taken()

    def rows(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(batch.rename_columns(self._names))
        return self._taken()

    def end(self) -> bytes:
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        found = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return found


def _json(value: Any) -> Any:
    """Numbers that JSON has no exact form for are texts; bytes as PostgreSQL shows them."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, float) and not isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


async def _body(request: Request) -> str:
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > SQL_BYTES_MAX:
            raise Refused(413, f"the statement is longer than {SQL_BYTES_MAX} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise Refused(400, "the body is not UTF-8") from None


async def _answer(send: Send, status: int, document: Mapping[str, object]) -> None:
    body = json.dumps(document).encode()
    head = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    if status == 401:
        head.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
