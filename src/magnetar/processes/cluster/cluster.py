"""A cluster's life: up, status, kill, pause, resume, start, down."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.base.ports import free_ports
from magnetar.metadata.digest_md5 import Credentials
from magnetar.metadata.sqlite_file import FILE_NAME as METADATA_FILE
from magnetar.metadata.zookeeper_process import EnsembleMember, ZooKeeperProcess, four_letters
from magnetar.processes.cluster.command_lines import magnetar_command, make_secret, metadata_access
from magnetar.processes.cluster.errors import ClusterError
from magnetar.processes.cluster.growth import COPIES, Wish, grown
from magnetar.processes.cluster.lock import ClusterLock
from magnetar.processes.cluster.plan import (
    AUTORECOVERY,
    BOOKIE,
    BROKER,
    HOST,
    METADATA,
    START_ORDER,
    ZOOKEEPER,
    ClusterPlan,
    ProcessPlan,
    load_plan,
    save_plan,
)
from magnetar.processes.directories import prepare_directory
from magnetar.processes.metadata_access import metadata_credentials

MARK: Final = "MAGNETAR_CLUSTER_PROCESS"
_PROC: Final = Path("/proc")


class FoundProcess(NamedTuple):
    """`paused`: stopped by SIGSTOP."""

    pid: int
    paused: bool


def mark_of(directory: Path, name: str) -> str:
    """The value of `MARK` for a process."""
    return f"{directory.resolve()}:{name}"


def find_processes(directory: Path) -> dict[str, FoundProcess]:
    """By name. A process that has ended but was not waited for does not count."""
    wanted = f"\0{MARK}={directory.resolve()}:".encode()
    found: dict[str, FoundProcess] = {}
    for entry in os.scandir(_PROC):
        if not entry.name.isdigit():
            continue
        process = Path(entry.path)
        try:
            environment = b"\0" + (process / "environ").read_bytes()
            if wanted not in environment:
                continue
            state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:  # it is another user's, or it has ended meanwhile
            continue
        if state not in b"ZX":
            name = environment.partition(wanted)[2].partition(b"\0")[0].decode(errors="replace")
            found[name] = FoundProcess(int(entry.name), state in b"Tt")
    return found


START_TIMEOUT_S: Final = 60.0
"""A process that is not ready by then after its start is left as it is, and the command fails."""

STOP_TIMEOUT_S: Final = 15.0
"""A process that has not ended by then after SIGTERM is killed."""

LOG_TAIL_LINES: Final = 15
_POLL_S: Final = 0.02

Report = Callable[[str], None]
"""Told what is being done, one line a step."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """`state`: `running`; `starting` (not ready yet); `paused`; `stopped` on purpose; `dead`: it ended by itself."""

    name: str
    role: str
    addresses: list[str]
    pid: int | None
    state: str


class Cluster:
    """The cluster of one directory, there or not yet. Raises ClusterError."""

    def __init__(self, directory: Path, report: Report | None = None) -> None:
        self.directory = directory.absolute()
        self._report = report or (lambda _: None)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    # ---- Looking

    @property
    def plan(self) -> ClusterPlan:
        """Raises ClusterError when there is no cluster."""
        plan = load_plan(self.directory)
        if plan is None:
            raise ClusterError(
                f"there is no cluster in {self.directory}; start one with: magnetar cluster up --dir {self.directory}"
            )
        return plan

    def status(self) -> list[ProcessStatus]:
        """Every process, in the order in which they are started."""
        plan, found = self.plan, self._found()
        return [self._status(process, found.get(process.name)) for process in plan.processes]

    def _status(self, process: ProcessPlan, found: FoundProcess | None) -> ProcessStatus:
        if found is None:
            state = "dead" if process.wanted else "stopped"
        elif found.paused:
            state = "paused"
        else:
            state = "running" if self._is_ready(process) else "starting"
        return ProcessStatus(process.name, process.role, process.addresses, found.pid if found else None, state)

    def log_path(self, name: str) -> Path:
        """Where a process writes; raises ClusterError for an unknown name."""
        self.plan.find(name)
        return self.directory / f"{name}.log"

    def address(self, role: str) -> str:
        """The main address of the first process of a role. Raises ClusterError when the cluster has none."""
        for process in self.plan.of_role(role):
            return process.addresses[0]
        raise ClusterError(f"the cluster in {self.directory} has no {role}")

    # ---- Starting

    def up(self, wish: Wish) -> bool:
        """Make the cluster what `wish` says and start what is not running; False when all of it was running already.

        A running cluster grows by what is missing; it never shrinks.
        """
        prepare_directory(self.directory, "--dir")
        with ClusterLock(self.directory):
            before = load_plan(self.directory)
            plan = grown(before, wish, free_ports)
            if before is None and any(self.directory.glob("bookie*")):
                raise ClusterError(f"{self.directory} holds data but no cluster.json; choose another --dir or empty it")
            plan = replace(plan, processes=tuple(replace(each, wanted=True) for each in plan.processes))
            if plan != before:
                save_plan(self.directory, plan)
            self._tell_of_unused_bookies(before, plan)
            found = self._found()
            if not found:
                self._make_secret()  # of a directory from before there were secrets, too; who runs already has been told of none
            resumed = [process for process in plan.processes if process.name in found and found[process.name].paused]
            for process in resumed:
                os.kill(found[process.name].pid, signal.SIGCONT)
            missing = [process for process in plan.processes if process.name not in found]
            self._start(plan, missing)
            return bool(missing or resumed)

    def _tell_of_unused_bookies(self, before: ClusterPlan | None, plan: ClusterPlan) -> None:
        """A cluster that grows keeps its ensemble: old ledgers keep their copies, and new ones get as many as before."""
        size, write, ack = plan.ensemble
        bookies = len(plan.of_role(BOOKIE))
        if before is None or bookies <= len(before.of_role(BOOKIE)) or write >= min(bookies, COPIES):
            return
        self._report(
            f"there are {bookies} bookies now, and each entry still has {write} cop{'y' if write == 1 else 'ies'} (ensemble {size}, write "
            f"quorum {write}, ack quorum {ack}). For more: magnetar cluster down, then magnetar cluster up --ensemble-size "
            f"{min(bookies, 3)} --write-quorum {COPIES} --ack-quorum {COPIES}; this holds for new ledgers, old ones keep what they have"
        )

    def _make_secret(self) -> None:
        try:
            make_secret(self.directory)
        except OSError as error:
            raise ClusterError(
                f"cannot write the secret in {self.directory}: {error.strerror}; choose another --dir"
            ) from error

    def metadata_credentials(self) -> Credentials | None:
        """What the metadata store asks for; None: nothing. Raises ClusterError, ConfigError."""
        return metadata_credentials(metadata_access(self.directory, self.plan))

    def start(self, name: str) -> None:
        """Start a process that is not running, on its old ports and data. Returns once it is ready."""
        with ClusterLock(self.directory):
            plan = self.plan
            process = plan.find(name)
            found = self._found().get(name)
            if found is not None:
                how = "paused; say: magnetar cluster resume" if found.paused else "running already"
                raise ClusterError(f"{name} is {how} (pid {found.pid})")
            save_plan(self.directory, plan := plan.changed(name, wanted=True))
            self._start(plan, [process])

    def _start(self, plan: ClusterPlan, processes: Sequence[ProcessPlan]) -> None:
        """Roles one after the other, the processes of a role together."""
        for roles in ((METADATA, ZOOKEEPER), (BOOKIE,), (BROKER, AUTORECOVERY)):
            group = [process for process in processes if process.role in roles]
            for process in group:
                self._report(f"starting {process.name}")
                self._spawn(plan, process)
            for process in group:
                if process.role == ZOOKEEPER and not self._has_majority(plan):
                    self._report(f"{process.name} runs and serves once a majority of the ensemble does")
                    continue
                self._wait_ready(process)
                self._report(f"{process.name} is ready at {', '.join(process.addresses)}")

    def _check_metadata_there(self, plan: ClusterPlan, process: ProcessPlan) -> None:
        """A metadata server does not begin with an empty directory beside bookies that belong to a cluster.

        A member of an ensemble may: it takes everything from the others, as long as a majority still has it. Members without data that
        were a majority could elect one of themselves.
        """
        if process.role == METADATA:
            there = any((self.directory / process.name).glob(f"{METADATA_FILE}*"))
        elif process.role == ZOOKEEPER:
            members = plan.of_role(ZOOKEEPER)
            kept = sum(any((self.directory / each.name / "data").glob("version-2/*")) for each in members)
            there = 2 * kept > len(members)
        else:
            return
        stamped = sorted(self.directory.glob("bookie*/**/VERSION"))
        if stamped and not there:
            raise ClusterError(
                f"the directory of {process.name} holds no metadata, and {stamped[0].relative_to(self.directory).parts[0]} "
                "belongs to a cluster: an empty store would hand out its ledgers' ids again. Restore "
                f"{self.directory / process.name} from a copy; or begin anew without the messages: another --dir, or remove the "
                "directories of all bookies as well"
            )

    def _spawn(self, plan: ClusterPlan, process: ProcessPlan) -> None:
        self._check_metadata_there(plan, process)
        command = self._command(plan, process)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MAGNETAR_", "PULSAR_PREFIX_"))}
        environment = kept | {"PYTHONUNBUFFERED": "1", MARK: mark_of(self.directory, process.name)}
        with ExitStack() as stack:
            output = stack.enter_context(self._ready_path(process.name).open("wb"))
            log = stack.enter_context((self.directory / f"{process.name}.log").open("ab"))
            self._children[process.name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the command, not for the cluster
            )

    def _command(self, plan: ClusterPlan, process: ProcessPlan) -> list[str]:
        if process.role == ZOOKEEPER:
            members = [each for each in plan.of_role(ZOOKEEPER) if "quorum" in each.ports]
            ensemble = [
                EnsembleMember(number, each.ports["quorum"], each.ports["election"])
                for number, each in enumerate(members, 1)
            ]
            number = 1 + [each.name for each in members].index(process.name) if members else 0
            directory = self.directory / process.name
            known = metadata_credentials(metadata_access(self.directory, plan))
            return ZooKeeperProcess(
                directory, process.ports["zk"], ensemble=ensemble, number=number, credentials=known
            ).command()
        return magnetar_command(self.directory, plan, process)

    def _wait_ready(self, process: ProcessPlan) -> None:
        child = self._children[process.name]
        for _ in _until(START_TIMEOUT_S):
            if self._is_ready(process):
                return
            if child.poll() is not None:
                raise ClusterError(
                    f"{process.name} did not start (exit code {child.returncode}): {self._tail(process)}"
                )
        raise ClusterError(
            f"{process.name} is not ready after {START_TIMEOUT_S:g} s; look at: magnetar cluster logs {process.name}"
        )

    def _has_majority(self, plan: ClusterPlan) -> bool:
        """True if enough ZooKeeper servers run (paused ones do not count) for the ensemble to serve."""
        servers, found = plan.of_role(ZOOKEEPER), self._found()
        running = sum(each.name in found and not found[each.name].paused for each in servers)
        return 2 * running > len(servers)

    def _is_ready(self, process: ProcessPlan) -> bool:
        if process.role == ZOOKEEPER:
            # A server that answers `ruok` runs; one that answers `srvr` serves, which in an ensemble takes a majority.
            return four_letters(HOST, process.ports["zk"], "srvr").startswith("Zookeeper version")
        try:
            return self._ready_path(process.name).read_bytes().startswith(b"magnetar ready")
        except FileNotFoundError:
            return False

    def _ready_path(self, name: str) -> Path:
        return self.directory / f"{name}.out"

    def _tail(self, process: ProcessPlan) -> str:
        lines = self.log_path(process.name).read_text(errors="replace").splitlines()
        return " | ".join(lines[-LOG_TAIL_LINES:]) or "it said nothing"

    # ---- Stopping

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a running process, and for one that ends it wait until it is gone. Returns its pid."""
        with ClusterLock(self.directory):
            plan = self.plan
            found = self._running(plan, name)
            if number not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
                os.kill(found.pid, number)
                return found.pid
            save_plan(self.directory, plan.changed(name, wanted=False))
            os.kill(found.pid, number)
            if found.paused:
                os.kill(found.pid, signal.SIGCONT)
            if not self._wait_gone([name]):
                raise ClusterError(f"{name} (pid {found.pid}) goes on {STOP_TIMEOUT_S:g} s after {number.name}")
            return found.pid

    def kill_all(self, names: Sequence[str]) -> None:
        """SIGKILL for all of them at the same moment."""
        with ClusterLock(self.directory):
            plan = self.plan
            pids = [self._running(plan, name).pid for name in names]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for name in names:
                plan = plan.changed(name, wanted=False)
            save_plan(self.directory, plan)
            self._wait_gone(names)

    def pause(self, name: str) -> None:
        """SIGSTOP: it keeps its connections and says nothing, like a machine that hangs."""
        found = self._running(self.plan, name)
        if found.paused:
            raise ClusterError(f"{name} is paused already; say: magnetar cluster resume {name}")
        os.kill(found.pid, signal.SIGSTOP)
        self._wait_paused(name, True)

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        found = self._running(self.plan, name)
        if not found.paused:
            raise ClusterError(f"{name} is not paused")
        os.kill(found.pid, signal.SIGCONT)
        self._wait_paused(name, False)

    def down(self) -> bool:
        """Stop everything, in the reverse order of its start; False when nothing was running. Data and ports are kept."""
        with ClusterLock(self.directory):
            plan = self.plan
            stopped = replace(plan, processes=tuple(replace(each, wanted=False) for each in plan.processes))
            if stopped != plan:
                save_plan(self.directory, stopped)
            found = self._found()
            for role in reversed(START_ORDER):
                names = [process.name for process in plan.of_role(role) if process.name in found]
                for name in names:
                    self._report(f"stopping {name}")
                    os.kill(found[name].pid, signal.SIGTERM)
                    os.kill(found[name].pid, signal.SIGCONT)
                if names and not self._wait_gone(names):
                    for name, process in self._found().items():
                        if name in names:
                            self._report(f"killing {name}: it goes on {STOP_TIMEOUT_S:g} s after SIGTERM")
                            os.kill(process.pid, signal.SIGKILL)
                    self._wait_gone(names)
            return bool(found)

    def destroy(self) -> None:
        """SIGKILL for everything that is there, whatever the state file says. Data and ports are kept."""
        found = self._found()
        for process in found.values():
            os.kill(process.pid, signal.SIGKILL)
        self._wait_gone(list(found))

    def _running(self, plan: ClusterPlan, name: str) -> FoundProcess:
        plan.find(name)
        found = self._found().get(name)
        if found is None:
            raise ClusterError(f"{name} is not running; say: magnetar cluster start {name}")
        return found

    def _wait_paused(self, name: str, paused: bool) -> None:
        """The signal reaches the last of its threads a little later."""
        for _ in _until(STOP_TIMEOUT_S):
            found = self._found().get(name)
            if found is None or found.paused == paused:
                return

    def _wait_gone(self, names: Sequence[str]) -> bool:
        return any(not self._found().keys() & set(names) for _ in _until(STOP_TIMEOUT_S))

    def _found(self) -> dict[str, FoundProcess]:
        for child in self._children.values():
            child.poll()  # so that none of ours stays behind as a zombie
        return find_processes(self.directory)


def _until(timeout_s: float) -> Iterator[None]:
    """Turns of a loop that polls, for so long."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        yield
        time.sleep(_POLL_S)
