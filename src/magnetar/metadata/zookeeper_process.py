"""A real ZooKeeper server in a process of its own: the server classes lie in PySpark's jars.

One server on loopback, alone or as a member of an ensemble, with its data, its configuration and its log in one directory.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from magnetar.base.errors import StartupError
from magnetar.base.java import find_java
from magnetar.base.ports import free_ports
from magnetar.metadata.digest_md5 import Credentials

READY_TIMEOUT_S: Final = 60.0
"""A server that does not serve by then is given up."""

STOP_TIMEOUT_S: Final = 10.0
"""A server that has not ended by then after SIGTERM is killed."""

POLL_INTERVAL_S: Final = 0.05

INIT_LIMIT_TICKS: Final = 20
"""Time for a member to connect to the leader and to load its snapshot: 10 s with ticks of 500 ms."""

SYNC_LIMIT_TICKS: Final = 10
"""A member that lags behind the leader by more is dropped until it has caught up: 5 s with ticks of 500 ms."""

_LOG_TAIL_CHARS: Final = 2000

# ZooKeeper holds its tree in memory: 256 MiB were full at 440,000 topics. What is not needed is not taken.
_JVM: Final = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true")
_ASKING: Final = {
    "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    "enforce.auth.enabled": "true",
    "enforce.auth.schemes": "sasl",
}
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One server of an ensemble, as all of them have to know it (ZooKeeper's `server.N=host:quorum:election`)."""

    number: int
    quorum_port: int
    election_port: int


class ZooKeeperProcess:
    """`with` (or `async with`) `ZooKeeperProcess(directory) as zookeeper: connect(zookeeper.address)`.

    Port 0 takes a free one at the first start and keeps it. Sessions last between 2 and 20 ticks. `ensemble` lists all
    members, this one (`number`) among them; an ensemble serves once a majority of its members runs. With `credentials` it
    serves only clients that prove by SASL that they know them.
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        tick_time_ms: int = 500,
        ensemble: Sequence[EnsembleMember] = (),
        number: int = 0,
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self.directory = directory
        self.port = port
        self.tick_time_ms = tick_time_ms
        self._ensemble = tuple(ensemble)
        self._number = number
        assert not ensemble or number in [each.number for each in ensemble]
        self.log_path = directory / "zookeeper.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """What `open_store` takes."""
        return f"zk:{self.address}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def command(self) -> list[str]:
        """Write the configuration; the command line that serves it. Raises StartupError without Java or jars."""
        java = find_java()
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.port == 0:
            (self.port,) = free_ports(1)
        settings: dict[str, object] = {
            "tickTime": self.tick_time_ms,
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            "preAllocSize": 1024,
            "4lw.commands.whitelist": "ruok,srvr,stat,cons,mntr",
        }
        if self._ensemble:
            # A follower may take initLimit ticks to load the leader's snapshot and lag by syncLimit ticks.
            settings |= {"initLimit": INIT_LIMIT_TICKS, "syncLimit": SYNC_LIMIT_TICKS, "quorumListenOnAllIPs": "false"}
            for each in self._ensemble:
                settings[f"server.{each.number}"] = f"127.0.0.1:{each.quorum_port}:{each.election_port}"
            data = self.directory / "data"
            data.mkdir(exist_ok=True)
            (data / "myid").write_text(f"{self._number}\n")
        options: list[str] = []
        if self._credentials is not None:
            settings |= _ASKING
            options = [f"-Djava.security.auth.login.config={self._write_login(self._credentials)}"]
        file = self.directory / "zoo.cfg"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return [str(java), *_JVM, *options, "-cp", f"{jars()}/*", _MAIN, str(file)]

    def _write_login(self, credentials: Credentials) -> Path:
        """The users of the server, in Java's form."""
        path = self.directory / "jaas.conf"
        text = (
            "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
            f'  user_{credentials.user}="{credentials.secret}";\n}};\n'
        )
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text)
        return path

    def start(self) -> ZooKeeperProcess:
        """Returns once the server answers. Raises StartupError."""
        command = self.command()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not four_letters("127.0.0.1", self.port, "srvr").startswith(
            "Zookeeper version"
        ):  # ruok says so too early
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise StartupError(f"ZooKeeper did not start: {self.log()[-_LOG_TAIL_CHARS:]}")
            time.sleep(POLL_INTERVAL_S)
        return self

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL: nothing is closed, nothing is flushed."""
        process = self._running()
        process.kill()
        process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def restart(self) -> ZooKeeperProcess:
        """kill -9, then start on the same directory and port."""
        self.kill()
        return self.start()

    def stop(self) -> None:
        """SIGTERM; whatever state it is in, it is gone afterwards."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> ZooKeeperProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> ZooKeeperProcess:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise StartupError("ZooKeeper was not started")
        return self._process


def jars() -> Path:
    """PySpark's directory of jars. Raises StartupError without PySpark; does not import it."""
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found = Path(folder) / "jars"
        if any(found.glob("zookeeper-*.jar")):
            return found
    raise StartupError("ZooKeeper's server comes with PySpark, which is missing: pip install 'magnetar[spark]'")


def four_letters(host: str, port: int, word: str, timeout_s: float = 2.0) -> str:
    """The answer to `ruok`, `srvr` or another such word; empty when there is none."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(word.encode())
            parts = []
            while data := connection.recv(65536):
                parts.append(data)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""
