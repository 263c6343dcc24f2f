"""Who shows no credential and finishes nothing: however many connections they open, the server and its clients go on."""

from __future__ import annotations

import re
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from magnetar.bookkeeper.codes import ReturnCode
from magnetar.testing.server import ServerProcess
from magnetar.wire.bookkeeper import v2
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.integration.security.conftest import settings
from tests.support.certificates import Authority
from tests.support.raw import RawClient
from tests.support.tokens import token
from tests.support.waiting import wait_until

SERVED_WITHIN_S = 8.0
"""Less than the ten seconds that a stranger has: nobody waits for one to be ended."""
OPEN_FILES = 1024
HELLO = b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03"
"""The beginning of a TLS handshake, whose end never comes."""
HALF_A_REQUEST = b"GET /status.html HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds the other end of every connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def flood(many_files: None) -> Iterator[Callable[[int, bytes, int], list[socket.socket]]]:
    """`flood(port, first_words, count)`: connections that say no more; those that the server did not take are left out."""
    with ExitStack() as stack:

        def open_many(port: int, words: bytes, count: int) -> list[socket.socket]:
            found = []
            for _ in range(count):
                try:
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                    connection.sendall(words)
                except OSError:
                    continue
                found.append(connection)
            return found

        yield open_many


def start_limited(directory: Path, open_files: int | None, **more: object) -> tuple[ServerProcess, dict[str, int]]:
    """A server with all its ports; it measures its load ten times a second, for which it opens files."""
    chosen = settings(directory, Authority(directory / "certificates"), **more)
    chosen |= {"loadBalancerReportUpdateMinIntervalMillis": 100, "anonymousUserRole": ""}
    server = ServerProcess(directory / "data", chosen, open_files_max=open_files).start()
    ports = {
        "binary": server.port,
        "http": server.http_port,
        "binary over TLS": int(str(chosen["brokerServicePortTls"])),
        "https": int(str(chosen["webServicePortTls"])),
    }
    return server, ports


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[ServerProcess, dict[str, int]]]:
    server, ports = start_limited(tmp_path, OPEN_FILES)
    yield server, ports
    server.close()


def check_publishes(server: ServerProcess) -> None:
    """A newcomer with a credential publishes, in time."""
    started_s = time.monotonic()
    with RawClient(server.port) as client:
        client.connect(auth_method_name="token", auth_data=token("root").encode())
        assert client.producer("persistent://public/default/good").type == BaseCommand.PRODUCER_SUCCESS
        assert client.publish(b"good").type == BaseCommand.SEND_RECEIPT
    assert time.monotonic() - started_s < SERVED_WITHIN_S


def check_http(server: ServerProcess) -> None:
    """A new HTTP connection is answered, in time."""
    started_s = time.monotonic()
    assert requests.get(f"{server.http_url}/status.html", timeout=30).status_code == 200
    assert time.monotonic() - started_s < SERVED_WITHIN_S


@pytest.mark.parametrize(
    ("port", "words"),
    [("http", HALF_A_REQUEST), ("https", HELLO), ("binary over TLS", HELLO), ("binary", b"\0\0")],
)
def test_all_descriptors_are_asked_for_by_strangers(
    limited: tuple[ServerProcess, dict[str, int]],
    flood: Callable[[int, bytes, int], list[socket.socket]],
    port: str,
    words: bytes,
) -> None:
    server, ports = limited
    check_publishes(server)
    flood(ports[port], words, OPEN_FILES + 200)
    for _ in range(10):  # while the load is measured again and again
        check_publishes(server)
        check_http(server)
        time.sleep(0.1)
    assert server.running
    with pytest.raises(
        requests.exceptions.SSLError, match="certificate verify failed"
    ):  # answered all the same, by the TLS ports
        requests.get(f"https://localhost:{ports['https']}/", timeout=30).close()
    log = server.log()
    assert "Too many open files" not in log
    assert "Traceback" not in log


def start_part(directory: Path, open_files: int, *words: str) -> tuple[subprocess.Popen[str], list[int], Path]:
    """A bookie or metadata server which the system lets have so many files: its process, its ports, its log."""
    log = directory.with_suffix(".log")
    command = ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh", sys.executable, "-m", "magnetar", *words]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--data-dir", str(directory), "--port", "0"], stdout=subprocess.PIPE, stderr=output, text=True
        )
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert ready.startswith("magnetar ready "), log.read_text()
    return process, [int(url.rpartition(":")[2]) for url in ready.split()[2:]], log


def ask(port: int, question: bytes) -> bytes:
    """What a newcomer is answered, in time."""
    started_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as newcomer:
        newcomer.sendall(question)
        answer = newcomer.recv(4096)
    assert time.monotonic() - started_s < SERVED_WITHIN_S
    return answer


def test_bookies_and_metadata_servers_with_few_files_answer_those_who_ask(
    tmp_path: Path, flood: Callable[[int, bytes, int], list[socket.socket]]
) -> None:
    """Far fewer than the strangers that either would keep if it had the files."""
    body = struct.pack("!iqiq", 0, 0, 10_000, 0) + struct.pack("!i", 16) + bytes(16) + b"\0"
    session = struct.pack("!i", len(body)) + body
    with ExitStack() as stack:
        metadata, (metadata_port,), metadata_log = start_part(tmp_path / "metadata", 300, "metadata-server")
        stack.callback(metadata.wait, 10)
        stack.callback(metadata.kill)
        words = "bookie", "--http-port", "0", "--metadata-url", f"zk:127.0.0.1:{metadata_port}"
        bookie, (bookie_port, http_port), bookie_log = start_part(tmp_path / "bookie", 300, *words)
        stack.callback(bookie.wait, 10)
        stack.callback(bookie.kill)
        flood(metadata_port, b"", 300)
        flood(bookie_port, b"\0", 300)
        for _ in range(5):
            assert len(ask(metadata_port, session)) > 16
            assert v2.decode_response(ask(bookie_port, v2.encode_read(7, 0, 0, b""))[4:])[1] == ReturnCode.NO_LEDGER
        metrics = requests.get(f"http://127.0.0.1:{http_port}/metrics", timeout=30).text
        for log in (metadata_log, bookie_log):
            text = log.read_text()
            assert "some are closed before their clients have proved who they are" in text
            assert "connection refused" not in text
            assert "Traceback" not in text
    evicted = re.search(r'^magnetar_connections_evicted_total\{.*port="binary"} (\d+)$', metrics, re.MULTILINE)
    assert evicted is not None, metrics
    assert int(evicted[1]) > 100


def test_a_thousand_halves_of_requests_do_not_make_http_unavailable(
    tmp_path: Path, flood: Callable[[int, bytes, int], list[socket.socket]]
) -> None:
    server, ports = start_limited(tmp_path, None)
    try:
        there = flood(ports["http"], HALF_A_REQUEST, 1100)
        check_http(server)
        flood(ports["http"], HALF_A_REQUEST, 1100)
        check_http(server)
        first = there[0]
        first.settimeout(30)
        assert first.recv(1) == b"", "the one that waited for longest has made room"
        check_publishes(server)
    finally:
        server.close()


def test_idle_connections_with_a_request_behind_them_make_room_as_well(
    limited: tuple[ServerProcess, dict[str, int]], flood: Callable[[int, bytes, int], list[socket.socket]]
) -> None:
    server, ports = limited
    idle = flood(ports["http"], b"GET /status.html HTTP/1.1\r\nHost: localhost\r\n\r\n", 200)
    assert idle[-1].recv(15) == b"HTTP/1.1 200 OK"
    check_http(server)


def test_one_address_gets_its_number_on_every_port(tmp_path: Path) -> None:
    server, ports = start_limited(tmp_path, None, brokerMaxConnectionsPerIp=3, brokerClientTlsEnabled=False)
    try:
        for port in ("http", "https"):
            crowd = [socket.create_connection(("127.0.0.1", ports[port]), timeout=30) for _ in range(6)]
            for connection in crowd[:3]:
                connection.settimeout(30)
                assert connection.recv(1) == b""
            crowd[5].settimeout(0.2)
            with pytest.raises(TimeoutError):
                crowd[5].recv(1)
            for connection in crowd:
                connection.close()
            wait_until(lambda: requests.get(f"{server.http_url}/status.html", timeout=30).status_code == 200)
    finally:
        server.close()


def test_what_never_ends_is_ended(limited: tuple[ServerProcess, dict[str, int]]) -> None:
    """Handshake, head and body have ten seconds each, however often a byte comes."""
    server, ports = limited
    body = f"POST /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('root')}\r\n"
    words = {
        "https": HELLO,
        "binary over TLS": HELLO,
        "binary": b"\0\0",
        "http": HALF_A_REQUEST,
    }
    started_s = time.monotonic()
    waiting = {name: socket.create_connection(("127.0.0.1", ports[name]), timeout=30) for name in words}
    waiting["body"] = socket.create_connection(("127.0.0.1", ports["http"]), timeout=30)
    for name, connection in waiting.items():
        connection.sendall(words.get(name, f"{body}Content-Length: 100\r\n\r\n{{".encode()))
    last: dict[str, bytes] = {}
    while waiting and time.monotonic() - started_s < 40:
        for name, connection in list(waiting.items()):
            connection.settimeout(0.1)
            try:
                if name in ("http", "body"):
                    connection.sendall(b"x" if name == "http" else b" ")
                answer = connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                answer = b""
            last[name] = last.get(name, b"") + answer
            if not answer:
                waiting.pop(name).close()
    assert not waiting, f"still open after 40 s: {list(waiting)}"
    assert time.monotonic() - started_s > 8
    assert b"408" in last["body"].partition(b"\r\n")[0]
    check_http(server)


@pytest.mark.parametrize("connections", [1, 8])
def test_a_refused_body_of_single_bytes_stops_nobody(
    limited: tuple[ServerProcess, dict[str, int]], connections: int
) -> None:
    """The route answers 401; what comes afterwards is not parsed, and the connection ends."""
    server, ports = limited
    stop = threading.Event()
    answers: list[bytes] = []

    def stranger() -> None:
        head = b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = b"1\r\n{\r\n" * 20_000
        while not stop.is_set():
            with socket.create_connection(("127.0.0.1", ports["http"]), timeout=30) as connection:
                try:
                    connection.sendall(head)
                    answers.append(connection.recv(4096))
                    while not stop.is_set():
                        connection.sendall(chunks)
                except OSError:
                    continue  # closed, as it should be: the next one

    threads = [threading.Thread(target=stranger, daemon=True) for _ in range(connections)]
    with RawClient(server.port) as client:
        client.connect(auth_method_name="token", auth_data=token("root").encode())
        assert client.producer("persistent://public/default/good").type == BaseCommand.PRODUCER_SUCCESS
        for thread in threads:
            thread.start()
        wait_until(lambda: answers)
        slowest_s = 0.0
        ends_s = time.monotonic() + 3
        while time.monotonic() < ends_s:
            started_s = time.monotonic()
            assert client.publish(b"good").type == BaseCommand.SEND_RECEIPT
            slowest_s = max(slowest_s, time.monotonic() - started_s)
        stop.set()
        for thread in threads:
            thread.join(10)
    assert slowest_s < SERVED_WITHIN_S
    assert answers[0].startswith(b"HTTP/1.1 401")
    assert b"connection: close" in answers[0]
    assert "Traceback" not in server.log()
