"""From the configuration file's settings to what the broker takes."""

from __future__ import annotations

from magnetar.broker.config import BrokerConfig
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.processes.listeners import Listeners


def broker_config(settings: BrokerSettings, listeners: Listeners, *, only_broker: bool = False) -> BrokerConfig:
    """The broker's view of the configuration, with the ports that are really bound."""
    return BrokerConfig(
        settings=settings,
        advertised_address=settings.advertised_host,
        port=listeners.binary.port,
        http_port=listeners.http.port,
        port_tls=listeners.binary_tls.port if listeners.binary_tls is not None else 0,
        http_port_tls=listeners.http_tls.port if listeners.http_tls is not None else 0,
        only_broker=only_broker,
    )
