"""The two admin calls that the fixtures need, over HTTP, against magnetar or Apache Pulsar."""

from __future__ import annotations

from http.client import HTTPConnection
from urllib.parse import urlsplit

REQUEST_TIMEOUT_S = 30.0


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
    """With all its topics. One that the test has deleted itself is fine."""
    call(http_url, "DELETE", f"/admin/v2/namespaces/{namespace}?force=true", expected=(204, 404))
