"""`magnetar pipeline run --serve`: the views' server as a process beside the driver, so that neither waits for the other."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from magnetar.cli.errors import CommandError

STOP_TIMEOUT_S: Final = 20.0


def check_ports(port: int | None, http_port: int | None) -> None:
    """Raises CommandError before anything is started: when another process uses a port, or `http_port` is given without `port`."""
    if http_port is not None and http_port >= 0 and port is None:
        raise CommandError(
            f"--http-port {http_port} is a port of the server that --serve starts: add --serve 0 for any port of PostgreSQL's protocol"
        )
    if port and port == http_port:
        raise CommandError(f"--serve and --http-port are both {port}; choose another port for one of them")
    _check_port("--serve", port)
    _check_port("--http-port", http_port)


def _check_port(option: str, port: int | None) -> None:
    if port is None or port <= 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandError(f"{option} {port}: {error.strerror}; choose another port, 0 for any free one") from error


@contextmanager
def serving_beside(
    directory: str, port: int | None, say: Callable[[str], None], http_port: int | None = None
) -> Iterator[None]:
    """Until the block ends; nothing without a port. The server's stderr is this process's; `say` is told where it is, and of its end."""
    if port is None:
        yield
        return
    target = directory if "/" in directory else f"./{directory}"
    command = [sys.executable, "-m", "magnetar", "pipeline", "serve", target, "--port", str(port), "--until-stdin-ends"]
    if http_port is not None:
        command += ["--http-port", str(http_port)]
    # A group of its own: Ctrl-C is the driver's, which ends the server when its last epoch is committed.
    # Its stdin ends with this process, however that ends, and it ends with its stdin.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    ending = threading.Event()

    def follow() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            say(f"views: {line.removeprefix('magnetar ready ').strip()}")
        code = process.wait()
        if not ending.is_set():
            say(f"views are not served any more: the server ended with exit code {code}; the pipeline goes on")

    thread = threading.Thread(target=follow, name="views-server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join(STOP_TIMEOUT_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
