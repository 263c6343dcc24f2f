"""Raw clients of scalable topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from magnetar.testing.server import ServerProcess
from tests.support.raw_scalable import ScalableClient


@pytest.fixture
def connected(server: ServerProcess) -> Iterator[Callable[[], ScalableClient]]:
    clients: list[ScalableClient] = []

    def connect() -> ScalableClient:
        client = ScalableClient(server.port)
        client.connect()
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()
