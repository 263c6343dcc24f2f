"""What is wrong with a command line or its limits is one line that names the fix and repeats no secret."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.traffic import read_log

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I"
COMMAND_S = 60
MIB = 1024 * 1024


def run(
    *words: str | bytes, cwd: Path, env: dict[str, str] | None = None, space_bytes: int = 0
) -> subprocess.CompletedProcess[str]:
    limited = [b"prlimit", b"--core=0", b"--as=%d" % space_bytes] if space_bytes else []
    command = [*limited, sys.executable, "-m", "magnetar", *words]
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=COMMAND_S,
    )


SLIPS = [
    f"tokenSecretKey:{SECRET}",
    f"tokenSecretKey:{SECRET}=",
    f"tokenSecretKey {SECRET}=",
    f"{SECRET}=",
    SECRET,
    f"brokerClientAuthenticationParameters:token:{SECRET}=",
    f"broker.tokenSecretKey:{SECRET}=",
    f"nobody.tokenSecretKey={SECRET}",
    f"tokenSecretKey:{SECRET}.x=",
]


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("command", [("standalone",), ("broker",), ("cluster", "up", "--dir", "c")])
def test_a_slip_in_set_repeats_no_secret(tmp_path: Path, command: tuple[str, ...], slip: str) -> None:
    done = run(*command, "--set", slip, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("magnetar: --set")
    assert len(done.stderr.splitlines()) == 1
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("line", [f"tokenSecretKey:{SECRET}", f"tokenSecretKey:{SECRET}=", SECRET])
def test_a_slip_in_a_file_repeats_no_secret(tmp_path: Path, line: str) -> None:
    (tmp_path / "broker.conf").write_text(line + "\n")
    done = run("standalone", "--config", "broker.conf", cwd=tmp_path)
    assert (done.returncode, "broker.conf:1" in done.stderr) == (1, True)
    assert SECRET not in done.stdout + done.stderr


EMPTY = [
    ("standalone", "--data-dir", ""),
    ("standalone", "--config", ""),
    ("standalone", "--bind-address", ""),
    ("standalone", "--advertised-address", ""),
    ("standalone", "--cluster-name", ""),
    ("bookie", "--data-dir", "", "--metadata-url", "zk:127.0.0.1:1"),
    ("bookie", "--metadata-url", ""),
    ("metadata-server", "--data-dir", ""),
    ("cluster", "up", "--dir", ""),
    ("demo", "flights", "--data-dir", ""),
    ("tokens", "create-secret-key", "--output", ""),
    ("tokens", "create", "--secret-key", SECRET, "--subject", ""),
    ("tokens", "validate", "--secret-key", SECRET, "--token-file", ""),
    ("topics", "list", "public/default", "--admin-url", ""),
    ("topics", "stats", ""),
    ("produce", "", "-m", "x"),
    ("consume", "topic", "--url", ""),
    ("consume", "topic", "-s", ""),
    ("pipeline", "run", ""),
]


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_an_empty_path_or_name_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "must not be empty" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing was written into the working directory"


@pytest.mark.parametrize("word", ["dataDir=", "bindAddress=", "clusterName=  "])
def test_an_empty_setting_that_needs_a_value_is_refused(tmp_path: Path, word: str) -> None:
    done = run("standalone", "--set", word, cwd=tmp_path)
    assert (done.returncode, "must not be empty" in done.stderr) == (1, True)
    key = {"dataDir=": "MAGNETAR_DATA_DIR", "bindAddress=": "PULSAR_PREFIX_bindAddress"}.get(word)
    if key is not None:
        assert "must not be empty" in run("standalone", cwd=tmp_path, env={key: ""}).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        (b"standalone", b"--data-dir", b"\xff\xfe"),
        (b"standalone", b"--set", b"tokenSecretKey=\xff"),
        (b"produce", b"to\xc3pic", b"-m", b"x"),
        (b"topics", b"stats", b"\x80"),
        (b"tokens", b"show", b"\xff"),
        (b"hash", b"\xff"),
        (b"\xff",),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused(tmp_path: Path, words: tuple[bytes, ...]) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "is not valid UTF-8" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mib", [150, 250, 400, 600])
@pytest.mark.parametrize("command", ["standalone", "metadata-server"])
def test_too_little_address_space_is_one_line(tmp_path: Path, command: str, mib: int) -> None:
    done = run(command, "--data-dir", "d", "--port", "0", cwd=tmp_path, space_bytes=mib * MIB)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("magnetar: out of memory")
    assert "raise the limit" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_memory_that_runs_out_later_costs_nothing_acknowledged(tmp_path: Path) -> None:
    """Whether the server refuses or ends: what it has acknowledged is there at the next start."""
    server = ServerProcess(tmp_path / "data").start()
    acknowledged: set[bytes] = set()
    try:
        client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer("topic", send_timeout_millis=2000, block_if_queue_full=True)
        status = Path(f"/proc/{server.pid}/status").read_text()
        size_kib = int(next(line for line in status.splitlines() if line.startswith("VmSize")).split()[1])

        def send(number: int) -> None:
            payload = b"%06d" % number + os.urandom(1_000_000)
            producer.send_async(
                payload, lambda result, _: acknowledged.add(payload) if result == pulsar.Result.Ok else None
            )

        for number in range(20):
            send(number)
        producer.flush()
        assert len(acknowledged) == 20
        limit = (size_kib + 8 * 1024) * 1024
        subprocess.run(["prlimit", f"--pid={server.pid}", "--core=0", f"--as={limit}"], check=True)
        for number in range(20, 60):
            try:
                send(number)
            except pulsar.PulsarException:
                break

        def flush() -> None:
            with suppress(pulsar.PulsarException):
                producer.flush()

        waiting = threading.Thread(target=flush)
        waiting.start()
        # a server that cuts connections for want of memory has the client come back again and again, for minutes
        waiting.join(5)
        server.close()
        waiting.join(60)
        assert not waiting.is_alive(), "without a server the client's own time-out ends the waiting"
        server.start()
        reader = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stored = set(read_log(reader, "topic").payloads)
        assert acknowledged <= stored
        reader.close()
    finally:
        server.close()
