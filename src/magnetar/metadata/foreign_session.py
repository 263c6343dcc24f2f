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
from contextlib import suppress
from typing import Final, cast

from magnetar.base.network import Network

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 1.0
"""Of a server that does not answer; then the next one is asked."""

RETRY_S: Final = 0.05
"""Between two attempts."""

SEE_OFF_RETRY_S: Final = 0.2
"""The same, for a server that may be away for long."""

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Of one answer; a longer one is none."""

_CLOSE: Final = struct.pack("!iii", 8, 1, -11)
_CONNECT: Final = struct.Struct("!iqiq")
_SESSION_TIMEOUT_MS: Final = 4_000


def session_key(session_id: int, password: bytes) -> str:
    """What `end_session` takes: `0x<number>:<password>`."""
    return f"{session_id:#x}:{password.hex()}"


async def end_session(network: Network, hosts: str, key: str, timeout_s: float) -> bool:
    """`hosts`: `host:port,host:port`. True once a server has said that the session is over, now or before. False when none says so in time.

    Raises ValueError for what is no key.
    """
    words = _words(key)
    try:
        async with asyncio.timeout(timeout_s):
            for host, port in itertools.cycle(_servers(hosts)):
                try:
                    if await _try(network, host, port, words):
                        return True
                except (OSError, TimeoutError) as error:
                    logger.info("session %s not ended by %s:%d: %s", _number(key), host, port, error or "time is over")
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        logger.warning("session %s not ended: no server has said so within %g s", _number(key), timeout_s)
    return False


async def see_off(network: Network, hosts: str, key: str, enough: Callable[[], bool]) -> None:
    """The same for a session that nobody acts on any more: until a server has said that it is over, or `enough()`.

    A server that hears and cannot answer ends it, too: nobody has to wait for its time-out.
    """
    words = _words(key)
    for host, port in itertools.cycle(_servers(hosts)):
        if enough():
            return
        with suppress(OSError, TimeoutError):
            if await _try(network, host, port, words):
                return
        await asyncio.sleep(SEE_OFF_RETRY_S)


def _words(key: str) -> bytes:
    """The session is taken up and closed, in one piece."""
    number, _, word = key.partition(":")
    session_id, password = int(number, 16), bytes.fromhex(word)
    greeting = _CONNECT.pack(0, 0, _SESSION_TIMEOUT_MS, session_id) + struct.pack("!i", len(password)) + password
    return struct.pack("!i", len(greeting) + 1) + greeting + b"\0" + _CLOSE


def _number(key: str) -> str:
    return key.partition(":")[0]


def _servers(hosts: str) -> list[tuple[str, int]]:
    pairs = [server.rpartition(":") for server in hosts.split(",")]
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


async def _try(network: Network, host: str, port: int, words: bytes) -> bool:
    connected = await network.connect(host, port, lambda: _Frames(words), timeout_s=CONNECT_TIMEOUT_S)
    frames = cast("_Frames", connected)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, granted_ms = struct.unpack_from("!ii", await frames.next())
            if granted_ms <= 0:
                return True  # it is over already
            while True:
                answer = await frames.next()
                if struct.unpack_from("!i", answer)[0] == 1:  # others are notifications
                    return bool(struct.unpack_from("!i", answer, 12)[0] == 0)
    except (struct.error, EOFError):
        return False  # somebody else has taken it up, or the server has ended
    finally:
        frames.close()


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
