"""The end of a session by another way than its own connection: of a process that is gone for certain, or of one's own that was given up.

Whoever names a session's number and password may take it up, and close it: its ephemeral nodes go at once and together, as they do when it
times out, and what its process had sent on the way out is refused. (Deleting the nodes one by one would be another thing: they may have
been deleted, and made by somebody else, since they were looked at.)

ZooKeeper's protocol, by hand: kazoo's client would not say whether its request to close was ever answered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable
from typing import Final, cast

from magnetar.base.network import Network
from magnetar.metadata.digest_md5 import ClientDigest, Credentials, MetadataAuthenticationError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 1.0
"""Of a server that does not answer; then the next one is asked."""

RETRY_S: Final = 0.05
"""Between two attempts."""

OUTLAST_RETRY_S: Final = 0.2
"""The same, for a server that may be away for long."""

UNHEARD_PAUSE_S: Final = 10.0
"""The same, after silence, where the server asks for a proof: longer than `_SESSION_TIMEOUT_MS`, so that the session ends meanwhile."""

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Of one answer; a longer one is none."""

_SASL: Final = 102
_CLOSE: Final = -11
_CONNECT: Final = struct.Struct("!iqiq")
_SESSION_TIMEOUT_MS: Final = 4_000


def session_key(session_id: int, password: bytes) -> str:
    """What `end_session` takes: `0x<number>:<password>`."""
    return f"{session_id:#x}:{password.hex()}"


async def end_session(
    network: Network, hosts: str, key: str, timeout_s: float, credentials: Credentials | None = None
) -> bool:
    """`hosts`: `host:port,host:port`. True once a server has said that the session is over, now or before. False when none says so in time.

    Raises ValueError for what is not a key.
    """
    greeting = _greeting(key)
    try:
        async with asyncio.timeout(timeout_s):
            for host, port in itertools.cycle(_servers(hosts)):
                try:
                    if await _try(network, host, port, greeting, credentials):
                        return True
                except (OSError, TimeoutError, MetadataAuthenticationError) as error:
                    logger.info("session %s not ended by %s:%d: %s", _number(key), host, port, error or "timed out")
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        logger.warning("session %s not ended: no server has said so within %g s", _number(key), timeout_s)
    return False


async def outlast_session(
    network: Network, hosts: str, key: str, enough: Callable[[], bool], credentials: Credentials | None = None
) -> None:
    """The same for a session that nobody acts on any more: until a server has said that it is over, or `enough()`.

    A server that hears and cannot answer ends it, too: nobody has to wait for its time-out. With `credentials` such a server cannot be
    told, since the proof takes its answers, and every attempt would be a sign of life of the session: then it is left to its time-out.
    """
    greeting = _greeting(key)
    for host, port in itertools.cycle(_servers(hosts)):
        if enough():
            return
        pause_s = OUTLAST_RETRY_S
        try:
            if await _try(network, host, port, greeting, credentials):
                return
        except TimeoutError:
            pause_s = OUTLAST_RETRY_S if credentials is None else UNHEARD_PAUSE_S
        except (OSError, MetadataAuthenticationError):
            pass
        await asyncio.sleep(pause_s)


def _greeting(key: str) -> bytes:
    """The session is taken up."""
    number, _, word = key.partition(":")
    session_id, password = int(number, 16), bytes.fromhex(word)
    greeting = _CONNECT.pack(0, 0, _SESSION_TIMEOUT_MS, session_id) + struct.pack("!i", len(password)) + password
    return struct.pack("!i", len(greeting) + 1) + greeting + b"\0"


def _number(key: str) -> str:
    return key.partition(":")[0]


def _servers(hosts: str) -> list[tuple[str, int]]:
    pairs = [server.rpartition(":") for server in hosts.split(",")]
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


async def _try(network: Network, host: str, port: int, greeting: bytes, credentials: Credentials | None) -> bool:
    """Take the session up and close it, in one piece where the server asks for nothing in between."""
    hello = greeting if credentials is not None else greeting + _request(1, _CLOSE)
    connected = await network.connect(host, port, lambda: _Frames(hello), timeout_s=CONNECT_TIMEOUT_S)
    frames = cast("_Frames", connected)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, granted_ms = struct.unpack_from("!ii", await frames.next())
            if granted_ms <= 0:
                return True  # it is over already
            xid = 1
            if credentials is not None:
                await _authenticate(frames, ClientDigest(credentials))
                xid = 3
                frames.send(_request(xid, _CLOSE))
            code, _ = await _answer(frames, xid)
            return code == 0
    except (struct.error, EOFError):
        return False  # somebody else has taken it up, or the server has ended
    finally:
        frames.close()


async def _authenticate(frames: _Frames, digest: ClientDigest) -> None:
    """Raises MetadataAuthenticationError."""
    token = b""
    for xid in (1, 2):
        frames.send(_request(xid, _SASL, struct.pack("!i", len(token)) + token))
        code, body = await _answer(frames, xid)
        if code != 0:
            raise MetadataAuthenticationError(f"the server refuses the authentication with error {code}")
        if xid == 1:
            token = digest.respond(body[4:])
        else:
            digest.check(body[4:])


def _request(xid: int, kind: int, body: bytes = b"") -> bytes:
    return struct.pack("!iii", 8 + len(body), xid, kind) + body


async def _answer(frames: _Frames, xid: int) -> tuple[int, bytes]:
    """(code, body) of the answer to this request; others are notifications."""
    while True:
        answer = await frames.next()
        if struct.unpack_from("!i", answer)[0] == xid:
            return struct.unpack_from("!i", answer, 12)[0], answer[16:]


class _Frames(asyncio.Protocol):
    """Says hello, and answers with one frame after the other."""

    def __init__(self, hello: bytes) -> None:
        self._hello = hello
        self._input = bytearray()
        self._heard = asyncio.Event()
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.send(self._hello)

    def data_received(self, data: bytes) -> None:
        self._input += data
        self._heard.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._heard.set()

    def send(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.abort()

    async def next(self) -> bytes:
        """Raises EOFError when the connection ends first."""
        while True:
            size = int.from_bytes(self._input[:4], "big") if len(self._input) >= 4 else -1
            if 0 <= size <= len(self._input) - 4:
                frame = bytes(self._input[4 : 4 + size])
                del self._input[: 4 + size]
                return frame
            if self._ended or size > ANSWER_BYTES_MAX:
                raise EOFError
            self._heard.clear()
            await self._heard.wait()
