"""A cluster of real processes for tests: bookies, brokers and their metadata, to be killed, paused and started again."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from magnetar.metadata.digest_md5 import Credentials
from magnetar.processes.cluster.cluster import Cluster, ProcessStatus
from magnetar.processes.cluster.growth import Wish
from magnetar.processes.cluster.plan import BOOKIE, BROKER


class ClusterProcesses:
    """`with ClusterProcesses(tmp_path / "cluster", bookies=3) as cluster: connect(cluster.service_url)`. All of it is gone afterwards.

    `zookeeper`: servers of a ZooKeeper ensemble; 0 for the embedded metadata server. `settings` are words as `magnetar cluster
    up --set` takes them; `ensemble`: ensemble size, write quorum, ack quorum.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bookies: int = 3,
        brokers: int = 1,
        autorecovery: int = 0,
        zookeeper: int = 0,
        ensemble: tuple[int, int, int] | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        self._wish = Wish(
            bookies=bookies,
            brokers=brokers,
            autorecovery=autorecovery,
            zookeeper=zookeeper,
            ensemble=ensemble or (None, None, None),
            settings=settings,
        )
        self.cluster = Cluster(directory)

    @property
    def directory(self) -> Path:
        return self.cluster.directory

    @property
    def service_url(self) -> str:
        """Service URL of the first broker."""
        return self.cluster.plan.of_role(BROKER)[0].addresses[0]

    @property
    def service_urls(self) -> str:
        """Service URL with all brokers; clients try one after the other."""
        brokers = self.cluster.plan.of_role(BROKER)
        return "pulsar://" + ",".join(each.addresses[0].removeprefix("pulsar://") for each in brokers)

    def broker(self, name: str) -> tuple[str, str]:
        """Service URL and admin URL of one broker."""
        service_url, http_url = self.cluster.plan.find(name).addresses[:2]
        return service_url, http_url

    @property
    def http_url(self) -> str:
        """URL of the first broker's admin API."""
        return self.cluster.plan.of_role(BROKER)[0].addresses[1]

    @property
    def metadata_url(self) -> str:
        """The metadata store's URL, for `magnetar.metadata.open.open_store`."""
        return self.cluster.plan.metadata_url

    @property
    def metadata_credentials(self) -> Credentials | None:
        """The credentials that `open_store` needs for it."""
        return self.cluster.metadata_credentials()

    @property
    def bookie_ids(self) -> dict[str, str]:
        """Process name -> name in ledger metadata."""
        return {process.name: process.addresses[0] for process in self.cluster.plan.of_role(BOOKIE)}

    def start(self) -> ClusterProcesses:
        """Start the cluster; returns once all processes are ready."""
        self.cluster.up(self._wish)
        return self

    def add_bookie(self) -> str:
        """Start one more bookie; returns its name."""
        self.cluster.up(Wish(bookies=len(self.bookie_ids) + 1))
        return list(self.bookie_ids)[-1]

    def status(self) -> dict[str, ProcessStatus]:
        """Status of each process, by name."""
        return {process.name: process for process in self.cluster.status()}

    def kill(self, *names: str) -> None:
        """SIGKILL, all of them at the same moment; returns once they are gone."""
        self.cluster.kill_all(names)

    def stop(self, name: str) -> None:
        """SIGTERM; returns once it is gone."""
        self.cluster.kill(name, signal.SIGTERM)

    def pause(self, name: str) -> None:
        self.cluster.pause(name)

    def resume(self, name: str) -> None:
        self.cluster.resume(name)

    def start_again(self, *names: str) -> None:
        """Start processes on their former ports and data, dependencies first; returns once they are ready."""
        for process in self.cluster.plan.processes:
            if process.name in names:
                self.cluster.start(process.name)

    def log(self, name: str) -> str:
        """Everything that a process has written since its first start."""
        return self.cluster.log_path(name).read_text(errors="replace")

    def close(self) -> None:
        """Kill whatever still runs, and delete the directory."""
        self.cluster.destroy()

    def __enter__(self) -> ClusterProcesses:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
