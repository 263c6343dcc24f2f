"""Raw connections to the module's server, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.support.raw_transactions import RawTransactions


@pytest.fixture
def dial() -> Iterator[Callable[[ServerProcess], RawTransactions]]:
    """`dial(server)`: another connection."""
    opened: list[RawTransactions] = []

    def open_one(server: ServerProcess) -> RawTransactions:
        opened.append(RawTransactions(server.port))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def raw(server: ServerProcess, dial: Callable[[ServerProcess], RawTransactions]) -> RawTransactions:
    return dial(server)


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api(server)
