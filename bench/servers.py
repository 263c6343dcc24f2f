"""The two servers under comparison, as processes: ours, and the least a durable server can do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BYTECODE = os.path.join(tempfile.gettempdir(), f"magnetar-bench-bytecode-{os.getuid()}")
"""Modules compiled once, as an installation has them: to compile them anew takes longer than the rest of a start."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Measured:
    """A server's process, and what it uses."""

    port: int
    start_s: float
    _process: subprocess.Popen[str]

    @property
    def memory_mib(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024

    @property
    def cpu_s(self) -> float:
        """CPU time used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Server(Measured):
    """A process that said on which port it serves; `start_s` from spawn to that line."""

    def __init__(self, command: list[str], log: Path) -> None:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": BYTECODE}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        started = time.perf_counter()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=HERE, env=environment
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.start_s = time.perf_counter() - started
        found = re.search(r":(\d+)", line)
        second = re.search(r"http://[^ ]*:(\d+)", line)
        if found is None:
            self.stop()
            raise SystemExit(f"{' '.join(command)} did not start; see {log}:\n{log.read_text()[-2000:]}")
        self.port = int(found[1])
        self.http_port = int(second[1]) if second is not None else 0
        self.pid = self._process.pid


def ours(folder: Path, *settings: str, brokers: int = 0) -> Server:
    """`magnetar standalone` with its data in `folder`. `settings`: KEY=VALUE each. `brokers`: so many broker processes; 0: one process."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--data-dir", str(folder / "data"), "--port", "0", "--http-port", "0", "--log-level", "warning"]
    options += [word for setting in settings for word in ("--set", setting)]
    options += ["--brokers", str(brokers)] if brokers else []
    return Server([sys.executable, "-m", "magnetar", "standalone", *options], folder / "server.log")


def ceiling(folder: Path) -> Server:
    """ceiling.py with its journal in `folder`, which must lie on the same filesystem as ours."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--port", "0", "--journal", str(folder / "ceiling.journal")]
    return Server([sys.executable, str(HERE / "ceiling.py"), *options], folder / "ceiling.log")
