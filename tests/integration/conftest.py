"""A real server per test module, a fresh client and fresh topic names per test."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from magnetar.admin.client import AdminClient
from magnetar.base.errors import StartupError
from magnetar.base.java import find_java
from magnetar.testing.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_names = itertools.count()


def serving(process: ServerProcess) -> Iterator[ServerProcess]:
    """For a fixture: started, and gone afterwards with its data; its log stays. Hundreds of servers would fill a disk."""
    try:
        yield process.start()
    finally:
        process.close()
        shutil.rmtree(process.data_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Shared by a module: tests use their own topics on it."""
    yield from serving(ServerProcess(tmp_path_factory.mktemp("server") / "data"))


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """`start_server(**settings)`: a server of the test's own, with Pulsar's setting names."""
    started: list[ServerProcess] = []

    def start(**settings: object) -> ServerProcess:
        process = ServerProcess(tmp_path / f"data{len(started)}", settings)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., pulsar.Client]]:
    """`connect(url)`: official clients that are closed after the test."""
    clients: list[pulsar.Client] = []

    def open_client(url: str, **options: object) -> pulsar.Client:
        options.setdefault("operation_timeout_seconds", 30)
        options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client = pulsar.Client(url, **options)
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        try:
            client.close()
        except pulsar.PulsarException:
            continue  # the server of a crash test may be gone for good


@pytest.fixture
def client(server: ServerProcess, connect: Callable[..., pulsar.Client]) -> pulsar.Client:
    return connect(server.service_url)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"persistent://public/default/test-{next(_names)}"


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[AdminClient]:
    with AdminClient(server.http_url) as client:
        yield client


@pytest.fixture
def new_scalable_topic(admin: AdminClient) -> Callable[[int], str]:
    """`new_scalable_topic(segments)`: a scalable topic that no other test uses, with that many segments."""

    def create(segments: int) -> str:
        name = f"topic://public/default/scalable-{next(_names)}"
        admin.scalable_topics.create(name, segments)
        return name

    return create


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One for all tests: a JVM takes longer to start than any of them, and looks for Python's data sources once in its life."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'magnetar[spark]'")
    from magnetar.pipeline.session import build_session

    try:
        find_java()
    except StartupError as error:
        pytest.skip(f"Spark needs Java: {error}")
    session = build_session("local[2]")
    yield session
    session.stop()
