"""A connection that is gone leaves nothing behind that only a collection of garbage would find: those of old objects come seldom, and hold
every message up for as long as they take."""

from __future__ import annotations

import gc
import weakref
from asyncio import BaseTransport
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.broker.connection.session import Session
from tests.support.in_process import InProcessServer
from tests.support.waiting import wait_until


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_a_connection_that_is_gone_is_freed_without_a_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Session]] = []
    connect = Session.connection_made

    def connection_made(session: Session, transport: BaseTransport) -> None:
        made.append(weakref.ref(session))
        connect(session, transport)

    monkeypatch.setattr(Session, "connection_made", connection_made)
    with InProcessServer(tmp_path / "data") as server:
        for _ in range(3):
            client = pulsar.Client(server.service_url)
            consumer = client.subscribe("t", "s")
            producer = client.create_producer("t")
            producer.send(b"x")
            consumer.acknowledge(consumer.receive(10_000))
            client.close()
        assert len(made) >= 3
        wait_until(lambda: all(session() is None for session in made))
