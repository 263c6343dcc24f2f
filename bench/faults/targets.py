"""What is tested: `magnetar standalone`, Apache Pulsar's standalone, behind a TCP proxy of ours; a cluster of our processes; or two
clusters that replicate to each other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from tests.compat.pulsar.standalone import answers, command_of
from tests.support.geo import Region
from tests.support.geo_links import far_regions
from tests.support.raw_transactions import RawTransactions
from tests.support.stalling_proxy import Direction, StallingProxy

from magnetar.base.ports import free_ports
from magnetar.testing.cluster import ClusterProcesses
from magnetar.testing.server import ServerProcess

SITE = Path(__file__).resolve().parent / "site"
"""Goes onto the servers' PYTHONPATH: its sitecustomize makes clocks wrong and plants bugs."""
START_TIMEOUT_S = 600.0
TINY_DISK_MIB = 96
LINK_DELAY_S = 0.02
"""Between two clusters, one way."""


class Door(Protocol):
    """Where clients connect."""

    def dial(self, topic: str = "", timeout_s: float = 5.0) -> RawTransactions:
        """A new connection, to the topic's owner."""
        ...


class Partition(Protocol):
    """What the faults `partition` act on."""

    def stall(self, direction: Direction = "both") -> None: ...

    def heal(self) -> None: ...

    def close(self) -> None: ...


class Target(ABC):
    """One server. `epoch` rises before each fault that ends connections: what two connections hold compares within one epoch alone."""

    can = ("kill", "pause", "partition", "partition-up", "partition-down")
    port: int
    http_url: str
    proxy: Partition

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables: dict[str, str] = {}
        """Of processes that belong to the target: wrong clocks and planted bugs."""
        self.epoch = 0
        self.ballast = folder / "disk" / "ballast"

    def dial(self, topic: str = "", timeout_s: float = 5.0) -> RawTransactions:
        """A new connection, to the topic's owner."""
        assert isinstance(self.proxy, StallingProxy)
        return _dialed(self.proxy.port, topic, timeout_s)

    def rest(self, method: str, path: str, body: object = None, timeout_s: float = 10.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.http_url}/admin/v2/{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    @property
    @abstractmethod
    def pids(self) -> list[int]: ...

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def start_again(self) -> None: ...

    def pause(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)

    def clock(self, by_s: float) -> None:
        (self.folder / "clock.new").write_text(str(int(by_s * 1e9)))
        (self.folder / "clock.new").replace(self.folder / "clock")

    def fill(self) -> None:
        """Take all room that the disk has left."""
        subprocess.run(["dd", "if=/dev/zero", f"of={self.ballast}", "bs=64k"], capture_output=True)

    def empty(self) -> None:
        self.ballast.unlink(missing_ok=True)

    def mount(self, on_small_disk: bool) -> Path:
        disk = self.folder / "disk"
        disk.mkdir(parents=True)
        if on_small_disk:
            command = ["mount", "-t", "tmpfs", "-o", f"size={TINY_DISK_MIB}m", "tmpfs", str(disk)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"The fault 'disk' needs a small file system, and mounting takes root: {done.stderr}")
            self.can = (*self.can, "disk")
        return disk

    def upgrade(self) -> None:
        """One process of an older version is replaced by today's. Only for targets whose `can` has the fault."""
        raise NotImplementedError(f"{type(self).__name__} has no older version to replace")

    def settle(self) -> None:  # noqa: B027 (only an upgrade has something to end)
        """The last fault is over: what has begun is brought to its end."""

    @abstractmethod
    def log(self) -> str: ...

    def close(self) -> None:
        self.proxy.close()
        subprocess.run(["umount", "-l", str(self.folder / "disk")], capture_output=True)
        shutil.rmtree(self.folder / "disk", ignore_errors=True)


def _dialed(port: int, topic: str, timeout_s: float) -> RawTransactions:
    connection = RawTransactions(port, timeout_s=timeout_s)
    if topic:
        connection.lookup(topic)
    return connection


def environment(folder: Path, planted: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path, "FAULTS_CLOCK": str(folder / "clock"), "FAULTS_PLANTED": planted}


class Magnetar(Target):
    """`magnetar standalone`."""

    can = (*Target.can, "clock")

    def __init__(self, folder: Path, settings: dict[str, object], planted: str, on_small_disk: bool) -> None:
        super().__init__(folder)
        disk = self.mount(on_small_disk)
        self.variables = environment(folder, planted)
        self.server = ServerProcess(disk / "data", settings, self.variables)
        self.server.log_path = folder / "server.log"
        self.server.start()
        self.port, self.http_url = self.server.port, self.server.http_url
        self.proxy = StallingProxy(self.port)

    @property
    def pids(self) -> list[int]:
        return [self.server.pid]

    def kill(self) -> None:
        self.server.kill()

    def start_again(self) -> None:
        if not self.server.running:
            self.server.start()

    def log(self) -> str:
        return self.server.log()

    def close(self) -> None:
        self.server.close()
        super().close()


class ApachePulsar(Target):
    """Apache Pulsar's standalone, out of the jars in $PULSAR_JARS."""

    def __init__(self, folder: Path, settings: dict[str, object], planted: str, on_small_disk: bool) -> None:
        super().__init__(folder)
        jars = os.environ.get("PULSAR_JARS", "")
        if planted or not any(Path(jars or "/nowhere").glob("pulsar-broker-*.jar")):
            raise SystemExit(
                "Apache Pulsar takes no planted bug and needs PULSAR_JARS: tests/compat/pulsar/fetch-jars DIRECTORY"
            )
        disk = self.mount(on_small_disk)
        self.port, http_port, bookie_port = free_ports(3)
        self.http_url = f"http://127.0.0.1:{http_port}"
        ports = {"brokerServicePort": self.port, "webServicePort": http_port, "journalSyncData": "true"}
        options = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=512m")
        self._command = command_of(jars, disk, settings | ports, options)
        self._command += ["--bookkeeper-port", str(bookie_port)]
        self._http_port = http_port
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start_again()
        except BaseException:
            if self._process is not None:
                self.kill()
            raise
        self.proxy = StallingProxy(self.port)

    @property
    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self._http_port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit(f"Apache Pulsar did not start:\n{self.log()[-3000:]}")
            time.sleep(0.2)

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        super().close()


class Cluster(Target):
    """Two brokers, three bookies and metadata as processes of their own, each killed or paused by lot; no proxy stands between."""

    can = ("kill", "pause", "clock")

    def __init__(self, folder: Path, settings: dict[str, object], planted: str, zookeeper: int) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(self.environment(folder, planted))
        words = [f"{key}={value}" for key, value in settings.items()]
        self.processes = ClusterProcesses(folder / "cluster", bookies=3, brokers=2, zookeeper=zookeeper, settings=words)
        try:
            self.processes.start()
        except BaseException:
            self.processes.close()
            raise
        self.http_url = self.processes.http_url
        self.chosen: list[str] = []
        self._turn = 0

    def environment(self, folder: Path, planted: str) -> dict[str, str]:
        return environment(folder, planted)

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self.processes.status().values() if each.pid is not None]

    def choose(self) -> str:
        names = [name for name in self.processes.status() if name.startswith(("broker", "bookie"))]
        self._turn += 1
        return names[self._turn % len(names)]

    def dial(self, topic: str = "", timeout_s: float = 5.0) -> RawTransactions:
        urls = self.processes.service_urls.removeprefix("pulsar://").split(",")
        last: Exception = ConnectionRefusedError("no broker answers")
        for url in urls:
            try:
                first = RawTransactions(int(url.rpartition(":")[2]), timeout_s=timeout_s)
                answer = first.lookup(topic or "persistent://public/default/any").lookupTopicResponse
                first.close()
                if not answer.brokerServiceUrl:
                    raise ConnectionRefusedError(answer.message)
                return RawTransactions(int(answer.brokerServiceUrl.rpartition(":")[2]), timeout_s=timeout_s)
            except (OSError, AssertionError) as error:
                last = error
        raise last

    def rest(self, method: str, path: str, body: object = None, timeout_s: float = 10.0) -> Any:
        last: Exception = ConnectionRefusedError("no broker answers")
        for name in [each for each in self.processes.status() if each.startswith("broker")]:
            self.http_url = self.processes.broker(name)[1]
            try:
                return super().rest(method, path, body, timeout_s)
            except urllib.error.HTTPError as error:
                last = error
                if error.code == 307:
                    self.http_url = error.headers["Location"].partition("/admin/")[0]
                    return super().rest(method, path, body, timeout_s)
            except OSError as error:
                last = error
        raise last

    def kill(self) -> None:
        self.chosen = [self.choose()]
        self.processes.kill(*self.chosen)

    def start_again(self) -> None:
        for name in self.chosen:
            self.start_one(name)
        self.chosen = []

    def start_one(self, name: str) -> None:
        self.processes.start_again(name)

    def pause(self) -> None:
        self.chosen = [self.choose()]
        self.processes.pause(self.chosen[0])

    def resume(self) -> None:
        for name in self.chosen:
            self.processes.resume(name)
        self.chosen = []

    def log(self) -> str:
        return "".join(self.processes.log(name) for name in self.processes.status())

    def close(self) -> None:
        self.processes.close()


class RollingUpgrade(Cluster):
    """Begins on the code of an older checkout, $MAGNETAR_OLD.

    The fault `upgrade` replaces one process by today's code: metadata first, then bookies, then brokers. The rest follows at the end.
    A process that is killed comes back on the code it had.
    """

    can = ("kill", "pause", "upgrade")

    def __init__(self, folder: Path, settings: dict[str, object], planted: str) -> None:
        old = Path(os.environ.get("MAGNETAR_OLD", "/nowhere")) / "src"
        if planted or not (old / "magnetar").is_dir():
            raise SystemExit(
                "A rolling upgrade takes no planted bug and needs MAGNETAR_OLD, a checkout of an older version: git worktree add DIR COMMIT"
            )
        today = environment(folder, planted)["PYTHONPATH"]
        self._code = {"old": os.pathsep.join((str(SITE), str(old))), "today": today}
        self.old: list[str] = []
        super().__init__(folder, settings, planted, 0)
        names = list(self.processes.status())
        roles = ("metadata", "bookie", "autorecovery", "broker")
        self.old = sorted(names, key=lambda name: [name.startswith(role) for role in roles].index(True))

    def environment(self, folder: Path, planted: str) -> dict[str, str]:
        return super().environment(folder, planted) | {"PYTHONPATH": self._code["old"]}

    def start_one(self, name: str) -> None:
        os.environ["PYTHONPATH"] = self._code["old" if name in self.old else "today"]
        super().start_one(name)

    def upgrade(self) -> None:
        """Stop the next process in order, and start today's code on its files."""
        if self.old:
            name = self.old[0]
            self.processes.stop(name)
            self.old.remove(name)
            self.start_one(name)

    def settle(self) -> None:
        while self.old:
            self.epoch += 1
            self.upgrade()


class Side:
    """One of two clusters, as its clients reach it."""

    def __init__(self, region: Region) -> None:
        self.region = region

    def dial(self, topic: str = "", timeout_s: float = 5.0) -> RawTransactions:
        return _dialed(self.region.server.port, topic, timeout_s)


class _Between:
    """The links between two clusters. `up`: nothing goes from the first to the second."""

    def __init__(self, stack: ExitStack, folder: Path, settings: dict[str, object]) -> None:
        self.links, self.regions = stack.enter_context(
            far_regions(folder, "west", "east", delay_s=LINK_DELAY_S, settings=settings)
        )

    def stall(self, direction: Direction = "both") -> None:
        west, east = (region.name for region in self.regions)
        if direction != "down":
            self.links.cut(west, east)
        if direction != "up":
            self.links.cut(east, west)

    def heal(self) -> None:
        self.links.mend_all()

    def close(self) -> None:
        self.heal()


class Regions(Target):
    """Two clusters of one process each that replicate to each other. Kills and pauses hit them in turn, partitions what is between them."""

    can = (*Target.can, "clock")

    def __init__(self, folder: Path, settings: dict[str, object], planted: str) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(environment(folder, planted))
        self._stack = ExitStack()
        between = _Between(self._stack, folder, settings)
        self.proxy, self.regions = between, between.regions
        self.sides = [Side(region) for region in self.regions]
        self._turn = 0

    @property
    def pids(self) -> list[int]:
        return [region.server.pid for region in self.regions if region.running]

    def kill(self) -> None:
        self._turn += 1
        self.regions[self._turn % len(self.regions)].server.kill()

    def start_again(self) -> None:
        for region in self.regions:
            if not region.running:
                region.server.start()

    def pause(self) -> None:
        self._turn += 1
        os.kill(self.regions[self._turn % len(self.regions)].server.pid, signal.SIGSTOP)

    def log(self) -> str:
        return "".join(region.server.log() for region in self.regions)

    def close(self) -> None:
        self._stack.close()
