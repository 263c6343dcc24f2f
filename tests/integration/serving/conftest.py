"""One pipeline and one server for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: pip install 'magnetar[spark]'")
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")

import psycopg

from tests.support.served_views import ViewServer, make_pipeline, serving
from tests.support.state_tables import StateTableHarness


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def harness(home: Path) -> StateTableHarness:
    return make_pipeline(home / "pipelines" / "flights")


@pytest.fixture(scope="module")
def server(home: Path, harness: StateTableHarness) -> Iterator[ViewServer]:
    with serving(home, "flights") as found:
        yield found


@pytest.fixture
def connection(server: ViewServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.dsn(), autocommit=True) as found:
        yield found
