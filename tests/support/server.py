"""A real `magnetar standalone` in a process of its own: started, killed, stopped and started again on the same directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0


class ServerProcess:
    """`settings` are `--set KEY=VALUE` words (Pulsar's key names). Ports are free ones, and stay the same after a restart."""

    def __init__(
        self, data_dir: Path, settings: dict[str, object] | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir
        self.settings = settings or {}
        self.environment = environment or {}
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self.service_url = ""
        self.http_url = ""
        self._ports = (0, 0)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> ServerProcess:
        """Returns once the server has said that it is ready."""
        return self.spawn().wait_ready()

    def spawn(self) -> ServerProcess:
        """Start the process and do not wait; `kill` it or `wait_ready`."""
        command = [sys.executable, "-m", "magnetar", "standalone", "--data-dir", str(self.data_dir)]
        command += ["--port", str(self._ports[0]), "--http-port", str(self._ports[1])]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment() | self.environment
            )
        return self

    def wait_ready(self) -> ServerProcess:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("magnetar ready "):
            self._process.wait(READY_TIMEOUT_S)
            raise RuntimeError(f"the server did not start: {line!r}\n{self.log()[-4000:]}")
        _, _, self.service_url, self.http_url = line.split()
        self._ports = (int(self.service_url.rsplit(":", 1)[1]), int(self.http_url.rsplit(":", 1)[1]))
        return self

    @property
    def port(self) -> int:
        """Of the binary protocol."""
        return self._ports[0]

    @property
    def http_port(self) -> int:
        """Of the admin API."""
        return self._ports[1]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return self.log_path.read_text()

    def kill(self) -> None:
        """SIGKILL: nothing is closed, nothing is flushed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._reap()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Until it has ended by itself; the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def stop(self) -> int:
        """SIGTERM and wait; the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        code = self._process.wait(STOP_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def close(self) -> None:
        """Whatever state it is in: gone afterwards."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._reap()

    def restart(self) -> ServerProcess:
        """kill -9, then start on the same directory and ports."""
        self.kill()
        return self.start()


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MAGNETAR_", "PULSAR_PREFIX_"))}
    return kept | {"PYTHONUNBUFFERED": "1"}
