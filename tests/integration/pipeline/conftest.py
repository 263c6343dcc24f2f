"""Topics as DataFrames, through the one SparkSession of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'magnetar[spark]'")

from pyspark.sql import SparkSession

from magnetar.testing.server import ServerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the JVM, a minute on a machine that is busy with other things."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """As for other tests, but it keeps topics that nobody uses for a minute, on a busy machine a run of Spark takes longer than that; and
    messages that were read, which go at the next look at retention: a view that comes later or is built again reads them once more."""
    settings = {
        "brokerDeleteInactiveTopicsEnabled": "false",
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
    }
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", settings).start()
    yield process
    process.close()


@pytest.fixture
def read(spark: SparkSession, server: ServerProcess) -> Callable[..., Any]:
    """`read(topic="a", startingOffsets=...)`: the DataFrame of a batch read from the module's server."""

    def load(**options: object) -> Any:
        texts = {name: str(value) for name, value in options.items()}
        return spark.read.format("magnetar").options(**{"service.url": server.service_url} | texts).load()

    return load
