"""The asynchronous HTTP caller against servers that answer what they like, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from magnetar.base.errors import ConfigError
from magnetar.base.network import AsyncioNetwork
from magnetar.client.async_http import HttpAnswer, exchange
from magnetar.client.errors import UnreachableError

BYTES_MAX = 1000
Caller = Callable[..., Awaitable[HttpAnswer]]


@asynccontextmanager
async def answering(answer: bytes, *, stays: bool = False) -> AsyncIterator[tuple[Caller, list[bytes]]]:
    """A server that answers each request with these bytes, one at a time, and closes unless it `stays`."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            for byte in answer:
                writer.write(bytes([byte]))
                await writer.drain()
            if stays:
                await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def call(method: str = "GET", path: str = "/a?b=c", body: bytes = b"", timeout_s: float = 5) -> HttpAnswer:
        return await exchange(
            AsyncioNetwork(),
            method,
            f"http://127.0.0.1:{port}{path}",
            {"Authorization": "Bearer t"},
            body,
            connect_timeout_s=5,
            answer_timeout_s=timeout_s,
            answer_bytes_max=BYTES_MAX,
        )

    try:
        yield call, heads
    finally:
        server.close()


@pytest.mark.parametrize(
    ("method", "answer", "status", "body"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", 200, b"ok"),
        (
            "GET",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n1\r\n!\r\n0\r\n\r\n",
            200,
            b"ok!",
        ),
        ("GET", b"HTTP/1.1 404 Not Found\r\n\r\nuntil the end", 404, b"until the end"),
        ("GET", b"HTTP/1.0 503 \r\n\r\n", 503, b""),
        ("PUT", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", 200, b""),
        ("POST", b"HTTP/1.1 307 X\r\nLocation:  http://b:1/c \r\nContent-Length: 0\r\n\r\n", 307, b""),
    ],
    ids=["length", "more", "chunked", "until-close", "empty-until-close", "continue", "head", "redirect"],
)
async def test_answers(method: str, answer: bytes, status: int, body: bytes) -> None:
    async with answering(answer) as (call, heads):
        found = await call(method, body=b"{}")
    assert (found.status, found.body) == (status, body)
    assert heads[0].startswith(f"{method} /a?b=c HTTP/1.1\r\nHost: 127.0.0.1".encode())
    assert b"\r\nContent-Length: 2\r\n" in heads[0]
    assert b"\r\nAuthorization: Bearer t\r\n" in heads[0]
    if status == 307:
        assert found.headers["location"] == "http://b:1/c"


async def test_an_answer_that_is_complete_does_not_wait_for_the_end_of_the_connection() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", stays=True) as (call, _):
        assert (await call()).body == b"ok"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "ended before the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "ended before the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", "ended within the answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok", "ended within the answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not HTTP"),
        (b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x03\x1a\x01\x00", "not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "another protocol|ended before"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * BYTES_MAX, "larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * BYTES_MAX, "larger than 1000 bytes"),
    ],
)
async def test_what_is_no_complete_answer_is_an_error(answer: bytes, reason: str) -> None:
    async with answering(answer) as (call, _):
        with pytest.raises(UnreachableError, match=reason):
            await call()


async def test_a_server_that_says_nothing() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n", stays=True) as (call, _):
        with pytest.raises(UnreachableError, match="timed out"):
            await call(timeout_s=0.05)


@pytest.mark.parametrize("url", ["", "localhost:8080", "pulsar://a:6650", "http://", "http://a:b/", "http://a:99999"])
async def test_what_is_not_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="not a valid address of an admin API"):
        await exchange(
            AsyncioNetwork(), "GET", url, {}, connect_timeout_s=1, answer_timeout_s=1, answer_bytes_max=BYTES_MAX
        )
