"""A broker that is told nothing behaves as its settings are declared."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from magnetar.broker.config import BrokerConfig
from magnetar.processes.broker_config import broker_config
from magnetar.processes.configurations import StandaloneConfig
from magnetar.processes.listeners import Listeners


def test_the_defaults_of_a_broker_are_the_declared_ones() -> None:
    """Three defaults once differed: of the expiry check's interval, the retention check's, and the youngest age of a rollover."""

    async def configured() -> BrokerConfig:
        listeners = Listeners(StandaloneConfig(port=0, http_port=0))
        try:
            return broker_config(StandaloneConfig(), listeners)
        finally:
            await listeners.close()

    plain = BrokerConfig()
    bound = {"advertised_address": plain.advertised_address, "port": plain.port, "http_port": plain.http_port}
    assert replace(asyncio.run(configured()), **bound) == plain
