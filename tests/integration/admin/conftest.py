"""The admin API of a real server, called as any HTTP client would."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from magnetar.testing.server import ServerProcess

_names = itertools.count()


class Api:
    """`api.put("tenants/t", {...})` below /admin/v2; the status must be the expected one. Answers the JSON body, if any."""

    def __init__(self, server: ServerProcess) -> None:
        self.base = server.http_url
        self.session = requests.Session()

    def call(self, method: str, path: str, body: object = None, status: int = 200, **options: Any) -> requests.Response:
        url = path if path.startswith("http") else f"{self.base}/admin/v2/{path}"
        if body is not None:
            options["json"] = body
        response = self.session.request(method, url, timeout=60, **options)
        assert response.status_code == status, f"{method} {path}: {response.status_code} {response.text}"
        return response

    def get(self, path: str, status: int = 200) -> Any:
        response = self.call("GET", path, status=status)
        return response.json() if response.content else None

    def put(self, path: str, body: object = None, status: int = 204) -> None:
        self.call("PUT", path, body, status)

    def post(self, path: str, body: object = None, status: int = 204) -> None:
        self.call("POST", path, body, status)

    def delete(self, path: str, status: int = 204) -> None:
        self.call("DELETE", path, status=status)

    def reason(self, method: str, path: str, body: object = None, *, status: int) -> str:
        """The reason of a refusal."""
        document = self.call(method, path, body, status).json()
        assert list(document) == ["reason"]
        return str(document["reason"])


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    api = Api(server)
    yield api
    api.session.close()


@pytest.fixture
def namespace(api: Api) -> str:
    """`tenant/namespace`, empty and used by no other test."""
    name = f"public/ns{next(_names)}"
    api.put(f"namespaces/{name}")
    return name
