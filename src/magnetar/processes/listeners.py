"""The addresses of a broker, bound before anything is built that must name them."""

from __future__ import annotations

from magnetar.base.admission import Admission, Share
from magnetar.base.errors import StartupError
from magnetar.base.network import AsyncioNetwork, SocketListener
from magnetar.broker.settings.broker import BrokerSettings


class Listeners:
    """The bound addresses; the TLS ones are None unless configured. Raises StartupError, leaving nothing bound."""

    def __init__(self, config: BrokerSettings) -> None:
        self.admission = Admission(
            protocol_max=config.max_connections,
            http_max=config.max_http_server_connections,
            per_address_max=config.max_connections_per_ip,
            settings=("brokerMaxConnections", "maxHttpServerConnections", "brokerMaxConnectionsPerIp"),
        )
        self._network = AsyncioNetwork()
        self._address = config.bind_address
        self._bound: list[SocketListener] = []
        try:
            binary, http = self.admission.protocol, self.admission.http
            self.binary = self._bind(config.port, binary)
            self.http = self._bind(config.http_port, http)
            self.binary_tls = self._bind(config.port_tls, binary) if config.port_tls >= 0 else None
            self.http_tls = self._bind(config.http_port_tls, http) if config.http_port_tls >= 0 else None
        except StartupError:
            for listener in self._bound:
                listener.socket.close()
            raise

    def _bind(self, port: int, share: Share) -> SocketListener:
        listener = self._network.bind(self._address, port, share)
        self._bound.append(listener)
        return listener

    async def close(self) -> None:
        for listener in self._bound:
            await listener.close()
