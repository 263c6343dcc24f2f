"""HTTP itself: methods, bodies, hostile requests, and a stop with connections open."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.support.process import resident_bytes
from tests.support.types import StartServer


def raw(server: ServerProcess, request: bytes, timeout_s: float = 5.0) -> bytes:
    """Send bytes, read until the server closes or a complete response has arrived."""
    port = int(server.http_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(request)
        answer = b""
        while not answer.endswith(b"}") and (part := connection.recv(65536)):
            answer += part
        return answer


def test_unknown_routes_and_methods(api: Api) -> None:
    assert api.reason("GET", "nothing/here", status=404) == "HTTP 404 Not Found"
    assert api.reason("GET", f"{api.base}/", status=404)
    response = api.call("POST", "brokers/health", status=405)
    assert response.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert "allowed: GET" in response.json()["reason"]
    assert api.call("OPTIONS", "tenants/t", status=204).headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, POST, PUT"
    head = api.call("HEAD", "brokers/health")
    assert (head.content, head.headers["content-length"]) == (b"", "2")


@pytest.mark.parametrize(
    "body",
    [b"{", b"NaN", b'{"a": Infinity}', b"[" * 100_000, b'{"a":' * 50 + b"1" + b"}" * 50, b"\xff\xfe", b"9" * 10_000],
    ids=["torn", "nan", "infinity", "deep list", "deep object", "not utf-8", "huge number"],
)
def test_bad_json_is_400(api: Api, namespace: str, body: bytes) -> None:
    response = api.call("POST", f"namespaces/{namespace}/messageTTL", status=400, data=body)
    assert response.json()["reason"]


def test_brackets_in_texts_are_no_nesting(api: Api, namespace: str) -> None:
    api.put(f"persistent/{namespace}/t", {"text": '[{"' * 100})
    assert api.get(f"persistent/{namespace}/t/properties") == {"text": '[{"' * 100}


def test_large_bodies_are_refused_before_they_are_read(api: Api, server: ServerProcess, namespace: str) -> None:
    before = resident_bytes(server.pid)
    head = f"POST /admin/v2/namespaces/{namespace}/messageTTL HTTP/1.1\r\nHost: x\r\n"
    answer = raw(server, f"{head}Content-Length: 100000000\r\n\r\n".encode() + b"[" * 1000)
    assert answer.startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answer = raw(server, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 20)
    assert answer.startswith(b"HTTP/1.1 413")
    assert resident_bytes(server.pid) - before < 20 * 1024 * 1024
    assert api.call("GET", "brokers/health").text == "ok"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x00\x00\x00\x0a\x00\x00\x00\x06\x08\x02",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"a/" * 3000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
    ids=["two lengths", "endless path", "tls hello", "binary protocol", "http/2", "many segments"],
)
def test_the_server_survives_nonsense(api: Api, server: ServerProcess, request_bytes: bytes) -> None:
    port = int(server.http_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        try:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            status = connection.recv(65536)[9:12]
        except OSError:
            status = b""  # the server closed before it had read all
    assert status in (b"", b"400", b"404")
    assert api.call("GET", "brokers/health").text == "ok"


def test_a_body_in_single_bytes_is_read(server: ServerProcess, api: Api, namespace: str) -> None:
    port = int(server.http_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        head = f"POST /admin/v2/namespaces/{namespace}/messageTTL HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for byte in (b"1", b"2", b"3"):
            connection.sendall(b"1\r\n" + byte + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 204")
    assert api.get(f"namespaces/{namespace}/messageTTL") == 123


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_other_sites_change_nothing(api: Api, namespace: str, origin: str) -> None:
    url = f"persistent/{namespace}/t"
    assert "other sites" in api.call("PUT", url, status=403, headers={"Origin": origin}).json()["reason"]
    assert api.get(f"persistent/{namespace}") == []
    api.call("GET", f"persistent/{namespace}", headers={"Origin": origin})
    api.call("PUT", url, status=204, headers={"Origin": api.base})


def test_nothing_of_a_failure_inside_is_told(api: Api) -> None:
    reason = api.reason("GET", "persistent/public/default/" + "a" * 5000 + "/stats", status=412)
    assert "Traceback" not in reason
    assert "/" not in json.dumps(reason).replace("\\/", "")


def test_the_stop_does_not_wait_for_idle_connections(start_server: StartServer) -> None:
    server = start_server()
    port = int(server.http_url.rsplit(":", 1)[1])
    connections = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(5)]
    connections[0].sendall(b"GET /status.html HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connections[0].recv(65536).startswith(b"HTTP/1.1 200")
    connections[1].sendall(b"POST /admin/v2/tenants/t HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n[")
    started_s = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started_s < 2.0
    for connection in connections:
        connection.close()


def test_no_request_is_logged_by_default(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    port = int(server.http_url.rsplit(":", 1)[1])
    before = server.log()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET /status.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while connection.recv(65536):
            continue
    assert server.log() == before
