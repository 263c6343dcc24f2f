"""A real `magnetar standalone` in a process of its own: started, stopped, killed and started again on the same directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from magnetar.base.ports import free_ports

READY_TIMEOUT_S = 60.0
"""Time-out of waiting for a server that failed to start to end."""

STOP_TIMEOUT_S = 60.0
"""A server that has not ended by then after SIGTERM or SIGKILL is an error."""

LOG_TAIL_CHARS = 4000


class ServerStartError(RuntimeError):
    """The server did not start; the text ends with its log."""


class ServerProcess:
    """Ports are free ones, chosen at the first start and kept afterwards. The log lies beside the data directory.

    `settings` are Pulsar's key names with their values, as in `--set KEY=VALUE`; `environment` is added to this process's.
    `open_files_max`: the most descriptors that the system lets it have, other than this process.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        open_files_max: int | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.settings = dict(settings or {})
        self.environment = dict(environment or {})
        self._open_files_max = open_files_max
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self.service_url = ""
        self.http_url = ""
        self._ports = (0, 0)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> ServerProcess:
        """Returns once the server has said that it is ready. Raises ServerStartError."""
        return self.spawn().wait_ready()

    def spawn(self) -> ServerProcess:
        """Start the process and do not wait; then `wait_ready` or `kill`."""
        command = [sys.executable, "-m", "magnetar", "standalone", "--data-dir", str(self.data_dir)]
        if self._ports == (0, 0):
            first, second = free_ports(2)
            self._ports = (first, second)
        command += ["--port", str(self._ports[0]), "--http-port", str(self._ports[1])]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        if self._open_files_max is not None:
            command = ["sh", "-c", f'ulimit -n {self._open_files_max} && exec "$@"', "sh", *command]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment() | self.environment
            )
        return self

    def wait_ready(self) -> ServerProcess:
        process = self._running()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("magnetar ready "):
            process.wait(READY_TIMEOUT_S)
            raise ServerStartError(f"the server did not start: {line!r}\n{self.log()[-LOG_TAIL_CHARS:]}")
        _, _, self.service_url, self.http_url = line.split()
        self._ports = (_port(self.service_url), _port(self.http_url))
        return self

    @property
    def port(self) -> int:
        """Port of the binary protocol."""
        return self._ports[0]

    @property
    def http_port(self) -> int:
        """Port of the admin API."""
        return self._ports[1]

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Everything that the server has written to stderr since its first start."""
        return self.log_path.read_text()

    def kill(self) -> None:
        """SIGKILL: nothing is closed, nothing is flushed."""
        self._running().send_signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended by itself."""
        process = self._running()
        if process.poll() is None:
            process.send_signal(number)

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until the process has ended by itself; returns the exit code."""
        process = self._running()
        code = process.wait(timeout_s)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def restart(self) -> ServerProcess:
        """kill -9, then start on the same directory and ports."""
        self.kill()
        return self.start()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ServerStartError("the server was not started")
        return self._process


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def _environment() -> dict[str, str]:
    """The environment without settings of the developer's shell, which must not leak into a test."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MAGNETAR_", "PULSAR_PREFIX_"))}
    return kept | {"PYTHONUNBUFFERED": "1"}
