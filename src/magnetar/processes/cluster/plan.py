"""What a cluster is to consist of: the state file `cluster.json` of its directory. Ports are chosen once and kept."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from magnetar.processes.cluster.errors import ClusterError

FILE_NAME: Final = "cluster.json"
FORMAT_VERSION: Final = 1

METADATA: Final = "metadata"
ZOOKEEPER: Final = "zookeeper"
BOOKIE: Final = "bookie"
BROKER: Final = "broker"
AUTORECOVERY: Final = "autorecovery"

START_ORDER: Final = (METADATA, ZOOKEEPER, BOOKIE, AUTORECOVERY, BROKER)
"""Roles that need others come after them; a cluster is stopped the other way round."""

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process. `ports` by what they are for (`quorum` and `election`: between the members of a ZooKeeper ensemble).

    `wanted`: nobody stopped it on purpose.
    """

    name: str
    role: str
    ports: dict[str, int]
    wanted: bool = True

    @property
    def addresses(self) -> list[str]:
        """As clients write them, the main one first."""
        form = {"http": "http://{}:{}", "pulsar": "pulsar://{}:{}", "zk": "{}:{}", "bookie": "{}:{}"}
        return [form[purpose].format(HOST, port) for purpose, port in self.ports.items() if purpose in form]


@dataclass(frozen=True, slots=True)
class SettingPlan:
    """A setting for all processes of a role, for one process, or ("") for all that know it."""

    target: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`ensemble`: ensemble size, write quorum, ack quorum of the brokers' default."""

    ensemble: tuple[int, int, int]
    processes: tuple[ProcessPlan, ...] = ()
    settings: tuple[SettingPlan, ...] = field(default=())

    def of_role(self, role: str) -> list[ProcessPlan]:
        return [process for process in self.processes if process.role == role]

    def find(self, name: str) -> ProcessPlan:
        """Raises ClusterError naming those there are."""
        for process in self.processes:
            if process.name == name:
                return process
        names = ", ".join(process.name for process in self.processes)
        raise ClusterError(f"the cluster has no process {name!r}; it has {names}")

    def changed(self, name: str, wanted: bool) -> ClusterPlan:
        """The same, with one process wanted or not."""
        processes = tuple(replace(each, wanted=wanted) if each.name == name else each for each in self.processes)
        return replace(self, processes=processes)

    @property
    def metadata_url(self) -> str:
        """Of the metadata store that all processes share; with an ensemble it names every member."""
        servers = [each for each in self.processes if each.role in (METADATA, ZOOKEEPER)]
        return "zk:" + ",".join(f"{HOST}:{each.ports['zk']}" for each in servers)


def load_plan(directory: Path) -> ClusterPlan | None:
    """None when there is no cluster in the directory. Raises ClusterError."""
    path = directory / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{path} is not a state file of `magnetar cluster`; choose another --dir or remove it"
        ) from error


def save_plan(directory: Path, plan: ClusterPlan) -> None:
    """Replace the file so that a crash leaves the old or the new one. Raises ClusterError."""
    path, temporary = directory / FILE_NAME, directory / (FILE_NAME + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"version": FORMAT_VERSION, **asdict(plan)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ClusterError(f"cannot write {path}: {error.strerror}; choose another --dir") from error


def _from_json(data: dict[str, Any]) -> ClusterPlan:
    if data["version"] != FORMAT_VERSION:
        raise ValueError(data["version"])
    ensemble_size, write_quorum, ack_quorum = data["ensemble"]
    return ClusterPlan(
        (ensemble_size, write_quorum, ack_quorum),
        tuple(ProcessPlan(each["name"], each["role"], each["ports"], each["wanted"]) for each in data["processes"]),
        tuple(SettingPlan(each["target"], each["key"], each["value"]) for each in data["settings"]),
    )
