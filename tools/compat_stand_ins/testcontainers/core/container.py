"""DockerContainer as far as the suite uses it: ports and settings go to a `magnetar standalone`, the image and command do not count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


class DockerContainer:
    def __init__(self, image: str) -> None:
        self._ports: dict[int, int] = {}
        self._settings: dict[str, str] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="magnetar-compat-container-", dir=os.environ.get("TMPDIR")))
        self._process: subprocess.Popen[bytes] | None = None

    def with_env(self, key: str, value: str) -> DockerContainer:
        if key in ("clusterName", "advertisedAddress"):
            self._settings[key] = value
        return self

    def with_bind_ports(self, inside: int, outside: int) -> DockerContainer:
        self._ports[inside] = outside
        return self

    def with_command(self, command: str) -> DockerContainer:
        return self

    def start(self) -> DockerContainer:
        command = [sys.executable, "-m", "magnetar", "standalone", "--data-dir", str(self._directory / "data")]
        command += ["--port", str(self._ports[6650]), "--http-port", str(self._ports[8080])]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)

    def get_wrapped_container(self) -> DockerContainer:
        return self

    def kill(self, signal: str = "SIGKILL") -> None:  # docker's name for it
        if self._process is not None:
            self._process.send_signal(_number(signal))

    def logs(self) -> bytes:
        return (self._directory / "log").read_bytes()


def _number(name: str) -> int:
    return int(signal.Signals[name])
