"""Starting that cannot be says why in one line; stopping takes two seconds at most, whatever is connected or stored."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.messages import subscribe_next
from tests.support.process import MIB
from tests.support.raw import RawClient
from tests.support.traffic import key_of, read_log
from tests.support.waiting import wait_until

STOP_MAX_S = 2.0
MAGNETAR = [sys.executable, "-m", "magnetar", "standalone"]
ANY_PORT = ["--port", "0", "--http-port", "0"]

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., pulsar.Client]


def run(*args: str | Path, code: int = 1) -> str:
    """All of stderr of a command that must end by itself with this code, and say nothing on stdout."""
    result = subprocess.run([*MAGNETAR, *args], capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def one_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("magnetar: ")
    return lines[0]


# ---- Starting


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_taken_port(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        assert f"port {port}" in one_line(run("--data-dir", tmp_path / "data", *ANY_PORT, option, port))


def test_a_directory_in_use_names_the_process(start_server: StartServer) -> None:
    server = start_server()
    line = one_line(run("--data-dir", server.data_dir, *ANY_PORT))
    assert str(server.data_dir) in line
    assert str(server.pid) in line


def test_the_directory_of_a_killed_process_can_be_used_again(start_server: StartServer) -> None:
    server = start_server()
    first = server.pid
    server.kill()
    assert server.start().pid != first
    assert str(server.pid) in one_line(run("--data-dir", server.data_dir, *ANY_PORT))


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert str(path) in one_line(run("--data-dir", path, *ANY_PORT))


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    target = tmp_path / "closed"
    target.mkdir()
    target.chmod(0o500)
    if os.access(target, os.W_OK):
        if not Path("/proc/sys").is_dir():
            pytest.skip("root may write everywhere")
        target = Path("/proc/sys")  # where even root cannot create anything
    assert str(target) in one_line(run("--data-dir", target, *ANY_PORT))


def test_damage_in_the_journal_is_named_and_nothing_is_skipped(start_server: StartServer) -> None:
    """A bit flip in the middle, with good records behind it, is not a torn tail."""
    server = start_server()
    with RawClient(server.port) as client:
        client.connect()
        client.producer("damaged")
        for number in range(50):
            assert client.publish(bytes(2000), number).type == BaseCommand.SEND_RECEIPT
    server.kill()
    journal = max((server.data_dir / "bookie" / "journal" / "current").iterdir(), key=lambda path: path.stat().st_size)
    with journal.open("r+b") as file:
        file.seek(50_000)
        byte = file.read(1)
        file.seek(50_000)
        file.write(bytes([byte[0] ^ 1]))
    line = run("--data-dir", server.data_dir, *ANY_PORT).splitlines()[-1]
    assert line.startswith("magnetar: ")
    assert journal.name in line


@pytest.mark.parametrize(
    ("args", "nearest"),
    [
        (["--set", "journalSyncDate=true"], "journalSyncData"),
        (["--set", "managedLedgerMaxEntriesPerLegder=5"], "managedLedgerMaxEntriesPerLedger"),
    ],
)
def test_an_unknown_setting_names_the_nearest(tmp_path: Path, args: list[str], nearest: str) -> None:
    assert nearest in one_line(run("--data-dir", tmp_path, *ANY_PORT, *args))


def test_an_unknown_setting_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("maxMesageSize=1000000\n")
    line = one_line(run("--data-dir", tmp_path / "data", *ANY_PORT, "--config", file))
    assert "maxMesageSize" in line
    assert "maxMessageSize" in line


@pytest.mark.parametrize("value", ["keepAliveIntervalSeconds=soon", "maxMessageSize=-1", "keepAliveIntervalSeconds"])
def test_a_value_that_cannot_be(tmp_path: Path, value: str) -> None:
    assert value.partition("=")[0] in one_line(run("--data-dir", tmp_path, *ANY_PORT, "--set", value))


def test_a_configuration_file_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere.conf" in run("--config", tmp_path / "nowhere.conf").splitlines()[-1]


@pytest.mark.parametrize(
    "args", [["--port", "http"], ["--port", "70000"], ["--no-such-flag"], ["surplus"], ["--log-level", "shout"]]
)
def test_usage_errors_are_code_2(args: list[str]) -> None:
    assert "Usage: magnetar standalone" in run(*args, code=2)


# ---- Stopping


@pytest.mark.alone
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_with_open_clients_and_a_backlog(
    start_server: StartServer, connect: Connect, end: signal.Signals
) -> None:
    """Producers in mid-flight, consumers waiting, half a frame on a raw socket, an idle HTTP connection, 40 MB unconsumed."""
    server = start_server()
    client, topic = connect(server.service_url), "stop"
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=10)
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=100)
    stored: dict[int, tuple[int, int, int]] = {}
    for number in range(40):
        stored[number] = key_of(producer.send(number.to_bytes(4, "big") + bytes(MIB)))
    acked = set[bytes]()
    for _ in range(5):
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        acked.add(message.data()[:4])
    over = threading.Event()

    def send() -> None:
        number = len(stored)
        while not over.is_set():
            producer.send_async(number.to_bytes(4, "big") + bytes(1000), receipt_of(number))
            number += 1

    def receipt_of(number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def done(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                stored[number] = key_of(message_id)

        return done

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    wait_until(lambda: len(stored) > 200)
    with (
        RawClient(server.port) as half,
        socket.create_connection(("127.0.0.1", server.http_port)),
        RawClient(server.port, receive_buffer_bytes=4096) as unread,
    ):
        half.connect()
        half.send_bytes(b"\x00\x00\x10\x00\x00")
        unread.connect()
        unread.subscribe(topic, "unread")
        unread.flow(1000)
        time.sleep(0.2)
        started = time.monotonic()
        server.signal(end)
        assert server.wait(30) == 0
        took_s = time.monotonic() - started
    print(f"\nstop with clients and backlog: {took_s:.2f} s")
    assert took_s < STOP_MAX_S
    assert "Traceback" not in server.log(), server.log()[-3000:]
    promised = dict(stored)
    server.start()
    over.set()
    sender.join(10)
    log = read_log(connect(server.service_url), topic)
    content = dict(zip(log.keys, log.payloads, strict=True))
    assert all(content[key][:4] == number.to_bytes(4, "big") for number, key in promised.items())
    consumer.close()
    again = subscribe_next(connect(server.service_url), topic, "sub")
    assert again.receive(30_000).data()[:4] == (5).to_bytes(4, "big"), f"{len(acked)} acknowledgements were stored"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_signals_twice_and_during_the_start(start_server: StartServer, end: signal.Signals) -> None:
    server = start_server()
    server.signal(end)
    server.signal(end)
    assert server.wait(60) == 0
    server.spawn()
    # Before that the signal meets the interpreter's own start, which says so in a traceback.
    wait_until(lambda: "_asyncio" in Path(f"/proc/{server.pid}/maps").read_text())
    server.signal(end)
    assert server.wait(60) in (0, 130, -end), "stopped while it starts, before or after it took over the signal"
    assert "Traceback" not in server.log(), server.log()[-3000:]
    assert server.start().stop() == 0
