"""WebSockets: who may open one, for whose page, and what a hostile client can do with one."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pulsar
import pytest
import requests
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from magnetar.testing.server import ServerProcess
from tests.integration.security.conftest import Secured
from tests.support.messages import patient
from tests.support.tokens import token
from tests.support.waiting import wait_until

TOPIC = "persistent/t/ns/one"
WAIT_S = 10.0
KINDS = ("producer", "consumer", "reader")
MAY = {
    "producer": {"root", "tenant-admin", "producer", "topic-role"},
    "consumer": {"root", "tenant-admin", "consumer", "topic-role"},
    "reader": {"root", "tenant-admin", "consumer", "topic-role"},
}


def url_of(base: str, kind: str, topic: str = TOPIC, subscription: str = "ws") -> str:
    end = f"/{subscription}" if kind == "consumer" else ""
    return f"{base.replace('http', 'ws', 1)}/ws/v2/{kind}/{topic}{end}"


def opened(url: str, **options: object) -> ClientConnection:
    return connect(url, max_size=None, proxy=None, **options)  # type: ignore[arg-type]  # as the library's own


def status_of(url: str, **options: object) -> int:
    """101 for one that is opened."""
    try:
        with opened(url, **options):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


# ---- Rights


@pytest.mark.parametrize("kind", KINDS)
def test_each_role_may_what_it_may_anywhere_else(secured: Secured, kind: str) -> None:
    """By a token in the query, which is what browsers can show, or in a header."""
    url = url_of(secured.process.http_url, kind)
    for role in ("root", "tenant-admin", "other-admin", "producer", "consumer", "topic-role", "stranger"):
        expected = 101 if role in MAY[kind] else 403
        assert status_of(f"{url}?token={token(role)}") == expected, role
        assert status_of(url, additional_headers={"Authorization": f"Bearer {token(role)}"}) == expected, role
    assert status_of(url) == 403, "anonymous"
    assert status_of(f"{url}?token=nonsense") == 401
    assert status_of(f"{url}?token={token('root', secret=b'x' * 32)}") == 401


def test_over_tls(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=secured.authority.file)
    url = url_of(f"https://localhost:{secured.http_port_tls}", "producer").replace("wss", "wss", 1)
    with opened(f"{url}?token={token('producer')}", ssl=context) as producer:
        producer.send(json.dumps({"payload": "eA=="}))
        assert json.loads(producer.recv(WAIT_S))["result"] == "ok"


def test_a_websocket_ends_with_its_token(secured: Secured) -> None:
    url = url_of(secured.process.http_url, "consumer", subscription="ends")
    with opened(f"{url}?token={token('consumer', lifetime_s=4)}") as consumer:
        with pytest.raises(ConnectionClosed) as ended:
            consumer.recv(WAIT_S)
        assert ended.value.rcvd is not None
        assert "expired" in ended.value.rcvd.reason


def test_what_a_consumer_names_is_asked_about_as_well(secured: Secured) -> None:
    """The dead letter topic is somebody's, too."""
    url = url_of(secured.process.http_url, "consumer", subscription="dead")
    options = "subscriptionType=Shared&maxRedeliverCount=1&deadLetterTopic=persistent://other/ns/one"
    assert status_of(f"{url}?{options}&token={token('consumer')}") in (403, 404)


def test_tokens_in_a_query_are_for_websockets_alone(secured: Secured) -> None:
    answer = requests.get(f"{secured.process.http_url}/admin/v2/tenants?token={token('root')}", timeout=60)
    assert answer.status_code == 403


# ---- Pages


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 101),
        ("http://127.0.0.1:8000", 101),
        ("https://evil.example", 403),
        ("http://203.0.113.7", 403),
        ("null", 403),
        ("http://localhost.evil.example", 403),
    ],
)
def test_pages_of_other_sites_open_none(server: ServerProcess, origin: str, status: int) -> None:
    """A browser would let them, and shows no credential where nobody asks for one."""
    url = url_of(server.http_url, "producer", "persistent/public/default/pages")
    assert status_of(url, origin=origin) == status


def test_a_page_with_a_token_may_be_anywhere(secured: Secured) -> None:
    url = url_of(secured.process.http_url, "producer")
    assert status_of(f"{url}?token={token('producer')}", origin="https://app.example") == 101
    headers = {"Authorization": "Basic " + base64.b64encode(b"admin:correct horse battery").decode()}
    assert status_of(url, origin="https://app.example", additional_headers=headers) == 403, (
        "a browser sends that by itself"
    )


# ---- Attacks


def raw(server: ServerProcess, kind: str = "producer", topic: str = "persistent/public/default/raw") -> socket.socket:
    """An opened WebSocket of which every byte is ours."""
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=WAIT_S)
    path = url_of("", kind, topic)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (f"GET {path} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade")
    head = "\r\n".join((*lines, "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", ""))
    connection.sendall(head.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    return connection


def frame(
    payload: bytes, opcode: int = 1, *, masked: bool = True, final: bool = True, size: int | None = None
) -> bytes:
    size = len(payload) if size is None else size
    head = bytes([(0x80 if final else 0) | opcode])
    mask = 0x80 if masked else 0
    if size < 126:
        head += bytes([mask | size])
    elif size < 1 << 16:
        head += bytes([mask | 126]) + struct.pack(">H", size)
    else:
        head += bytes([mask | 127]) + struct.pack(">Q", size)
    return head + (bytes(4) if masked else b"") + payload


def close_code(connection: socket.socket) -> int:
    """The code of the server's close frame, behind whatever else it sends."""
    data = b""
    while part := connection.recv(65536):
        data += part
    place = 0
    while place < len(data):
        opcode, size, start = data[place] & 15, data[place + 1] & 127, place + 2
        if size >= 126:
            width = 2 if size == 126 else 8
            size, start = int.from_bytes(data[start : start + width], "big"), start + width
        if opcode == 8:
            return int.from_bytes(data[start : start + 2], "big")
        place = start + size
    raise AssertionError("closed without a reason")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"{}", masked=False), 1002),
        (frame(b"{}", opcode=2), 1003),
        (frame(b"{}", opcode=3), 1002),
        (frame(b"\xff\xfe"), 1007),
        (frame(b"x" * 126, opcode=9), 1002),
        (frame(b"{}", opcode=0), 1002),
        (b"\xc1" + frame(b"{}")[1:], 1002),
    ],
    ids=["unmasked", "binary", "reserved", "not UTF-8", "long ping", "continuation of nothing", "compressed"],
)
def test_frames_that_are_none(server: ServerProcess, data: bytes, code: int) -> None:
    with raw(server) as connection:
        connection.sendall(data)
        assert close_code(connection) == code


def test_a_message_has_a_bound(start_server: Callable[..., ServerProcess]) -> None:
    """Whether it comes in one frame or in many, and before it is there."""
    server = start_server(maxMessageSize=100_000)
    part = b"x" * 20_000
    for first, rest in ((frame(b"", size=1 << 40), part), (frame(part, final=False), frame(part, 0, final=False))):
        with raw(server) as connection:
            connection.sendall(first)
            sent = len(first)
            with suppress(ConnectionError, TimeoutError):
                while sent < 100_000_000:
                    connection.sendall(rest)
                    sent += len(rest)
            assert sent < 10_000_000, "what the sockets of both sides hold, and then an end"


def test_many_short_frames_do_not_hold_up_anybody(server: ServerProcess) -> None:
    flood = frame(b"", opcode=9) * 50_000
    with raw(server) as connection:
        connection.settimeout(0.2)
        sent = 0
        worst_s = 0.0
        end_s = time.monotonic() + 3
        while time.monotonic() < end_s and sent < len(flood):
            try:
                sent += connection.send(flood[sent : sent + 65536])
                connection.recv(1 << 20)
            except TimeoutError:
                pass
            began_s = time.monotonic()
            assert requests.get(f"{server.http_url}/admin/v2/clusters", timeout=60).status_code == 200
            worst_s = max(worst_s, time.monotonic() - began_s)
    assert worst_s < patient(5000) / 1000, "a bound ten times above what is measured"


def test_a_client_that_reads_nothing_is_sent_no_more_than_fits(server: ServerProcess, topic: str) -> None:
    """Its messages stay in the topic, and whoever shares its subscription gets them when it has gone."""
    path = topic.replace("://", "/")
    frozen = raw(server, "consumer", path)
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, block_if_queue_full=True)
    payload = os.urandom(200_000)
    for _ in range(200):
        producer.send_async(payload, None)
    producer.flush()
    client.close()

    def sent() -> int:
        stats = requests.get(f"{server.http_url}/admin/v2/{path}/stats", timeout=60).json()
        return int(stats["subscriptions"]["ws"]["msgOutCounter"])

    wait_until(lambda: sent() > 0)
    settled = [sent()]
    while len(settled) < 3 or settled[-1] != settled[-3]:
        settled.append(sent())
        time.sleep(0.2)
    assert settled[-1] < 100, "what fits into buffers, and not the whole topic"
    frozen.close()
    url = url_of(server.http_url, "consumer", path)
    wait_until(lambda: status_of(url) == 101)
    with opened(url) as consumer:
        for _ in range(200):
            consumer.send(json.dumps({"messageId": json.loads(consumer.recv(WAIT_S))["messageId"]}))


def test_a_server_with_open_websockets_stops_at_once(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(opened(url_of(server.http_url, kind, "persistent/public/default/t"))) for kind in KINDS
        ]
        began_s = time.monotonic()
        server.stop()
        assert time.monotonic() - began_s < 10
        for each in sockets:
            with pytest.raises(ConnectionClosed):
                each.recv(WAIT_S)
    assert "Traceback" not in server.log()


def test_upgrades_to_nothing_are_answered(server: ServerProcess) -> None:
    for version, key in (("12", "AAAAAAAAAAAAAAAAAAAAAA=="), ("13", "")):
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": version,
            "Sec-WebSocket-Key": key,
        }
        url = f"{server.http_url}/ws/v2/producer/persistent/public/default/t"
        assert requests.get(url, headers=headers, timeout=60).status_code == 426
    answer = requests.get(
        f"{server.http_url}/admin/v2/clusters", headers={"Upgrade": "h2c", "Connection": "Upgrade"}, timeout=10
    )
    assert answer.status_code == 200
