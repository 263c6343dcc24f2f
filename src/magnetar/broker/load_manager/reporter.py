"""This broker's load report: measured every few seconds, written to `/loadbalance/brokers/<id>` when it says something new."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from magnetar import __version__
from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, report_document, worth_reporting
from magnetar.broker.load_manager.host import HostUsage
from magnetar.broker.namespaces.brokers import Registration
from magnetar.broker.settings.load_balance import LoadBalanceSettings

logger = logging.getLogger(__name__)

IDENTITY: Final[Mapping[str, Any]] = {
    "brokerVersionString": __version__,
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "persistentTopicsEnabled": True,
    "nonPersistentTopicsEnabled": True,
    "protocols": {},
}
"""Fields of a report besides load and addresses."""


class Reporter:
    """Runs for as long as the broker; it reports also where nobody balances loads, for people to see."""

    def __init__(
        self,
        *,
        registration: Registration,
        loads: Callable[[], Awaitable[dict[str, BundleLoad]]],
        config: LoadBalanceSettings,
        clock: Clock,
    ) -> None:
        self._registration = registration
        self._loads = loads
        self._config = config
        self._clock = clock
        self._host = HostUsage(clock, config.load_balancer_override_broker_nic_speed_gbps)
        self._started_ms = clock.now_ms()
        self._written: BrokerLoad | None = None
        self.load = BrokerLoad(started_ms=self._started_ms)
        """The load as last measured."""
        self.reports_written = 0
        """Reports written since the start."""

    @property
    def document(self) -> dict[str, Any]:
        """The last measurement in Pulsar's form."""
        return report_document(self.load, IDENTITY, self._written)

    async def current(self) -> dict[str, Any]:
        """The same, with what the bundles do now; the host's figures are those of the last measurement."""
        now = replace(self.load, bundles=await self._loads(), updated_ms=self._clock.now_ms())
        return report_document(now, IDENTITY, self._written)

    async def run(self) -> None:
        """Report until cancelled. A failed write is only logged: the next report replaces it."""
        while True:
            try:
                await self.report()
            except MagnetarError as error:
                logger.warning("load report not written error=%s", error)
            await asyncio.sleep(self._config.load_balancer_report_update_min_interval_ms / 1000)

    async def report(self) -> None:
        """Measure now, and write it if that is worth it."""
        bundles = await self._loads()
        host = self._host.sample()
        self.load = BrokerLoad(*host, bundles=bundles, updated_ms=self._clock.now_ms(), started_ms=self._started_ms)
        reason = worth_reporting(self._written, self.load, self._config)
        if reason is None:
            return
        await self._registration.report(self.document)
        self._written = self.load
        self.reports_written += 1
        logger.debug("load report written reason=%s", reason)
