"""The admin API's HTTP server."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.admin.app import AdminApp
from magnetar.admin.context import AdminContext, AnyStorage, Storage
from magnetar.admin.http_server import HttpServer
from magnetar.admin.settings import runtime_settings
from magnetar.base.broker_settings import BrokerSettings
from magnetar.broker.service import Broker


class AdminServer(HttpServer):
    """`async with AdminServer(...) as admin: await admin.serve(bound_socket)`; once per socket."""

    def __init__(
        self,
        broker: Broker,
        config: BrokerSettings | None = None,
        storage: Storage | None = None,
        shut_down: Callable[[], None] | None = None,
    ) -> None:
        """`config` is what `brokers/configuration/runtime` shows; without one, what the broker itself was given.

        `shut_down` is what `brokers/shutdown` calls; without it that is refused.
        """
        settings = runtime_settings(config if config is not None else broker.config)
        super().__init__(AdminApp(AdminContext(broker, settings, storage or AnyStorage(), shut_down)))
