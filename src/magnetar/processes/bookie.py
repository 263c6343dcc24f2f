"""`magnetar bookie`: one bookie behind BookKeeper's protocol, registered in the cluster's metadata."""

from __future__ import annotations

import json
import logging
import os
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from magnetar.admin.http.guard import HttpGuard
from magnetar.admin.http.server import HttpServer
from magnetar.admin.metrics.exposition import CONTENT_TYPE
from magnetar.admin.metrics.process import process_text
from magnetar.admin.metrics.server import admission_families, bookie_families
from magnetar.base.admission import Admission
from magnetar.base.clock import Clock, SystemClock
from magnetar.base.errors import MetadataError
from magnetar.base.executor import ThreadExecutor
from magnetar.base.limits import BOOKIE_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX, STRANGERS_MAX
from magnetar.base.network import AsyncioNetwork, SocketListener
from magnetar.base.status_page import HEADERS, status_page
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.bookkeeper.autorecovery.damage_reports import DamageReports
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.server.server import BookieServer
from magnetar.bookkeeper.bookie.storage.cookie import FILE_NAME as COOKIE_FILE
from magnetar.bookkeeper.bookie.storage.disk import Disk
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.statistics import ClientStatistics
from magnetar.bookkeeper.cluster import MetadataCookies, initialize_cluster, instance_id
from magnetar.bookkeeper.errors import ClusterLayoutError, LedgerIdsSetBackError
from magnetar.bookkeeper.ledger_homes import MetadataLedgerHomes
from magnetar.bookkeeper.registration import BookieRegistration
from magnetar.bookkeeper.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from magnetar.broker.namespaces.records import parse_broker
from magnetar.metadata.paths import BROKERS_PATH, broker_path
from magnetar.metadata.store import MetadataStore, SessionEvent
from magnetar.processes.autorecovery import open_autorecovery
from magnetar.processes.autorecovery_http import autorecovery_families
from magnetar.processes.bookie_config import bookie_config
from magnetar.processes.bookie_wire import server_options
from magnetar.processes.composition import Composition, enter_alone
from magnetar.processes.configurations import BookieProcessConfig
from magnetar.processes.directories import SpaceReserve, prepare_directory
from magnetar.processes.former_registrations import forget_former_bookie
from magnetar.processes.metadata_access import hold_to_cluster, metadata_credentials, open_metadata
from magnetar.processes.serving import serve_until_told


def bookie_app(
    bookie: Bookie,
    scope: TaskScope,
    extra_metrics: Callable[[], str],
    is_registered: Callable[[], bool],
    consoles: Callable[[], Awaitable[Mapping[str, str]]],
) -> Starlette:
    """`scope` runs a garbage collection that was asked for. `is_registered`: True while brokers can find it. `consoles`: those of the
    brokers, by name."""

    async def metrics(request: Request) -> Response:
        families = "".join(bookie_families(bookie.statistics(), bookie=bookie.config.bookie_id))
        return Response(families + extra_metrics() + process_text(), media_type=CONTENT_TYPE)

    async def health(request: Request) -> Response:
        """A read-only bookie is healthy: it serves what it holds."""
        if bookie.failed is not None:
            return PlainTextResponse(f"the bookie failed: {bookie.failed}\n", 503)
        return PlainTextResponse("ok\n")

    async def heartbeat(request: Request) -> Response:
        return PlainTextResponse("OK\n")

    async def info(request: Request) -> Response:
        ledger_dir = {each.path: each for each in bookie.statistics().directories}[bookie.config.ledger_path]
        return _json({"freeSpace": ledger_dir.free_bytes, "totalSpace": ledger_dir.total_bytes})

    async def state(request: Request) -> Response:
        return _json(
            {
                "running": bookie.failed is None,
                "readOnly": bookie.read_only,
                "shuttingDown": False,
                "availableForHighPriorityWrites": bookie.failed is None and bookie.takes_high_priority,
            }
        )

    async def is_ready(request: Request) -> Response:
        if bookie.failed is not None or bookie.read_only:
            return PlainTextResponse("Bookie is not ready\n", 503)
        return PlainTextResponse("OK\n")

    async def ready(request: Request) -> Response:
        """Takes entries, and brokers know of it. One that is read-only is healthy, and not ready."""
        if bookie.failed is not None:
            return PlainTextResponse(f"the bookie failed: {bookie.failed}\n", 503)
        if bookie.read_only:
            return PlainTextResponse("the bookie is read-only\n", 503)
        if not is_registered():
            return PlainTextResponse("the bookie is not registered in the metadata store\n", 503)
        return PlainTextResponse("ok\n")

    async def collect_garbage(request: Request) -> Response:
        scope.spawn(bookie.collect_garbage(), "garbage on demand", REPORTED)
        return _json({"status": "started"})

    return Starlette(
        routes=[
            Route("/", bookie_page(bookie, is_registered, consoles)),
            Route("/metrics", metrics),
            Route("/healthz", health),
            Route("/readyz", ready),
            Route("/heartbeat", heartbeat),
            Route("/api/v1/bookie/info", info),
            Route("/api/v1/bookie/state", state),
            Route("/api/v1/bookie/is_ready", is_ready),
            Route("/api/v1/bookie/gc", collect_garbage, methods=["PUT"]),
        ]
    )


def bookie_page(
    bookie: Bookie, is_registered: Callable[[], bool], consoles: Callable[[], Awaitable[Mapping[str, str]]]
) -> Callable[[Request], Awaitable[Response]]:
    """What a person sees at `/`."""

    async def page(request: Request) -> Response:
        state = "failed" if bookie.failed is not None else "read-only" if bookie.read_only else "writable"
        facts = {"State": state, "Registered": "yes" if is_registered() else "no"}
        own = ("/metrics", "/healthz", "/readyz", "/api/v1/bookie/state", "/api/v1/bookie/info")
        text = status_page(f"Bookie {bookie.config.bookie_id}", facts, own, await consoles())
        return Response(text, headers=HEADERS)

    return page


BROKERS_SHOWN: Final = 20
"""Brokers whose consoles a bookie's page links to."""


async def consoles_of(metadata: MetadataStore) -> dict[str, str]:
    """By broker; none while the store cannot be reached."""
    found = {}
    try:
        for name in sorted(await metadata.children(BROKERS_PATH))[:BROKERS_SHOWN]:
            node = await metadata.get(broker_path(name))
            if node is not None:
                address = parse_broker(node.value)
                found[name] = f"{address.web_service_url_tls or address.web_service_url}/console/"
    except MetadataError:
        return {}
    return found


def _json(value: dict[str, Any]) -> Response:
    return Response(json.dumps(value) + "\n", media_type="application/json")


logger = logging.getLogger(__name__)


class BookieProcess(Composition):
    """Serves before it registers, and stops serving after it has left the lists."""

    def __init__(self, config: BookieProcessConfig, disk: Disk | None = None) -> None:
        """`disk`: the operating system's files by default."""
        super().__init__()
        self.config = config
        self._disk = disk
        self._registration: BookieRegistration | None = None
        self._recovery: AutoRecovery | None = None
        self._urls: list[str] = []

    @property
    def urls(self) -> Sequence[str]:
        return self._urls

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        clock, rng = SystemClock(), random.Random(os.urandom(16))
        network = AsyncioNetwork()
        admission = self._admission = Admission(
            protocol_max=BOOKIE_CONNECTIONS_MAX, http_max=HTTP_CONNECTIONS_MAX, strangers_max=STRANGERS_MAX
        )
        options = server_options(config, clock.monotonic_s)
        listener = network.bind(config.bind_address, config.port, admission.protocol)
        stack.push_async_callback(listener.close)
        http_listener = (
            network.bind(config.http_host, config.http_port, admission.http) if config.http_port >= 0 else None
        )
        if http_listener is not None:
            stack.push_async_callback(http_listener.close)
        bookie_id = config.bookie_id or f"{config.advertised_host}:{listener.port}"
        reserve = self._prepare_directories()
        metadata = await open_metadata(
            config.metadata_service_uri, config.zk_timeout_ms / 1000, clock, stack, metadata_credentials(config)
        )
        settings = bookie_config(config, config.data_dir.absolute(), bookie_id)
        settings = replace(
            settings,
            journal_dir=_path(config.journal_directory),
            ledger_dir=_path(config.ledger_directory),
            boot_id=_boot_id(),
        )
        if stamped_instance(settings):
            instance = await instance_id(metadata)  # whose it is, the cookie says; a bookie with data founds no cluster
        else:
            instance = await initialize_cluster(metadata, rng)
        hold_to_cluster(metadata, instance, self.fail)
        manager = LedgerManager(metadata)
        self.bookie = Bookie(
            replace(settings, instance_id=instance),
            clock=clock,
            disk=self._disk,
            rng=random.Random(rng.random()),
            list_ledgers=partial(list_ledgers, metadata, manager, instance),
            ledger_exists=manager.must_keep,
            homes=MetadataLedgerHomes(metadata, bookie_id),
            cookie_store=MetadataCookies(metadata),
            on_fatal=self.fail,
            on_read_only_change=self._read_only_changed,
        )
        await stack.enter_async_context(self.bookie)
        await manager.check_ids(self.bookie.known_ledger_ids())
        scope = await enter_alone(stack, TaskScope("bookie server"))
        scope.supervise(reserve.run, "reserve")
        stack.callback(metadata.on_session(lambda event: self._session(event, scope, manager)))
        server = BookieServer(self.bookie, scope, options)
        stack.push_async_callback(server.close)
        await server.serve(listener)
        http_port = await self._serve_http(http_listener, scope, lambda: consoles_of(metadata))
        info = self._service_info(listener.port, http_port)
        await forget_former_bookie(metadata, bookie_id, info.to_bytes())
        self._registration = BookieRegistration(
            metadata,
            bookie_id,
            info,
            read_only=self.bookie.read_only,
            on_refused=self.fail,
        )
        await stack.enter_async_context(self._registration)
        self._report_suspects(metadata, clock, scope, bookie_id)
        if config.auto_recovery_daemon_enabled:
            self._recovery = await open_autorecovery(config, bookie_id, metadata, clock, rng, stack)
        self._urls = [f"bookie://{config.advertised_host}:{listener.port}"]
        if http_port:
            self._urls.append(f"http://{self._http_host}:{http_port}")

    def _report_suspects(self, metadata: MetadataStore, clock: Clock, scope: TaskScope, bookie_id: str) -> None:
        """What the last commit of the journal may have held is compared with the other copies, and repaired from them."""
        if not self.bookie.suspects:
            return
        reports = DamageReports(UnderreplicationManager(metadata, clock, "bookie"), clock, ClientStatistics())
        for ledger_id in self.bookie.suspects:
            reports.note(ledger_id, bookie_id)
        scope.supervise(reports.run, "damage-reports")

    def _prepare_directories(self) -> SpaceReserve:
        """Make them, and free the room that is kept for the start."""
        prepare_directory(self.config.data_dir)
        executor = ThreadExecutor("bookie-reserve")
        self._stack.callback(executor.close)
        entries_dir = _path(self.config.ledger_directory)
        if entries_dir is not None:
            prepare_directory(entries_dir, "ledgerDirectories")
        reserve = SpaceReserve(entries_dir or self.config.data_dir, executor)
        reserve.release()
        return reserve

    def _session(self, event: SessionEvent, scope: TaskScope, manager: LedgerManager) -> None:
        """Who comes back may find an older copy of the store."""
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            scope.spawn(self._check_ids(manager), "check ledger ids", REPORTED)

    async def _check_ids(self, manager: LedgerManager) -> None:
        try:
            await manager.check_ids(self.bookie.known_ledger_ids())
        except LedgerIdsSetBackError as error:
            self.fail(error)
        except MetadataError as error:
            logger.info("the next ledger id was not looked at, the next connection is another chance: %s", error)

    async def _serve_http(
        self, listener: SocketListener | None, scope: TaskScope, consoles: Callable[[], Awaitable[Mapping[str, str]]]
    ) -> int:
        if listener is None:
            return 0
        app = bookie_app(self.bookie, scope, self._extra_metrics, self._is_registered, consoles)
        http = await self._stack.enter_async_context(HttpServer(app, HttpGuard(self.config.http_names)))
        await http.serve(listener)
        return listener.port

    def _is_registered(self) -> bool:
        return self._registration is not None and self._registration.registered

    def _extra_metrics(self) -> str:
        families = [*admission_families(self._admission, bookie=self.bookie.config.bookie_id)]
        if self._recovery is not None:
            families += autorecovery_families(self._recovery.statistics)
        return "".join(families)

    def _service_info(self, port: int, http_port: int) -> BookieServiceInfo:
        endpoints = [Endpoint(BOOKIE_RPC, self.config.advertised_host, port)]
        if http_port:
            endpoints.append(Endpoint("httpserver", self._http_host, http_port, "http"))
        return BookieServiceInfo(tuple(endpoints))

    @property
    def _http_host(self) -> str:
        """What others are told; what only this machine reaches, if the bookie's own port is open to others."""
        config = self.config
        everywhere = config.http_host in (config.bind_address, "0.0.0.0", "::")
        return config.advertised_host if everywhere else config.http_host

    def _read_only_changed(self, read_only: bool) -> None:
        if self._registration is not None:
            self._registration.set_read_only(read_only)


def _boot_id() -> str:
    """Another one after every start of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _path(text: str) -> Path | None:
    return Path(text).absolute() if text else None


def stamped_instance(config: BookieConfig) -> str:
    """The cluster whose bookie the directories belong to; "" when they are new."""
    for directory in (config.journal_path, config.ledger_path):
        try:
            stamp = Path(directory, COOKIE_FILE).read_text(errors="replace")
        except OSError:
            continue
        found = re.search('^instanceId: "(.*)"$', stamp, re.MULTILINE)
        if found is not None:
            return found[1]
    return ""


async def list_ledgers(metadata: MetadataStore, manager: LedgerManager, instance: str) -> list[int]:
    """For garbage collection. Raises ClusterLayoutError when this is not the bookie's cluster any more: a metadata store that was
    emptied or exchanged lists no ledger, and the bookie would delete all it has."""
    found = await manager.list_ids()
    if (now := await instance_id(metadata)) != instance:
        raise ClusterLayoutError(
            f"the metadata store is of cluster {now}, not of {instance}: correct it; nothing is deleted"
        )
    return found


async def run(config: BookieProcessConfig) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    return await serve_until_told(BookieProcess(config), config.warnings())
