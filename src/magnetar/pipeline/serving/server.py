"""A server of PostgreSQL's protocol over the views of pipelines: listening, TLS, who a client is, cancel, new epochs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
import struct
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol

from magnetar.base.admission import Share, Ticket
from magnetar.base.errors import MagnetarError, StartupError
from magnetar.base.listen_settings import is_loopback
from magnetar.pipeline.serving.definitions import Definitions
from magnetar.pipeline.serving.engine import MEMORY_MB, THREADS, Engine
from magnetar.pipeline.serving.reader import Views
from magnetar.pipeline.serving.session import Session
from magnetar.pipeline.serving.session_writes import SessionWrites
from magnetar.pipeline.serving.subscription import Feed
from magnetar.pipeline.serving.wire import messages, scram
from magnetar.pipeline.serving.wire.messages import ProtocolError
from magnetar.pipeline.serving.wire.scram import Secret
from magnetar.pipeline.serving.writer import Credential, Writer, basic_credential

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 200
"""Above it a newcomer takes the place of a connection that has not proved who it is, or is refused with 53300."""

CONNECTIONS_PER_ADDRESS_MAX: Final = 100

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a client once it is known; a longer message ends the connection with 08P01."""

MESSAGE_BYTES_BEFORE_MAX: Final = 32 * 1024
"""The same before: room for a token and for parameters of the start."""

START_TIMEOUT_S: Final = 15.0
"""From accept to the first ReadyForQuery."""

TURN_AWAY_TIMEOUT_S: Final = 3.0
"""For a client that finds no place to say how it wants to be told so."""

STATEMENT_TIMEOUT_S: Final = 60.0
"""A statement that takes longer is cancelled, whatever statement_timeout says."""

WORKERS: Final = 4
"""Threads that run queries; further ones wait."""

SUBSCRIPTIONS_MAX: Final = 64
"""Threads that wait for changes; a further subscription waits for one of them to end."""

REFRESH_S: Final = 0.02
"""Between two looks for a new epoch, on local disks."""

REFRESH_BUSY_S: Final = 0.003
"""The same while epochs come: since the last one, for BUSY_S."""

BUSY_S: Final = 1.0

REFRESH_REMOTE_S: Final = 0.5


class AccessRefused(Exception):
    """A client is not let in; the text is for it."""


class Gate(Protocol):
    """Who may connect."""

    @property
    def asks(self) -> bool:
        """Whether clients must show a password or token."""
        ...

    def by_certificate(self, certificate: Mapping[str, Any]) -> str | None:
        """The role of a TLS client certificate, None where certificates are not accepted as credentials."""
        ...

    def by_password(self, user: str, password: bytes) -> str:
        """The role that a password or token proves. Raises AccessRefused."""
        ...

    def scram_secret(self, user: str) -> Secret | None:
        """What the user's SCRAM proof is checked against, made up for an unknown user; None where the password itself is to be sent."""
        ...

    def may_read(self, role: str, pipeline: str) -> bool: ...

    def may_change(self, role: str, pipeline: str, *, reaches: bool) -> bool:
        """CREATE, ALTER and DROP. `reaches`: of what runs code of its own or reaches elsewhere than a broker."""
        ...

    def credential(self, user: str, password: bytes) -> Credential:
        """What a client that showed this password is to brokers."""
        ...


class OpenGate:
    """Everybody may, and is who they say."""

    asks = False

    def __init__(self, *, local: bool = True) -> None:
        """`local`: only this machine is let in."""
        self._local = local

    def by_certificate(self, certificate: Mapping[str, Any]) -> str | None:
        return None

    def by_password(self, user: str, password: bytes) -> str:
        return user

    def scram_secret(self, user: str) -> Secret | None:
        return None

    def may_read(self, role: str, pipeline: str) -> bool:
        return True

    def may_change(self, role: str, pipeline: str, *, reaches: bool) -> bool:
        """What any user of this machine may say, as far as it does no more than views do."""
        return self._local and not reaches

    def credential(self, user: str, password: bytes) -> Credential:
        return basic_credential(user, password)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a server. `memory_mb`: for queries, besides the views' rows."""

    connections: int = CONNECTIONS_MAX
    per_address: int = CONNECTIONS_PER_ADDRESS_MAX
    memory_mb: int = MEMORY_MB
    threads: int = THREADS
    statement_timeout_s: float = STATEMENT_TIMEOUT_S


class Served:
    """A pipeline that is served: its engine, and the thread that follows its epochs."""

    def __init__(self, views: Views, name: str, bounds: Bounds) -> None:
        self.name = name
        self.views = views
        self.feed = Feed(views)
        self.engine = Engine(views, name, bounds.memory_mb, bounds.threads)
        self.writer = Writer()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow-{name}", daemon=True)
        self._said = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(30)
        self.engine.close()

    def _follow(self) -> None:
        local, came_s = self.views.files.local, -BUSY_S
        while not self._ended.wait(_pause_s(monotonic() - came_s) if local else REFRESH_REMOTE_S):
            try:
                if self.feed.refresh():
                    came_s = monotonic()
                self.views.warm()
                self._said = ""
            except (MagnetarError, OSError) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    logger.error("pipeline %s: no newer epoch can be read: %s", self.name, error)


def _pause_s(passed_s: float) -> float:
    """Until the next look on a local disk. `passed_s`: since an epoch came."""
    return REFRESH_BUSY_S if passed_s < BUSY_S else REFRESH_S


class Server:
    """`served` by the name that clients give as their database."""

    def __init__(
        self,
        served: Mapping[str, Served],
        gate: Gate,
        bounds: Bounds,
        tls: ssl.SSLContext | None = None,
        *,
        plain_passwords: bool = False,
    ) -> None:
        """`plain_passwords`: take them from other machines without TLS as well."""
        self._served = dict(served)
        self._gate = gate
        self._bounds = bounds
        self._tls = tls
        self._plain_passwords = plain_passwords
        self._share = Share("postgres", bounds.connections, bounds.per_address)
        self._pool: Executor = ThreadPoolExecutor(WORKERS, "query")
        self._waiting: Executor = ThreadPoolExecutor(SUBSCRIPTIONS_MAX, "subscription")
        self._sessions: dict[tuple[int, int], Session] = {}
        self._numbers = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. Raises StartupError when it is taken."""
        try:
            self._listener = await asyncio.start_server(self._accepted, host, port, limit=MESSAGE_BYTES_MAX)
        except OSError as error:
            raise StartupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        for each in self._served.values():
            each.start()
        found: int = self._listener.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for session in list(self._sessions.values()):
            session.cancel()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=10)
        for each in self._served.values():
            await asyncio.get_running_loop().run_in_executor(None, each.stop)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._waiting.shutdown(wait=False, cancel_futures=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        host = str((writer.get_extra_info("peername") or ("",))[0])
        ticket = self._share.enter(host, task.cancel)
        connection = Connection(self, reader, writer, host)
        try:
            if isinstance(ticket, str):
                await connection.turn_away(f"sorry, too many clients already: {ticket}")
                return
            await connection.run(ticket)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError):
            pass  # the client is gone, or never was one
        except ProtocolError as error:
            with contextlib.suppress(ConnectionError):
                writer.write(messages.error("08P01", str(error), severity="FATAL"))
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionError):
                writer.write(
                    messages.error(
                        "57P01", "terminating connection: the server ends, or needs the place", severity="FATAL"
                    )
                )
        except Exception:
            logger.exception("a connection failed")
            with contextlib.suppress(ConnectionError):
                writer.write(messages.error("XX000", "internal error; the server's log says more", severity="FATAL"))
        finally:
            self._connections.discard(task)
            if not isinstance(ticket, str):
                ticket.leave()
            await connection.close()
            with contextlib.suppress(Exception):
                writer.close()

    # ---- For connections

    @property
    def gate(self) -> Gate:
        return self._gate

    @property
    def tls(self) -> ssl.SSLContext | None:
        return self._tls

    def takes_passwords_from(self, host: str, *, encrypted: bool) -> bool:
        return encrypted or self._plain_passwords or not host or is_loopback(host.removeprefix("::ffff:"))

    def find(self, database: str, user: str) -> Served | None:
        """The pipeline of that name; the only one also where a client names none of its own accord."""
        found = self._served.get(database)
        if found is None and len(self._served) == 1 and database in ("", user, "postgres"):
            found = next(iter(self._served.values()))
        return found

    def names(self, role: str) -> str:
        """Of those that the role may read: it does not learn of others."""
        return ", ".join(name for name in self._served if self.gate.may_read(role, name)) or "none that you may read"

    def session(
        self, served: Served, user: str, writer: asyncio.StreamWriter, credential: Credential | None
    ) -> tuple[Session, int, int]:
        """And its key, with which a client cancels. `credential`: with which it writes."""
        self._numbers = self._numbers % 0x7FFFFFFF + 1
        secret = secrets.randbits(32)
        made = Session(
            served.engine,
            served.feed,
            self._pool,
            self._waiting,
            user,
            writer.write,
            writer.drain,
            process=self._numbers,
            timeout_s=self._bounds.statement_timeout_s,
            writes=SessionWrites(served.engine, served.writer, credential),
            definitions=Definitions(
                served.engine, lambda reaches: self._gate.may_change(user, served.name, reaches=reaches)
            ),
        )
        self._sessions[self._numbers, secret] = made
        return made, self._numbers, secret

    def forget(self, process: int, secret: int) -> None:
        self._sessions.pop((process, secret), None)

    def cancel(self, process: int, secret: int) -> None:
        session = self._sessions.get((process, secret))
        if session is not None:
            session.cancel()


class Connection:
    """From accept to the end."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._host = host
        self._session: Session | None = None
        self._key = (0, 0)
        self._certificate: Mapping[str, Any] | None = None
        self._encrypted = False
        self._credential: Credential | None = None

    async def run(self, ticket: Ticket) -> None:
        """Raises ProtocolError, and what the connection's end raises."""
        async with asyncio.timeout(START_TIMEOUT_S):
            parameters = await self._start()
            if parameters is None or not await self._let_in(parameters):
                return
        ticket.settle()
        session = self._session
        assert session is not None
        while True:
            kind, body = await self._message(MESSAGE_BYTES_MAX)
            if not await session.message(kind, body):
                return

    async def turn_away(self, text: str) -> None:
        """libpq shows an error only where it expects one: behind its start."""
        async with asyncio.timeout(TURN_AWAY_TIMEOUT_S):
            if await self._start() is not None:
                self._refuse("53300", text)
                await self._writer.drain()

    async def close(self) -> None:
        self._server.forget(*self._key)
        if self._session is not None:
            with contextlib.suppress(Exception):
                await self._session.close()

    async def _start(self) -> dict[str, str] | None:
        """The parameters of the start; None when the connection had another purpose. TLS on the way, if the client asks for it."""
        while True:
            size, code = struct.unpack("!ii", await self._reader.readexactly(8))
            if not 8 <= size <= MESSAGE_BYTES_BEFORE_MAX:
                raise ProtocolError("invalid length of startup packet")
            body = await self._reader.readexactly(size - 8)
            if code in (messages.SSL_REQUEST, messages.GSS_REQUEST):
                if code == messages.GSS_REQUEST or self._server.tls is None or self._encrypted:
                    self._writer.write(b"N")
                    continue
                if self._reader._buffer:  # type: ignore[attr-defined]
                    raise ProtocolError("received unencrypted data after SSL request")  # CVE-2021-23214
                self._writer.write(b"S")
                await self._writer.drain()
                await self._writer.start_tls(self._server.tls)
                self._encrypted = True
                certificate = self._writer.get_extra_info("peercert")
                self._certificate = certificate or None
                continue
            if code == messages.CANCEL_REQUEST:
                if len(body) == 8:
                    self._server.cancel(*struct.unpack("!II", body))
                return None
            if code >> 16 != 3:
                raise ProtocolError(f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}: server supports 3.0")
            parameters = messages.read_startup(body)
            unknown = [name for name in parameters if name.startswith("_pq_.")]
            if code != messages.PROTOCOL_3 or unknown:
                self._writer.write(messages.negotiate_version(unknown))
            return parameters

    async def _let_in(self, parameters: dict[str, str]) -> bool:
        user = parameters.get("user", "")
        if not user:
            return self._refuse("28000", "no PostgreSQL user name specified in startup packet")
        if parameters.get("replication", "false").lower() not in ("false", "off", "no", "0"):
            return self._refuse(
                "0A000", "replication connections are not supported; SUBSCRIBE gives the changes of a view"
            )
        try:
            role = await self._role(user)
        except AccessRefused as error:
            return self._refuse("28P01", str(error))
        served = self._server.find(parameters.get("database", ""), user)
        name = parameters.get("database", user)
        if not self._server.gate.may_read(role, name if served is None else served.name):
            return self._refuse("42501", f'permission denied for database "{name}"')
        if served is None:
            return self._refuse(
                "3D000",
                f'database "{name}" does not exist',
                f"a pipeline is a database; served: {self._server.names(role)}",
            )
        session, *key = self._server.session(served, role, self._writer, self._credential)
        self._session, self._key = session, (key[0], key[1])
        for name, value in parameters.items():
            if name not in ("user", "database", "options", "replication") and not name.startswith("_pq_."):
                session.settings.values[name.lower()] = (
                    value if name.lower() == "application_name" else session.settings.values.get(name.lower(), value)
                )
        parts = [
            messages.AUTHENTICATION_OK,
            *(messages.parameter_status(*pair) for pair in session.settings.reported()),
        ]
        self._writer.write(b"".join([*parts, messages.backend_key(*self._key), messages.ready("I")]))
        await self._writer.drain()
        return True

    async def _role(self, user: str) -> str:
        gate = self._server.gate
        if not gate.asks:
            return user
        if self._certificate is not None:
            role = gate.by_certificate(self._certificate)
            if role is not None:
                return role
        secret = await asyncio.get_running_loop().run_in_executor(None, gate.scram_secret, user)
        if secret is not None:
            return await self._by_scram(user, secret)
        if not self._server.takes_passwords_from(self._host, encrypted=self._encrypted):
            raise AccessRefused(
                "the connection is not encrypted, so anybody on the way could read the password: use sslmode=require"
            )
        self._writer.write(messages.AUTHENTICATION_CLEARTEXT)
        password = (await self._answer()).removesuffix(b"\x00")
        role = await asyncio.get_running_loop().run_in_executor(None, gate.by_password, user, password)
        self._credential = gate.credential(user, password)
        return role

    async def _by_scram(self, user: str, secret: Secret) -> str:
        """Raises AccessRefused, with the same words whatever was wrong."""
        exchange = scram.Exchange(secret, secrets.token_urlsafe(18))
        self._writer.write(messages.sasl(scram.MECHANISM))
        mechanism, first = messages.read_sasl_initial(await self._answer())
        if mechanism != scram.MECHANISM:
            raise ProtocolError(f"client selected an invalid SASL authentication mechanism; offered: {scram.MECHANISM}")
        self._writer.write(messages.sasl_continue(exchange.first(first)))
        proved = exchange.final(await self._answer())
        if proved is None:
            raise AccessRefused(f'password authentication failed for user "{user}"')
        self._writer.write(messages.sasl_final(proved))
        return user

    async def _answer(self) -> bytes:
        """To what was asked by an Authentication message."""
        await self._writer.drain()
        kind, body = await self._message(MESSAGE_BYTES_BEFORE_MAX)
        if kind != b"p":
            raise ProtocolError("expected password response")
        return body

    def _refuse(self, code: str, text: str, hint: str = "") -> bool:
        self._writer.write(messages.error(code, text, severity="FATAL", hint=hint))
        return False

    async def _message(self, most: int) -> tuple[bytes, bytes]:
        head = await self._reader.readexactly(5)
        size = int.from_bytes(head[1:], "big", signed=True) - 4
        if not 0 <= size <= most:
            raise ProtocolError(f"a message of {size} bytes: at most {most} are taken")
        return head[:1], await self._reader.readexactly(size)
