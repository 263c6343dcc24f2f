"""A real server in a process of its own, and the `magnetar` command against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.cli.demo.server import Server, running

MAGNETAR = Path(sys.executable).parent / "magnetar"


class Shell:
    """Runs `magnetar` as a user does, with the server's addresses in the environment."""

    def __init__(self, server: Server) -> None:
        self.env = dict(os.environ) | {"MAGNETAR_URL": server.url, "MAGNETAR_ADMIN_URL": server.admin_url}

    def run(self, *args: str, code: int = 0, stdin: bytes | None = None) -> str:
        """stdout of a command that must end with `code`; stderr when it must fail."""
        result = subprocess.run([MAGNETAR, *args], env=self.env, input=stdin, capture_output=True, timeout=60)
        out, err = result.stdout.decode(), result.stderr.decode()
        assert result.returncode == code, out + err
        return err if code else out

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [MAGNETAR, *args], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def shell(server: Server) -> Shell:
    return Shell(server)
