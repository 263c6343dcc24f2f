"""A standalone server of our own for the time of a demo."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from magnetar.cli.errors import CommandError

STOP_TIMEOUT_S = 10.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Server:
    """Where it listens, how long it took to get there, and whether it still lives."""

    url: str
    admin_url: str
    start_s: float
    log: Path
    process: subprocess.Popen[str]

    def check(self) -> None:
        """Raises CommandError when the process has ended."""
        if self.process.poll() is not None:
            raise CommandError(
                f"the server ended unexpectedly (exit code {self.process.returncode}): {last_line(self.log)}"
            )


@contextmanager
def running(data_dir: Path, *settings: str, ports: tuple[int, int] = (0, 0)) -> Iterator[Server]:
    """`magnetar standalone` on `ports` (0: free ones) with `--set` for each of `settings`; its log is server.log in `data_dir`."""
    command = [
        sys.executable,
        "-m",
        "magnetar",
        "standalone",
        "--data-dir",
        str(data_dir),
        "--port",
        str(ports[0]),
        "--http-port",
        str(ports[1]),
    ]
    for text in settings:
        command += ["--set", text]
    log_path = data_dir / "server.log"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAGNETAR_", "PULSAR_PREFIX_"))
    }
    started = time.monotonic()
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which then stops the server
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:2] != ["magnetar", "ready"]:
            raise CommandError(f"the server did not start: {last_line(log_path)}")
        yield Server(words[2], words[3], time.monotonic() - started, log_path, process)
    finally:
        stop(process)


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the demo is gone, even after a kill -9. Runs in the child before it becomes the server."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM, and SIGKILL for a server that does not obey."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"
