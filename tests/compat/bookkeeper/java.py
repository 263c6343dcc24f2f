"""Apache BookKeeper's client and bookie as processes, from a directory of jars."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

INTEROP = Path(__file__).with_name("Interop.java")


def payload(number: int, size: int) -> bytes:
    """The same as Interop.java's."""
    word = b"%08d|" % number
    return (word * (size // len(word) + 1))[:size]


def checksum(entries: int, size: int) -> int:
    """CRC-32 of the payloads of a ledger's first entries."""
    return zlib.crc32(b"".join(payload(number, size) for number in range(entries)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A child whose log goes to a file. Who `talks` is heard line by line; a pipe that nobody reads would stop the child."""

    def __init__(self, command: Sequence[str], log: Path, *, talks: bool = True) -> None:
        self.log = log
        file = log.open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE if talks else file, stderr=file, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-3000:]
        return line.strip()

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)


class JavaClient(Process):
    """`ask("write 3 2 2 CRC32C 100 1024 close")` -> the words after `ok`."""

    def __init__(self, jars: Path, zookeeper: str, version: str, log: Path) -> None:
        command = [
            "java",
            "-Xmx300m",
            "-cp",
            f"{jars}/*",
            str(INTEROP),
            f"zk+hierarchical://{zookeeper}/ledgers",
            version,
        ]
        super().__init__(command, log)
        while self.line() != "ready":
            pass

    def say(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        while not (line := self.line()).startswith(("ok", "error")):
            pass
        return line

    def ask(self, command: str) -> list[str]:
        words = self.say(command).split()
        assert words[0] == "ok", f"{command}: {' '.join(words)}"
        return words[1:]


class MagnetarBookie(Process):
    """`magnetar bookie` on a port of its own."""

    def __init__(self, directory: Path, zookeeper: str, port: int = 0) -> None:
        self.port = port or free_port()
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "magnetar", "bookie", "--data-dir", str(directory / "data")]
        command += ["--port", str(self.port), "--http-port", "-1", "--metadata-url", f"zk:{zookeeper}"]
        super().__init__(command, directory / "log")
        self.line()

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"


class JavaBookie(Process):
    """Apache's bookie."""

    def __init__(self, directory: Path, jars: Path, zookeeper: str, storage: str) -> None:
        self.port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "bookiePort": self.port,
            "advertisedAddress": "127.0.0.1",
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "metadataServiceUri": f"zk+hierarchical://{zookeeper}/ledgers",
            "journalDirectories": directory / "journal",
            "ledgerDirectories": directory / "ledgers",
            "ledgerStorageClass": storage,
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
            "httpServerEnabled": "false",
            "enableStatistics": "false",
            "extraServerComponents": "",
            "journalMaxSizeMB": 64,
            "journalPreAllocSizeMB": 4,
            "dbStorage_writeCacheMaxSizeMb": 16,
            "dbStorage_readAheadCacheMaxSizeMb": 16,
            "skipListSizeLimit": 4_194_304,
        }
        configuration = directory / "bookie.conf"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = ["java", "-Xmx300m", "-XX:MaxDirectMemorySize=300m", "-cp", f"{jars}/*"]
        command += ["org.apache.bookkeeper.server.Main", "--conf", str(configuration)]
        super().__init__(command, directory / "log", talks=False)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Until it accepts connections."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self.log.read_text()[-3000:]
                time.sleep(0.2)
