"""pytest fixtures with a real Pulsar-compatible server. Found by pytest as soon as magnetar is installed.

    def test_orders(magnetar_client, magnetar_namespace):
        producer = magnetar_client.create_producer(f"persistent://{magnetar_namespace}/orders")

`magnetar` is one server per test session (per worker under pytest-xdist) on free ports and a directory of its own. With
`--magnetar-url` and `--magnetar-http-url` the same tests run against any other server, Apache Pulsar included.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from magnetar.testing.server import ServerProcess

if TYPE_CHECKING:
    import pulsar

REQUEST_TIMEOUT_S = 30.0

TENANT = "public"
DEFAULT_HTTP_PORT = 8080


class AdminCallError(RuntimeError):
    """The server refused an admin call, or could not be reached."""


def call(http_url: str, method: str, path: str, expected: tuple[int, ...]) -> None:
    """`method` on `path` without a body. Raises AdminCallError unless the status is one of `expected`."""
    parts = urlsplit(http_url)
    connection = HTTPConnection(parts.hostname or "localhost", parts.port or 8080, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request(method, path, headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except OSError as error:
        raise AdminCallError(f"{method} {http_url}{path}: {error}; is the server running?") from error
    finally:
        connection.close()
    if response.status not in expected:
        raise AdminCallError(f"{method} {http_url}{path}: {response.status} {text}")


def create_namespace(http_url: str, namespace: str) -> None:
    call(http_url, "PUT", f"/admin/v2/namespaces/{namespace}", expected=(204,))


def delete_namespace(http_url: str, namespace: str) -> None:
    """Delete a namespace with all its topics. Nothing happens if the test has deleted it itself."""
    call(http_url, "DELETE", f"/admin/v2/namespaces/{namespace}?force=true", expected=(204, 404))


_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class MagnetarServer:
    """The addresses of the server under test. `process` is None for a server given by `--magnetar-url`."""

    service_url: str
    http_url: str
    process: ServerProcess | None = None

    def log(self) -> str:
        """The server's log so far; empty for a server that this session did not start."""
        return self.process.log() if self.process is not None else ""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("magnetar", "a real Pulsar-compatible server for tests")
    group.addoption(
        "--magnetar-url", metavar="URL", help="use the server at pulsar://HOST:PORT instead of starting one"
    )
    group.addoption(
        "--magnetar-http-url",
        metavar="URL",
        help=f"its admin API [default: http://HOST:{DEFAULT_HTTP_PORT} with the host of --magnetar-url]",
    )
    group.addoption(
        "--magnetar-set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of the server that is started; `magnetar config list` shows them all",
    )


@pytest.fixture(scope="session")
def magnetar(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MagnetarServer]:
    """A server that is ready: `service_url` for clients, `http_url` for the admin API."""
    url = request.config.getoption("--magnetar-url")
    if url:
        yield MagnetarServer(url, request.config.getoption("--magnetar-http-url") or _http_url(url))
        return
    settings = _settings(request.config.getoption("--magnetar-set"))
    process = ServerProcess(tmp_path_factory.mktemp("magnetar") / "data", settings).start()
    try:
        yield MagnetarServer(process.service_url, process.http_url, process)
    finally:
        process.stop()


@pytest.fixture
def magnetar_namespace(magnetar: MagnetarServer) -> Iterator[str]:
    """A fresh namespace, `public/pytest-...`, deleted with its topics after the test."""
    name = f"{TENANT}/pytest-{os.getpid()}-{os.urandom(4).hex()}-{next(_numbers)}"
    try:
        create_namespace(magnetar.http_url, name)
    except AdminCallError as error:
        pytest.fail(f"magnetar_namespace: {error}", pytrace=False)
    yield name
    delete_namespace(magnetar.http_url, name)


@pytest.fixture
def magnetar_client(magnetar: MagnetarServer) -> Iterator[pulsar.Client]:
    """The official client, connected to the server and closed after the test."""
    import pulsar

    client = pulsar.Client(magnetar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def _http_url(service_url: str) -> str:
    host = service_url.split("://", 1)[-1].split(",")[0].rsplit(":", 1)[0]
    return f"http://{host}:{DEFAULT_HTTP_PORT}"


def _settings(words: list[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator:
            raise pytest.UsageError(f"--magnetar-set {word}: expected KEY=VALUE")
        settings[key] = value
    return settings
