"""Brokers that cannot reach each other, or in one direction only: who asks gets an error in time, and answers when all is well again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar.base.network import AsyncioNetwork
from magnetar.broker import peers as peers_module
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.naming import TopicName
from magnetar.broker.peers import READY_TIMEOUT_S, Peers, RemoteTopics
from magnetar.client.credentials import Credentials, TlsTrust
from tests.support.stalling_proxy import Direction, StallingProxy

ANSWER_S = 0.5


class Answers(BaseHTTPRequestHandler):
    """Another broker, as far as it is asked here."""

    def do_GET(self) -> None:
        body = b'{"partitions": 7}' if "partitions" in self.path else b"ok"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Not a word."""


@pytest.fixture
def proxy() -> Iterator[StallingProxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    between = StallingProxy(server.server_address[1])
    yield between
    between.close()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("direction", ["up", "down", "both"])
async def test_a_peer_that_is_cut_off(
    proxy: StallingProxy, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{proxy.port}"
    other = BrokerAddress(f"pulsar://127.0.0.1:{proxy.port}", "", url, "")
    topic = TopicName.parse("persistent://public/default/t")
    asked = Peers(AsyncioNetwork(), Credentials.parse("", ""), TlsTrust("", verify_hostname=True))
    assert await asked.is_ready(other)
    proxy.stall(direction)
    async with asyncio.timeout(READY_TIMEOUT_S + 10):
        assert not await asked.is_ready(other)
    with monkeypatch.context() as patch:
        patch.setattr(peers_module, "ANSWER_TIMEOUT_S", ANSWER_S)
        async with asyncio.timeout(ANSWER_S + 10):
            with pytest.raises(ServiceNotReadyError, match="does not answer"):
                await RemoteTopics(asked).partitions(other, topic, True)
    proxy.heal()
    assert await asked.is_ready(other)
    assert await RemoteTopics(asked).partitions(other, topic, True) == 7
