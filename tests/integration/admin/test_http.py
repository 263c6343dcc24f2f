"""HTTP itself: methods, bodies, hostile requests, and a stop with connections open."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable

import pytest
import requests

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
    assert "no route GET /admin/v2/nothing/here" in api.reason("GET", "nothing/here", status=404)
    assert api.reason("GET", f"{api.base}/nothing", status=404)
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
    head = f"POST /admin/v2/namespaces/{namespace}/messageTTL HTTP/1.1\r\nHost: localhost\r\n"
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
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x00\x00\x00\x0a\x00\x00\x00\x06\x08\x02",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"a/" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
    ids=["two lengths", "endless path", "tls hello", "binary protocol", "http/2", "many segments"],
)
def test_the_server_survives_nonsense(api: Api, server: ServerProcess, request_bytes: bytes) -> None:
    port = int(server.http_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            status = connection.recv(65536)[9:12]
        except OSError:
            status = b""  # the server closed before it had read all
    assert status in (b"", b"400", b"404")
    assert api.call("GET", "brokers/health").text == "ok"


SMUGGLED = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
        POST + b"Content-Length: 0, 0\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: +0\r\n\r\n",
        POST + b"Content-Length: 0x0\r\n\r\n",
        POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
        POST + b"Transfer-Encoding: identity\r\n\r\n",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + b"X-Folded: a\r\n Content-Length: 5\r\n\r\n",
        POST + b"X-Folded: a\r\n\tTransfer-Encoding: chunked\r\n\r\n",
        POST + b"X-Bare: a\nContent-Length: 5\r\n\r\n",
        POST.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n",
        POST + b"X-Return: a\rContent-Length: 5\r\n\r\n",
        POST + b"X-Zero: a\0b\r\n\r\n",
        POST + b"no colon\r\n\r\n",
        POST + b"Host: localhost\r\nContent-Length: 0\r\n\r\n",
        b"POST /admin/v2/clusters HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"POST http://localhost/admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        b"POST /admin/v2/clusters HTTP/1.1 \r\nHost: localhost\r\n\r\n",
        b"POST /admin/v2/clusters\r\n\r\n",
        b"POST /admin/v2/cl\xc3\xbcsters HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_two_servers_could_understand_in_two_ways_is_refused(
    api: Api, server: ServerProcess, request_bytes: bytes
) -> None:
    answer = only_answer(server, request_bytes + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert api.call("GET", "brokers/health").text == "ok"


@pytest.mark.parametrize(
    "chunks", [b"0x0\r\n\r\n", b"-1\r\n\r\n", b"1\r\nabc0\r\n\r\n", b"0\n\n", b"1;\n\r\na\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("path", [b"/admin/v2/clusters", b"/admin/v2/namespaces/public/default/messageTTL"])
def test_what_follows_a_body_that_is_none_is_no_request(server: ServerProcess, path: bytes, chunks: bytes) -> None:
    """One route answers before its body (405), the other one reads it."""
    head = POST.replace(b"/admin/v2/clusters", path) + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = only_answer(server, head + chunks + SMUGGLED)
    assert answer[9:12] == (b"405" if path == b"/admin/v2/clusters" else b"400")


def only_answer(server: ServerProcess, words: bytes) -> bytes:
    """What the server says until it closes the connection: one answer, not two."""
    port = int(server.http_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(words)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
    assert answer.count(b"HTTP/1.1 ") == 1
    return answer


def test_requests_that_come_together_are_answered_one_after_the_other(server: ServerProcess) -> None:
    port = int(server.http_url.rsplit(":", 1)[1])
    count = 500
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        ask = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(ask * (count - 1) + ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = b""
        while part := connection.recv(65536):
            answers += part
    assert answers.count(b"HTTP/1.1 200 OK") == count


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /status.html HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /status.html HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"200"),
        (b"HEAD /status.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200"),
    ],
)
def test_old_and_odd_clients_are_answered(server: ServerProcess, head: bytes, status: bytes) -> None:
    port = int(server.http_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer[9:12] == status
    assert b"chunked" not in answer
    assert answer.endswith(b"\r\n\r\n") == head.startswith(b"HEAD")


def test_a_body_in_single_bytes_is_read(server: ServerProcess, api: Api, namespace: str) -> None:
    port = int(server.http_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        head = f"POST /admin/v2/namespaces/{namespace}/messageTTL HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
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


BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        BROWSER | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        BROWSER | {"Sec-Fetch-Site": "same-site"},
        BROWSER | {"Referer": "http://evil.example/page"},
        BROWSER | {"Referer": "http://evil.example/?http://{own}/"},
        BROWSER,
    ],
    ids=["origin", "sandboxed", "other-port", "image", "same-site", "referrer", "referrer-with-own", "hidden-referrer"],
)
def test_pages_of_other_sites_create_nothing_by_reading(
    api: Api, namespace: str, method: str, headers: dict[str, str]
) -> None:
    """An image, a link or a form of a page sends a GET without an Origin: `checkAllowAutoCreation=true` creates a topic."""
    own = api.base.partition("://")[2]
    headers = {name: value.format(own=own) for name, value in headers.items()}
    for flag in ("true", "True", " true"):
        api.call(
            method,
            f"persistent/{namespace}/lured/partitions",
            status=403,
            headers=headers,
            params={"checkAllowAutoCreation": flag},
        )
    api.call(method, "brokers/backlog-quota-check", status=403, headers=headers)
    assert api.get(f"persistent/{namespace}") == []
    assert api.get(f"persistent/{namespace}/partitioned") == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"User-Agent": "Pulsar-Java-v4.0.0"},
        {"Origin": "http://{own}"},
        BROWSER | {"Sec-Fetch-Site": "same-origin"},
        BROWSER | {"Sec-Fetch-Site": "none"},
        BROWSER | {"Referer": "http://{own}/docs"},
    ],
)
def test_clients_and_own_pages_create_by_reading(api: Api, namespace: str, headers: dict[str, str]) -> None:
    own = api.base.partition("://")[2]
    headers = {name: value.format(own=own) for name, value in headers.items()}
    api.call(
        "GET", f"persistent/{namespace}/wanted/partitions?checkAllowAutoCreation=true", status=200, headers=headers
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "[::1",
        "a b",
    ],
)
def test_a_page_whose_name_leads_here_is_turned_away(
    api: Api, server: ServerProcess, namespace: str, host: str
) -> None:
    """DNS rebinding: Host and Origin are the page's own, the address is this server's."""
    own = {"Host": host, "Origin": f"http://{host}"}
    for method, path in (
        ("PUT", f"persistent/{namespace}/t"),
        ("POST", "brokers/shutdown?forcedTerminateTopic=true"),
        ("GET", "clusters"),
        ("GET", f"{api.base}/metrics"),
    ):
        response = api.call(method, path, status=421, headers=own)
        assert "webServiceAllowedHosts" in response.json()["reason"]
    assert api.get(f"persistent/{namespace}") == []
    assert server.running


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8080", "localhost.", "127.0.0.1", "127.0.0.1:99", "[::1]", "[::1]:8080", "192.168.7.7:80"],
)
def test_own_names_and_addresses_are_answered(api: Api, host: str) -> None:
    """Also behind forwarded ports: only names can be led elsewhere."""
    api.call("GET", "clusters", headers={"Host": host})


def test_a_server_is_told_what_it_is_called(start_server: StartServer) -> None:
    names = {"advertisedAddress": "localhost", "webServiceAllowedHosts": "admin.example.com, .lab.example"}
    server = start_server(**names)
    statuses = {
        host: requests.get(f"{server.http_url}/admin/v2/clusters", headers={"Host": host}, timeout=30).status_code
        for host in ("admin.example.com", "a.lab.example:1", "lab.example", "example.com", "xlab.example")
    }
    assert list(statuses.values()) == [200, 200, 421, 421, 421]


def test_nothing_of_a_failure_inside_is_told(api: Api) -> None:
    reason = api.reason("GET", "persistent/public/default/" + "a" * 5000 + "/stats", status=412)
    assert "Traceback" not in reason
    assert "/" not in json.dumps(reason).replace("\\/", "")


def test_the_stop_does_not_wait_for_idle_connections(start_server: StartServer) -> None:
    server = start_server()
    port = int(server.http_url.rsplit(":", 1)[1])
    connections = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(5)]
    connections[0].sendall(b"GET /status.html HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connections[0].recv(65536).startswith(b"HTTP/1.1 200")
    connections[1].sendall(b"POST /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n[")
    started_s = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started_s < 8.0
    for connection in connections:
        connection.close()


def test_no_request_is_logged_by_default(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    port = int(server.http_url.rsplit(":", 1)[1])
    before = server.log()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET /status.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while connection.recv(65536):
            continue
    assert server.log() == before
