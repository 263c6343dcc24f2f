"""`magnetar standalone`: the ready line, the errors and the end, as a user or a service manager sees them."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MAGNETAR = Path(sys.executable).parent / "magnetar"
READY = re.compile(r"magnetar ready pulsar://127\.0\.0\.1:(\d+) http://127\.0\.0\.1:(\d+)\n")


def command(data_dir: Path, *options: str) -> list[str]:
    return [str(MAGNETAR), "standalone", "--data-dir", str(data_dir), "--http-port", "0", *options]


@contextmanager
def serving(data_dir: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its ready line."""
    process = subprocess.Popen(command(data_dir, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def refused(*args: str) -> str:
    """The one line of a server that could not start."""
    result = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("magnetar: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_one_ready_line_and_a_clean_end(tmp_path: Path, end: signal.Signals) -> None:
    with serving(tmp_path / "data", "--port", "0") as (process, line):
        ready = READY.fullmatch(line)
        assert ready is not None, line
        for port in ready.groups():
            socket.create_connection(("127.0.0.1", int(port)), 30).close()
        process.send_signal(end)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out == ""
        assert "Traceback" not in err


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        assert f"port {port}" in refused(*command(tmp_path, "--port", port))


def test_a_directory_in_use_is_named_and_the_first_server_lives_on(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--port", "0") as (process, line):
        assert READY.fullmatch(line)
        assert str(tmp_path / "data") in refused(*command(tmp_path / "data", "--port", "0"))
        assert process.poll() is None


def test_a_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(*command(tmp_path / "file" / "data", "--port", "0"))


def test_relaxed_durability_is_said_at_the_start(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--port", "0", "--set", "journalSyncData=false") as (process, line):
        assert READY.fullmatch(line)
        process.send_signal(signal.SIGTERM)
        assert "ACKNOWLEDGED MESSAGES ARE LOST" in process.communicate(timeout=60)[1]
