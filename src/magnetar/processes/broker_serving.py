"""Opens a started broker's ports."""

from __future__ import annotations

import logging

from magnetar.admin.server import AdminServer
from magnetar.broker.service import Broker
from magnetar.processes.listeners import Listeners

logger = logging.getLogger(__name__)


async def serve_broker(broker: Broker, admin: AdminServer, listeners: Listeners) -> None:
    """From now on clients may connect: first to the admin API, then to the binary protocol."""
    tls = broker.security.tls
    if tls is not None and listeners.http_tls is not None:
        await admin.serve(listeners.http_tls, tls.context)
    await admin.serve(listeners.http)
    if tls is not None and listeners.binary_tls is not None:
        await broker.serve(listeners.binary_tls, tls.context)
    await broker.serve(listeners.binary)
    for url in (broker.config.service_url_tls, broker.config.web_service_url_tls):
        if url:
            logger.info("serving TLS url=%s", url)
