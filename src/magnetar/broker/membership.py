"""This broker as one of a cluster: it joins, stops when its session is lost, joins again, and leaves with everything handed over."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from magnetar.base.clock import Clock
from magnetar.base.errors import MetadataError
from magnetar.base.network import Network
from magnetar.base.process_watch import ProcessWatch
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.bundle_moves import BundleMoves
from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.listener import ConnectionListener
from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_manager.cluster_reader import ClusterReader
from magnetar.broker.load_manager.manager import LoadPlacement
from magnetar.broker.namespaces.brokers import BrokerDirectory, Registration
from magnetar.broker.namespaces.finder import BrokerFinder, LeastBundles, Placement
from magnetar.broker.namespaces.leadership import Leadership
from magnetar.broker.namespaces.ownership import OwnerIndex, Ownership
from magnetar.broker.namespaces.reachability import Reachability
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.namespaces.session_gate import SessionGate
from magnetar.broker.namespaces.session_probe import SessionProbe
from magnetar.broker.peers import Peers
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

REJOIN_S: Final = 1.0
"""Pause between attempts to register again after a lost session."""


class ClusterServices:
    """The other brokers as this one knows them, and the placement of bundles: everything that lookups need."""

    def __init__(
        self,
        metadata: MetadataStore,
        namespaces: NamespaceRegistry,
        config: BrokerConfig,
        clock: Clock,
        rng: random.Random,
        network: Network,
        processes: ProcessWatch,
        scope: TaskScope,
    ) -> None:
        self.peers = Peers(
            network,
            Credentials.parse(
                config.settings.broker_client_authentication_plugin,
                config.settings.broker_client_authentication_parameters,
            ),
            TlsTrust(
                config.settings.broker_client_trust_certs_file_path,
                verify_hostname=config.settings.tls_hostname_verification_enabled,
            ),
            config.settings.broker_client_tls_enabled,
        )
        self.address = BrokerAddress(
            config.service_url, config.service_url_tls, config.web_service_url, config.web_service_url_tls
        )
        self.brokers = BrokerDirectory(metadata)
        self.gate = SessionGate(self.brokers, self.address.broker_id, self.peers.is_ready, clock)
        self.owners = OwnerIndex(metadata)
        self.registration = Registration(metadata, self.address, processes)
        self.session_probe = SessionProbe(metadata, processes, scope)
        self.leadership = Leadership(metadata, self.address.broker_id, self.address.web_service_url)
        self.ownership = Ownership(metadata, namespaces, self.address, clock)
        self.reader = ClusterReader(metadata, self.brokers, self.owners, namespaces, config.settings.cluster_name)
        self.load_placement = LoadPlacement(self.reader, LeaderMemory(), config, clock, rng)
        self.placement: Placement = (
            self.load_placement
            if config.settings.load_balancer_enabled
            else LeastBundles(self.owners, self.brokers, rng)
        )
        self.reachability = Reachability(network, clock)
        self.finder = BrokerFinder(
            ownership=self.ownership,
            brokers=self.brokers,
            registration=self.registration,
            leadership=self.leadership,
            placement=self.placement,
            reachability=self.reachability,
            clock=clock,
        )

    async def others(self) -> list[BrokerAddress]:
        """The brokers beside this one that answer: one that was killed or hangs keeps its registration until its session ends."""
        here = self.ownership.broker_id
        found = [await self.brokers.get(each) for each in await self.brokers.live() if each != here]
        return [each for each in found if each is not None and not await self.reachability.away(each)]

    def close(self) -> None:
        self.session_probe.close()
        self.reader.close()
        self.brokers.close()
        self.owners.close()
        self.ownership.close()


class Membership:
    """`join` once everything can be served; `leave` before the connections are closed."""

    def __init__(
        self,
        metadata: MetadataStore,
        view: ClusterServices,
        moves: BundleMoves,
        connections: ConnectionListener,
        config: BrokerConfig,
        scope: TaskScope,
    ) -> None:
        self._view = view
        self._moves = moves
        self._connections = connections
        self._config = config
        self._scope = scope
        self._leaving = False
        self.sessions_lost = 0
        """Sessions lost since the start."""
        view.ownership.touched = moves.touched
        self._unhear: Callable[[], None] = metadata.on_session(self._session)
        self._unwatch: Callable[[], None] = metadata.watch(self._brokers_changed, paths.BROKERS_PATH)

    async def join(self) -> None:
        """Register this broker, so that it is given bundles."""
        await self._view.registration.register()

    async def look_around(self) -> None:
        """Called once after joining: reads the other brokers and begins to watch processes of this machine."""
        await self._view.session_probe.start()
        await self._meet()

    def _brokers_changed(self, path: str) -> None:
        """Newcomers are looked at when they come: once the store is away it would be too late to ask where they are."""
        known = {address.broker_id for address in self._view.brokers.remembered}
        if not self._leaving and path.rpartition("/")[2] not in known:
            self._scope.spawn(self._meet(), "meet other brokers", REPORTED)

    async def _meet(self) -> None:
        try:
            await self._view.brokers.live()
        except MetadataError as error:
            logger.info("other brokers not looked at: %s", error)

    async def leave(self) -> None:
        """Take no new bundles, then hand over all. Bundles that cannot be handed over become free when the session ends."""
        self._leaving = True
        self._unhear()
        self._unwatch()
        timeout_s = self._config.settings.broker_shutdown_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self._view.registration.withdraw()
                await self._view.leadership.resign()
                await self._moves.drain()
        except (MetadataError, TimeoutError) as error:
            logger.warning("not all bundles were handed over: %s", error or f"timed out after {timeout_s:g} s")

    def _session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self.sessions_lost += 1
            logger.error(
                "the session with the metadata store is lost: all topics are given up, others may serve them from now on. "
                "Raise metadataStoreSessionTimeoutMillis if this happens without an outage"
            )
            self._view.gate.close()
            self._connections.cut()
            self._view.registration.registered = False
            self._moves.abandon_all()
        elif event is SessionEvent.SESSION_REESTABLISHED:
            self._scope.supervise(self._rejoin, "join again")

    async def _rejoin(self) -> None:
        while not self._leaving:
            try:
                await self.join()
            except MetadataError as error:
                logger.warning("not registered again yet: %s", error)
                await asyncio.sleep(REJOIN_S)
                continue
            self._view.gate.open()
            logger.info("registered again under a new session")
            return
