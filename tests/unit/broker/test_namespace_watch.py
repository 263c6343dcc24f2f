"""A client that watches the scalable topics of a namespace is told of every change, also when the metadata service fails for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.base.errors import MetadataError
from magnetar.broker.connection.handlers import scalable
from magnetar.broker.connection.handlers.scalable import NamespaceWatch
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand


class Broker:
    """What a watch needs of a session and its broker. The next `failures` questions for the topics fail."""

    closed = False

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.failures = 0
        self.listeners: list[Callable[[], None]] = []
        self.written: list[bytes] = []
        self.tasks: set[asyncio.Task[None]] = set()
        scalable = SimpleNamespace(records=SimpleNamespace(names=self._listed), listen_to_namespace=self._listen)
        self.context = SimpleNamespace(
            scalable=scalable,
            namespaces=SimpleNamespace(policies=self._policies),
            scope=SimpleNamespace(spawn=self._spawn),
        )

    def write(self, frame: bytes) -> None:
        self.written.append(frame)

    def change(self, *names: str) -> None:
        self.names = set(names)
        for listener in self.listeners:
            listener()

    async def _policies(self, namespace: object) -> None: ...

    async def _listed(self, namespace: object, properties: object) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise MetadataError("no answer")
        return sorted(self.names)

    def _listen(self, namespace: object, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def _spawn(self, work: Any, name: str, on_failure: object) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)


async def watched(broker: Broker) -> NamespaceWatch:
    command = BaseCommand(
        type=BaseCommand.WATCH_SCALABLE_TOPICS, watchScalableTopics={"namespace": "t/ns", "watch_id": 7}
    )
    watch = NamespaceWatch(broker, command)  # type: ignore[arg-type]
    await watch.tell_all()
    return watch


async def written(broker: Broker, count: int) -> None:
    async with asyncio.timeout(60):
        while len(broker.written) < count:
            await asyncio.sleep(0.005)


async def test_a_change_is_told_after_errors_of_the_metadata_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalable, "FINISH_FIRST_S", 0.01)
    broker = Broker()
    watch = await watched(broker)
    broker.failures = 3
    broker.change("topic://t/ns/new")
    await written(broker, 2)
    assert b"topic://t/ns/new" in broker.written[1]
    assert broker.failures == 0
    watch.end()


async def test_nothing_is_told_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalable, "FINISH_FIRST_S", 0.01)
    broker = Broker()
    watch = await watched(broker)
    broker.failures = 1_000_000
    broker.change("topic://t/ns/new")
    async with asyncio.timeout(60):
        while not broker.tasks:
            await asyncio.sleep(0.005)
    watch.end()
    broker.failures = 0
    await asyncio.gather(*broker.tasks)
    await asyncio.sleep(0.1)
    assert len(broker.written) == 1
    assert broker.listeners == []
