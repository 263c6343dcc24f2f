"""Bookies and ledger clients as processes on simulated machines: the production classes, composed over simulated surroundings."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from magnetar.base.errors import MagnetarError, StorageError
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.bookie import Bookie, BookieExecutors
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.server.server import BookieServer
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import DEFAULT_CONFIG
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.remote_bookies import RemoteBookies
from magnetar.bookkeeper.cluster import MetadataCookies
from magnetar.bookkeeper.ledger_homes import MetadataLedgerHomes
from magnetar.bookkeeper.ports import BookieChannel
from magnetar.bookkeeper.registration import BookieRegistration
from magnetar.bookkeeper.service_info import service_info
from magnetar.processes.former_registrations import forget_former_bookie
from magnetar.testing.sim.disk import SimDisk
from magnetar.testing.sim.executor import SimExecutor, wait
from magnetar.testing.sim.index import SimIndex
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.metadata import MetadataService, SimMetadataStore
from magnetar.testing.sim.network import SimNetwork
from magnetar.testing.sim.taps import Gate, Tap
from magnetar.testing.sim.world import Machine, World

BOOKIE_PORT: Final = 3181
DATA_DIR: Final = Path("/data")

RESTART_S: Final = 1.0
"""After a program exited by itself, until its supervisor starts it again."""

RESTART_S_MAX: Final = 30.0
"""Pause between attempts to start a bookie that fails to start."""


def sim_config(bookie_id: str, **sizes: Any) -> BookieConfig:
    """Small enough that files, caches and logs roll over many times in a run."""
    config = BookieConfig(
        data_dir=DATA_DIR,
        bookie_id=bookie_id,
        instance_id="simulated",
        index="rocksdb",
        journal_file_bytes=32 * 1024,
        journal_preallocate_bytes=4 * 1024,
        write_cache_bytes=16 * 1024,
        read_cache_bytes=4 * 1024,
        entry_log_bytes=32 * 1024,
        flush_interval_s=1.0,
        gc_interval_s=5.0,
        disk_check_interval_s=1.0,
        read_ahead_entries=4,
        compaction_step_bytes=2048,
        minor_compaction_interval_s=5.0,
        major_compaction_interval_s=20.0,
    )
    return replace(config, **sizes)


def only_cause(error: Exception) -> MagnetarError:
    """The first leaf of what ended a task group. Anything but a MagnetarError is raised: it is a bug."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, MagnetarError):
        raise error
    return error


class Node:
    """One machine that runs one program at a time."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.machine: Machine = world.machine(name)
        self.process: Process | None = None
        self.starts = 0
        self.gone = False
        """It burned down: nothing starts it again."""
        self.metadata: MetadataService = world.metadata
        self.store: SimMetadataStore
        self.session_timeout_s = 4.0

    @property
    def running(self) -> bool:
        """Neither dead nor paused."""
        return self.process is not None and self.process.alive and not self.process.paused

    def start(self) -> None:
        """Begin the program; nothing when it is running already."""
        if self.gone or (self.process is not None and self.process.alive):
            return
        self.world.power_on(self.machine)
        self.starts += 1
        process = self.process = self.world.start(self.machine, f"{self.name}#{self.starts}")
        self.world.note(process.name, "starts")
        process.context.run(self._prepare, process)
        task = self.world.loop.spawn(process, self._run(process))
        task.add_done_callback(lambda task: self._program_ended(process, task))

    def kill(self) -> None:
        if self.process is not None:
            self.world.kill(self.process)

    def stop(self) -> None:
        """SIGTERM; a program that has nothing to give up ends at once."""
        self.kill()

    def cut_power(self) -> None:
        self.world.cut_power(self.machine)

    def pause(self) -> None:
        if self.running and self.process is not None:
            self.world.note(self.process.name, "is paused")
            self.world.loop.pause(self.process)

    def resume(self) -> None:
        if self.process is not None and self.process.alive and self.process.paused:
            self.world.note(self.process.name, "goes on")
            self.world.loop.resume(self.process)

    def _start_again(self, process: Process) -> None:
        if self.process is process and self.machine.on:
            self.start()

    def _program_ended(self, process: Process, task: asyncio.Task[None]) -> None:
        """Programs exit by `_exit` or are killed: anything else is a finding."""
        if process.alive and not task.cancelled() and task.exception() is not None:
            text = "".join(traceback.format_exception(task.exception()))
            self.world.loop.crashes.append(f"{process} died: {text}")
            self.world.loop.call_as(self.world.loop.outside, 0.0, self.world.kill, process)

    def _prepare(self, process: Process) -> None:
        self.network = SimNetwork(self.world.wires, process, self.name)
        self.store = SimMetadataStore(self.metadata, process, self.name, self.session_timeout_s)

    async def _run(self, process: Process) -> None:
        raise NotImplementedError


class BookieNode(Node):
    """A bookie that serves and is registered; it exits when its disk fails for good, and stays down when it may not start."""

    def __init__(self, world: World, name: str, **sizes: Any) -> None:
        super().__init__(world, name)
        self.bookie_id = f"{name}:{BOOKIE_PORT}"
        self.config = sim_config(self.bookie_id, **sizes)
        self.bookie: Bookie | None = None
        self.refused: MagnetarError | None = None
        """Error of the last start."""
        self._refusals = 0
        self.stays_down = False
        """Nobody starts it again after it exited by itself."""

    @property
    def serving(self) -> bool:
        return self.running and self.bookie is not None

    def kill(self) -> None:
        self.bookie = None
        super().kill()

    def cut_power(self) -> None:
        self.bookie = None
        super().cut_power()

    async def _run(self, process: Process) -> None:
        world, loop, machine = self.world, self.world.loop, self.machine
        self.bookie, self.refused = None, None
        rng = world.rng(f"{process.name} product")
        disk = SimDisk(machine.medium, process)
        journal, storage, reads = (SimExecutor(loop, process) for _ in range(3))
        manager = LedgerManager(self.store)
        registration: list[BookieRegistration] = []

        def read_only_changed(read_only: bool) -> None:
            for one in registration:
                one.set_read_only(read_only)

        bookie = Bookie(
            self.config,
            clock=machine.clock,
            disk=disk,
            rng=rng,
            executors=BookieExecutors(journal, storage, reads, hand_over=lambda: wait(0.0001)),
            list_ledgers=manager.list_ids,
            ledger_exists=manager.must_keep,
            homes=MetadataLedgerHomes(self.store, self.bookie_id),
            cookie_store=MetadataCookies(self.store),
            on_fatal=lambda error: self._exit(process, error),
            on_read_only_change=read_only_changed,
            index_factory=lambda directory, _: SimIndex(disk, directory),
            lock_directory=lambda _: nullcontext(),
        )
        try:
            async with bookie, TaskScope("server") as scope:
                server = BookieServer(bookie, scope)
                await server.serve(self.network.bind(self.name, BOOKIE_PORT))
                info = service_info(self.name, BOOKIE_PORT)
                registered = BookieRegistration(
                    self.store,
                    self.bookie_id,
                    info,
                    read_only=bookie.read_only,
                    on_refused=lambda error: self._exit(process, error),
                )
                registration.append(registered)
                await forget_former_bookie(self.store, self.bookie_id, info.to_bytes())
                async with registered:
                    self.bookie = bookie
                    await asyncio.Event().wait()
        except (MagnetarError, ExceptionGroup) as error:
            self._exit(process, only_cause(error))

    def _exit(self, process: Process, error: MagnetarError) -> None:
        """The program ends with an error; whoever supervises it starts it again."""
        self.world.note(process.name, f"exits: {error}")
        if not isinstance(error, StorageError) or self.bookie is None:
            self.refused = error
        self.bookie = None
        loop = self.world.loop
        loop.call_as(loop.outside, 0.0, self.world.kill, process)
        if not self.stays_down:
            self._refusals = 0 if self.refused is None else self._refusals + 1
            delay_s = min(RESTART_S * 2**self._refusals, RESTART_S_MAX)
            loop.call_as(loop.outside, delay_s, self._start_again, process)


class ClientNode(Node):
    """A ledger client. `work(self)` is its program; `client` is there when it begins."""

    def __init__(self, world: World, name: str, work: Callable[[ClientNode], Awaitable[None]] | None = None) -> None:
        super().__init__(world, name)
        self.client: BookKeeperClient
        self.directory: BookieDirectory
        self.ready: asyncio.Event
        self._work = work
        self.finished = False
        """The work is done."""
        self.config = DEFAULT_CONFIG
        self.channel_options = ChannelOptions()
        self.tapped = False
        """Requests and answers are told as moments, and pass `gate`."""
        self.gate: Gate | None = None

    def _prepare(self, process: Process) -> None:
        super()._prepare(process)
        self.ready = asyncio.Event()
        self.finished = False

    async def _run(self, process: Process) -> None:
        try:
            await self._serve(process)
        except (MagnetarError, ExceptionGroup) as error:
            self._exit(process, only_cause(error))

    async def _serve(self, process: Process) -> None:
        rng = self.world.rng(f"{process.name} product")
        clock = self.machine.clock
        self.directory = TappedDirectory(self, process) if self.tapped else BookieDirectory(clock=clock)
        bookies = RemoteBookies(self.store, self.directory, self.network, clock, rng, self.channel_options)
        async with bookies, TaskScope("ledger client") as scope:
            self.client = BookKeeperClient(self.store, self.directory, clock, rng, scope, self.config)
            self.ready.set()
            if self._work is not None:
                await self._work(self)
            self.finished = True
            await asyncio.Event().wait()

    def _exit(self, process: Process, error: MagnetarError) -> None:
        self.world.note(process.name, f"exits: {error}")
        loop = self.world.loop
        loop.call_as(loop.outside, 0.0, self.world.kill, process)
        loop.call_as(loop.outside, RESTART_S, self._start_again, process)


class TappedDirectory(BookieDirectory):
    """Every channel behind a `Tap`."""

    def __init__(self, node: ClientNode, process: Process) -> None:
        super().__init__(clock=node.machine.clock)
        self._node = node
        self._process = process

    def channel(self, bookie_id: str) -> BookieChannel:
        return Tap(self._node.world.moments, self._process, bookie_id, super().channel(bookie_id), self._node.gate)
