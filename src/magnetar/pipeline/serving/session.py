"""A client's connection after its start: statements, portals, transactions, and errors that skip to the next Sync.

What a transaction writes is sent by its COMMIT. At REPEATABLE READ all statements of one read the epoch of its first. Work of the engine
runs in threads; this class runs in the event loop and has one thing under way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from magnetar.pipeline.serving.definitions import Definitions
from magnetar.pipeline.serving.engine import Column, Engine
from magnetar.pipeline.serving.reader import Snapshot
from magnetar.pipeline.serving.row_sender import RowSender
from magnetar.pipeline.serving.rows import FixedRows, Portal, Prepared, QueryRows, Returned, Rows, fields_of, formats_of
from magnetar.pipeline.serving.session_settings import SessionSettings
from magnetar.pipeline.serving.session_writes import SessionWrites
from magnetar.pipeline.serving.shows import described, shown
from magnetar.pipeline.serving.sql import commands
from magnetar.pipeline.serving.sql.commands import Command
from magnetar.pipeline.serving.sql.table_as import TableAs, table_as
from magnetar.pipeline.serving.sql.translate import Context, Query, QueryError, statements
from magnetar.pipeline.serving.subscription import Feed, SubscriptionRows
from magnetar.pipeline.serving.wire import messages
from magnetar.pipeline.serving.wire.messages import ProtocolError
from magnetar.pipeline.serving.wire.values import BadValueError, decode_parameter

PREPARED_MAX: Final = 1000
"""Prepared statements, and open portals, of a connection; one more is refused with 53400."""

INTERRUPT_AGAIN_S: Final = 0.05

IDLE, IN_TRANSACTION, FAILED = "I", "T", "E"

T = TypeVar("T")

SendBytes = Callable[[bytes], None]


class Session:
    """`write` puts bytes into the connection, `drain` waits until the client has read enough of them. `waiting`: threads that may wait for
    changes."""

    def __init__(
        self,
        engine: Engine,
        feed: Feed,
        pool: Executor,
        waiting: Executor,
        user: str,
        write: SendBytes,
        drain: Callable[[], Awaitable[None]],
        *,
        process: int,
        timeout_s: float,
        writes: SessionWrites,
        definitions: Definitions,
    ) -> None:
        self.engine = engine
        self.settings = SessionSettings(user)
        self.user = user
        self.status = IDLE
        self._feed = feed
        self._pool = pool
        self._waiting = waiting
        self._write = write
        self._drain = drain
        self._sender = RowSender(write, drain, self._in_thread)
        self._process = process
        self._timeout_s = timeout_s
        self._prepared: dict[str, Prepared] = {}
        self._portals: dict[str, Portal] = {}
        self._skipping = False
        self._repeatable = False
        self._snapshot: Snapshot | None = None
        self._running: Rows | None = None
        self._cancelled = False
        self._busy = False
        self._writes = writes
        self._definitions = definitions
        self._read_only = False

    # ---- Messages

    async def message(self, kind: bytes, body: bytes) -> bool:
        """One message of the client; False after Terminate. Raises ProtocolError."""
        if kind == b"X":
            return False
        if kind == b"S":
            self._skipping = False
            await self._sync()
            return True
        if self._skipping:
            return True
        self._busy, self._cancelled = True, False
        try:
            await self._handle(kind, body)
        except QueryError as error:
            await self._failed(error)
            if kind == b"Q":
                await self._sync()
            else:
                self._skipping = True
        finally:
            self._busy = False
        return True

    async def _handle(self, kind: bytes, body: bytes) -> None:
        reader = messages.Reader(body)
        match kind:
            case b"Q":
                await self._simple(reader.text())
            case b"P":
                await self._parse(messages.read_parse(body))
            case b"B":
                await self._bind(messages.read_bind(body))
            case b"D":
                await self._describe(reader.byte(), reader.text())
            case b"E":
                await self._execute(reader.text(), reader.int32())
            case b"C":
                await self._close(reader.byte(), reader.text())
            case b"H":
                await self._drain()
            case b"d" | b"c" | b"f":
                pass  # of a COPY that was refused
            case b"F":
                raise QueryError("0A000", "function calls are not supported")
            case _:
                raise ProtocolError(f"unknown message type {kind!r}")

    async def _sync(self) -> None:
        if self.status == IDLE:
            await self._drop_portals(all_of_them=True)
        self._write(messages.ready(self.status))
        await self._drain()

    async def _failed(self, error: QueryError) -> None:
        self._write(messages.error(error.code, error.text, hint=error.hint, position=error.position))
        if self.status == IN_TRANSACTION:
            self.status = FAILED

    def cancel(self) -> None:
        """What runs now ends with 57014."""
        if self._busy:
            self._cancelled = True
            running = self._running
            if running is not None:
                self._interrupt(running)

    def _interrupt(self, running: Rows) -> None:
        """Until its thread is free: an interrupt that comes before the engine has begun is lost."""
        if self._cancelled and self._running is running:
            with contextlib.suppress(Exception):
                running.cancel()
            asyncio.get_running_loop().call_later(INTERRUPT_AGAIN_S, self._interrupt, running)

    async def close(self) -> None:
        """The client is gone."""
        await self._drop_portals(all_of_them=True)
        asyncio.get_running_loop().run_in_executor(None, self._writes.close)  # nobody waits for a broker to hear of it
        self._snapshot = None

    # ---- The simple protocol

    async def _simple(self, text: str) -> None:
        parts = statements(text)
        if not parts:
            self._write(messages.EMPTY_QUERY)
        for part in parts:
            prepared = await self._prepare(part, ())
            if prepared.types:
                raise QueryError("42P02", "there is no parameter $1; parameters need the extended protocol")
            portal = Portal(prepared, {}, ())
            try:
                await self._open(portal)
                await self._write_first(portal)
                if portal.rows is not None and prepared.command.kind not in ("copy", "copy_table"):
                    formats = formats_of(portal.rows.columns, ())
                    self._write(messages.row_description(fields_of(portal.rows.columns), formats))
                await self._run(portal, 0)
            finally:
                if not portal.held:
                    await self._drop(portal)
        await self._sync()

    # ---- The extended protocol

    async def _parse(self, parse: messages.Parse) -> None:
        parts = statements(parse.sql)
        if len(parts) > 1:
            raise QueryError("42601", "cannot insert multiple commands into a prepared statement")
        if parse.name and parse.name in self._prepared:
            raise QueryError("42P05", f'prepared statement "{parse.name}" already exists')
        if len(self._prepared) >= PREPARED_MAX:
            raise QueryError("53400", f"a connection has at most {PREPARED_MAX} prepared statements; close some")
        self._prepared[parse.name] = await self._prepare(parts[0] if parts else "", parse.types)
        self._write(messages.PARSE_COMPLETE)

    async def _bind(self, bind: messages.Bind) -> None:
        prepared = self._prepared.get(bind.statement)
        if prepared is None:
            raise QueryError("26000", f'prepared statement "{bind.statement}" does not exist')
        if bind.portal and bind.portal in self._portals:
            raise QueryError("42P03", f'cursor "{bind.portal}" already exists')
        if len(bind.values) != len(prepared.types):
            raise QueryError(
                "08P01",
                f"bind message supplies {len(bind.values)} parameters, but the statement requires {len(prepared.types)}",
            )
        codes = bind.formats if len(bind.formats) != 1 else bind.formats * len(bind.values)
        values = {}
        for at, (value, oid) in enumerate(zip(bind.values, prepared.types, strict=True)):
            try:
                values[at + 1] = decode_parameter(value, oid, bool(codes) and codes[at] == 1)
            except BadValueError as error:
                raise QueryError("22P02", f"${at + 1}: {error}") from error
        before = self._portals.pop(bind.portal, None)
        if before is not None:
            await self._drop(before)
        if len(self._portals) >= PREPARED_MAX:
            raise QueryError("53400", f"a connection has at most {PREPARED_MAX} portals; close some")
        portal = Portal(prepared, values, bind.result_formats)
        if prepared.command.kind not in ("fetch", "declare"):
            await self._open(portal)
        self._portals[bind.portal] = portal
        self._write(messages.BIND_COMPLETE)

    async def _describe(self, what: str, name: str) -> None:
        if what == "S":
            prepared = self._prepared.get(name)
            if prepared is None:
                raise QueryError("26000", f'prepared statement "{name}" does not exist')
            self._write(messages.parameter_description(prepared.types))
            columns = await self._columns_of(prepared)
            formats: Sequence[int] = ()
        else:
            portal = self._portal(name)
            columns = portal.rows.columns if portal.rows is not None else await self._columns_of(portal.prepared)
            formats = portal.formats
        if columns is None:
            self._write(messages.NO_DATA)
        else:
            self._write(messages.row_description(fields_of(columns), formats_of(columns, formats)))

    async def _execute(self, name: str, most: int) -> None:
        portal = self._portal(name)
        if portal.rows is None:
            await self._open(portal)
            await self._write_first(portal)
        await self._run(portal, max(most, 0))

    async def _close(self, what: str, name: str) -> None:
        if what == "S":
            self._prepared.pop(name, None)
        else:
            portal = self._portals.pop(name, None)
            if portal is not None:
                await self._drop(portal)
        self._write(messages.CLOSE_COMPLETE)

    def _portal(self, name: str) -> Portal:
        portal = self._portals.get(name)
        if portal is None:
            raise QueryError("34000", f'portal "{name}" does not exist')
        return portal

    # ---- Statements

    async def _prepare(self, text: str, types: Sequence[int]) -> Prepared:
        command = commands.read(text)
        self._check_transaction(command)
        if command.kind == "write":
            write, query = await self._in_thread(lambda: self._writes.prepare(command.text, self._context(), types))
            return Prepared(command, query, tuple(kind.oid for kind in query.types), write=write)
        inner = {"query": command.text, "declare": command.inner, "copy": command.inner, "explain": command.inner}.get(
            command.kind
        )
        if command.kind == "copy_table":
            inner = f'SELECT * FROM "{command.name.replace(chr(34), chr(34) * 2)}"'
        if not inner or commands.read(inner).kind == "subscribe":
            return Prepared(command, None, ())
        query = await self._in_thread(lambda: self.engine.translate(inner, self._context(), types))
        return Prepared(command, query, tuple(kind.oid for kind in query.types))

    def _check_transaction(self, command: Command) -> None:
        if self.status == FAILED and command.kind not in ("rollback", "commit", "rollback_to"):
            raise QueryError("25P02", "current transaction is aborted, commands ignored until end of transaction block")

    def _context(self) -> Context:
        values = {**self.settings.values, "pid": str(self._process)}
        return Context(self.user, self.engine.database, values, self._process)

    async def _columns_of(self, prepared: Prepared) -> tuple[Column, ...] | None:
        kind, name = prepared.command.kind, prepared.command.name
        if kind == "query" and prepared.query is not None:
            if prepared.columns is None:
                query = prepared.query
                prepared.columns = await self._in_thread(
                    lambda: self.engine.describe(query, self.engine.snapshot(query.epoch))
                )
            return prepared.columns
        write = prepared.write
        if write is not None and write.returns and prepared.query is not None:
            query = prepared.query
            columns = await self._in_thread(lambda: self.engine.describe(query, self.engine.snapshot()))
            return columns[len(write.names) :]
        if kind == "fetch" and prepared.command.options["word"] != "MOVE":
            rows = self._portal(name).rows
            return rows.columns if rows is not None else None
        if kind in ("show", "describe", "explain"):
            rows = await self._fixed(prepared)
            return rows.columns
        if kind == "subscribe":
            return self._feed.columns(name)
        return None

    async def _open(self, portal: Portal) -> None:
        """Make the rows of a statement that has some; nothing is sent."""
        prepared, command = portal.prepared, portal.prepared.command
        if command.kind in ("query", "copy", "copy_table") and prepared.query is not None:
            portal.rows = await self._query(prepared.query, portal.values)
        elif command.kind in ("show", "describe", "explain"):
            portal.rows = await self._fixed(prepared)
        elif command.kind in ("subscribe", "copy"):
            portal.rows = await self._subscription(
                command if command.kind == "subscribe" else commands.read(command.inner)
            )
        elif command.kind == "fetch" and command.options["word"] != "MOVE":
            portal.rows = self._portal(command.name).rows

    async def _subscription(self, command: Command) -> Rows:
        options = commands.with_options(command.options.get("rest", ""))
        return await self._in_thread(lambda: SubscriptionRows(self._feed, command.name, options, since=command.count))

    async def _query(self, query: Query, values: dict[int, Any]) -> Rows:
        snapshot = await self._in_thread(lambda: self._snapshot_for(query))
        return QueryRows(await self._in_thread(lambda: self.engine.run(query, values, snapshot)))

    def _snapshot_for(self, query: Query) -> Snapshot:
        if query.epoch is not None or not self._repeatable:
            return self.engine.snapshot(query.epoch)
        if self._snapshot is None:
            self._snapshot = self.engine.snapshot()
        return self._snapshot

    async def _fixed(self, prepared: Prepared) -> Rows:
        command, query = prepared.command, prepared.query
        if command.kind == "show":
            return await self._in_thread(lambda: shown(command.options["rest"], self.settings, self.engine))
        if command.kind == "describe":
            return await self._in_thread(lambda: described(command.name, self.engine))
        if query is None:
            raise QueryError("0A000", "EXPLAIN takes a query")
        lines = await self._in_thread(lambda: self.engine.explain(query, self.engine.snapshot(query.epoch)))
        return FixedRows(["QUERY PLAN"], [[line] for line in lines])

    async def _run(self, portal: Portal, most: int) -> None:
        """Send the rows, or do what the command says, and tell the client that it is done."""
        command = portal.prepared.command
        self._check_transaction(command)
        if command.kind == "query" and not command.text:
            self._write(messages.EMPTY_QUERY)
        elif command.kind in ("copy", "copy_table"):
            assert portal.rows is not None
            await self._sender.copy(portal.rows, command.options.get("rest", "").lower())
        elif command.kind == "fetch":
            source = self._portal(command.name)
            if source.rows is None:
                raise QueryError("34000", f'cursor "{command.name}" has no rows')
            await self._sender.fetch(source.rows, command, portal.formats)
        elif portal.rows is not None:
            sent, more = await self._sender.send(portal.rows, most, portal.formats)
            portal.done += sent
            if more:
                self._write(messages.PORTAL_SUSPENDED)
            else:
                tag = "SELECT" if command.kind in ("query", "subscribe") else portal.tag or commands.tag_of(command)
                self._write(messages.command_complete(f"{tag} {portal.done}" if tag == "SELECT" else tag))
        else:
            await self._command(portal, command)

    async def _command(self, portal: Portal, command: Command) -> None:
        """What has no rows."""
        tag = commands.tag_of(command)
        match command.kind:
            case "begin":
                self._begin(command.options.get("rest", ""))
            case "commit" | "rollback":
                tag = "ROLLBACK" if self.status == FAILED or command.kind == "rollback" else "COMMIT"
                self.status, self._repeatable, self._snapshot, self._read_only = IDLE, False, None, False
                await self._drop_portals(all_of_them=False)
                if tag == "COMMIT":
                    await self._to_the_end(self._writes.commit)
                    await self._flush_if_wanted()
                self._writes.rollback()
            case "rollback_to":
                if self.status == IDLE:
                    raise QueryError("25P01", "ROLLBACK TO SAVEPOINT can only be used in transaction blocks")
                self._writes.rollback_to(command.name)
                self.status, tag = IN_TRANSACTION, "ROLLBACK"
            case "savepoint" | "release":
                if self.status == IDLE:
                    raise QueryError("25P01", f"{tag} can only be used in transaction blocks")
                if command.kind == "savepoint":
                    self._writes.savepoint(command.name)
                else:
                    self._writes.release(command.name)
            case "write":
                tag = await self._written(portal)
            case "define":
                tag = await self._define(command.text)
            case "flush":
                await self._flush()
            case "set" | "set_names" | "set_zone":
                self._set(command)
            case "set_transaction":
                self._repeatable = _is_repeatable(command.options["rest"]) and self.status != IDLE
            case "reset":
                self.settings.reset(command.name)
            case "declare":
                await self._declare(portal, command)
                tag = "DECLARE CURSOR"
            case "close":
                if command.name == "all":
                    await self._drop_portals(all_of_them=True)
                else:
                    await self._drop(self._portal(command.name))
                    del self._portals[command.name]
                tag = "CLOSE CURSOR"
            case "discard":
                self._prepared.clear()
                await self._drop_portals(all_of_them=True)
                self.settings.reset("all")
                tag = command.text.upper()
            case "deallocate":
                if command.name == "all":
                    self._prepared.clear()
                elif self._prepared.pop(command.name, None) is None:
                    raise QueryError("26000", f'prepared statement "{command.name}" does not exist')
        self._write(messages.command_complete(tag))

    async def _write_first(self, portal: Portal) -> None:
        """Of a statement with RETURNING: its rows are sent when they are written."""
        if portal.prepared.write is not None and portal.prepared.write.returns and portal.rows is None:
            self._check_transaction(portal.prepared.command)
            portal.tag = await self._written(portal)

    async def _written(self, portal: Portal) -> str:
        """Do what INSERT, UPDATE or DELETE says, or within a transaction keep it for COMMIT. The tag."""
        write, query = portal.prepared.write, portal.prepared.query
        assert write is not None
        assert query is not None
        if self._read_only or self.settings.values["default_transaction_read_only"] not in ("off", "false", "no", "0"):
            raise QueryError("25006", f"cannot execute {write.verb} in a read-only transaction")
        snapshot = await self._in_thread(lambda: self._snapshot_for(query))
        rows = QueryRows(await self._in_thread(lambda: self._writes.open(query, portal.values, snapshot)))
        try:
            changes, returned = await self._in_thread(lambda: self._writes.collect(write, rows.result), rows)
        finally:
            await asyncio.get_running_loop().run_in_executor(self._pool, rows.close)
        if self.status == IN_TRANSACTION:
            self._writes.keep(write, changes)
        else:
            await self._to_the_end(lambda: self._writes.send(write.table, changes))
            await self._flush_if_wanted()
        if write.returns:
            portal.rows = QueryRows(Returned(rows.columns[len(write.names) :], returned))
        return write.tag(len(changes))

    async def _define(self, text: str) -> str:
        """The tag. Raises QueryError."""
        if self.status != IDLE:
            raise QueryError(
                "25001",
                f"{text.split()[0].upper()} cannot run inside a transaction block",
                "it is done by an epoch of the pipeline, which no ROLLBACK takes back; use autocommit",
            )
        made = table_as(text)
        change = self._definitions.change
        return await (self._define_as(made) if made else change(text, lambda: self._cancelled, self._limit_s))

    async def _define_as(self, made: TableAs) -> str:
        """CREATE TABLE ... AS: the table, then the rows that the query has now. Raises QueryError."""
        columns = await self._columns_of(await self._prepare(made.query, ())) or ()
        number = self.engine.snapshot().manifest.number
        tag = await self._definitions.change(made.definition(columns), lambda: self._cancelled, self._limit_s)
        if self.engine.snapshot().manifest.number == number:  # it was there already
            return tag
        tag = await self._written(Portal(await self._prepare(made.insertion(), ()), {}, ()))
        return tag.replace("INSERT 0", "SELECT")

    async def _to_the_end(self, work: Callable[[], None]) -> None:
        """What is not cancelled, since the client is to know that it is done. Raises QueryError."""
        await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _flush_if_wanted(self) -> None:
        if self.settings.values["implicit_flush"].lower() in ("on", "true", "yes", "1"):
            await self._flush()

    async def _flush(self) -> None:
        """Until what this server has written is readable. Raises QueryError."""
        await self._writes.flush(lambda: self._cancelled, self._limit_s)

    @property
    def _limit_s(self) -> float:
        """Of a statement."""
        return min(self.settings.statement_timeout_s or self._timeout_s, self._timeout_s)

    def _begin(self, rest: str) -> None:
        if self.status == IN_TRANSACTION:
            self._write(messages.notice("there is already a transaction in progress", "25001"))
        self.status = IN_TRANSACTION
        self._read_only = "read only" in rest.lower()
        self._repeatable = _is_repeatable(rest) or _is_repeatable(self.settings.values["default_transaction_isolation"])

    def _set(self, command: Command) -> None:
        name = {"set_names": "client_encoding", "set_zone": "timezone"}.get(command.kind, command.name)
        remark = self.settings.set(name, commands.plain_value(command.options["value"]))
        if remark:
            self._write(messages.notice(remark))
        if name == "application_name":
            self._write(messages.parameter_status(name, self.settings.show(name)))

    async def _declare(self, portal: Portal, command: Command) -> None:
        if self.status == IDLE and "hold" not in command.text.lower():
            raise QueryError(
                "25P01", "DECLARE CURSOR can only be used in transaction blocks", "write BEGIN first, or WITH HOLD"
            )
        if command.name in self._portals:
            raise QueryError("42P03", f'cursor "{command.name}" already exists')
        if portal.prepared.query is not None:
            rows = await self._query(portal.prepared.query, portal.values)
        else:
            rows = await self._subscription(commands.read(command.inner))
        self._portals[command.name] = Portal(portal.prepared, portal.values, (), rows, held=True)

    # ---- Work in threads, cancel, the end of portals

    async def _in_thread(self, work: Callable[[], T], running: Rows | None = None) -> T:
        """Raises QueryError: of the work, 57014 when the client cancels it or the time is over."""
        loop = asyncio.get_running_loop()
        limit_s = self._limit_s
        self._running, timed_out = running, False

        def expire() -> None:
            nonlocal timed_out
            timed_out = True
            self.cancel()

        waits = isinstance(running, SubscriptionRows)  # it waits for changes as long as it takes
        timer = None if waits else loop.call_later(limit_s, expire)
        try:
            if self._cancelled:
                raise QueryError("57014", "canceling statement due to user request")
            found = await loop.run_in_executor(self._waiting if waits else self._pool, work)
            if self._cancelled:
                raise QueryError("57014", "canceling statement due to user request")
            return found
        except QueryError as error:
            if timed_out and error.code == "57014":
                raise QueryError("57014", f"canceling statement due to statement timeout ({limit_s:g} s)") from error
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._running = None

    async def _drop_portals(self, *, all_of_them: bool) -> None:
        for name, portal in list(self._portals.items()):
            if all_of_them and portal.held and "hold" in portal.prepared.command.text.lower() and self.status == IDLE:
                continue
            if not all_of_them and portal.held and "hold" in portal.prepared.command.text.lower():
                continue
            del self._portals[name]
            await self._drop(portal)

    async def _drop(self, portal: Portal) -> None:
        rows, portal.rows = portal.rows, None
        if rows is not None and portal.prepared.command.kind != "fetch":
            await asyncio.get_running_loop().run_in_executor(self._pool, rows.close)


def _is_repeatable(text: str) -> bool:
    return "repeatable read" in text.lower() or "serializable" in text.lower()
