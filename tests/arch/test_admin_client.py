"""The typed client and the OpenAPI document are held against each other: every method is a documented operation, and the other way."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from magnetar.admin.client import AdminClient
from magnetar.admin.client.noun import Noun
from magnetar.admin.client.policies import NamespacePolicies, NamespacePolicy, TopicPolicies, TopicPolicy
from magnetar.admin.documents.topics import MessageId
from magnetar.admin.openapi import document
from magnetar.admin.routes import all_routes

VALUES: dict[str, Any] = {"namespace": "t/n", "topic": "persistent://t/n/x", "domain": "persistent"}

WITHOUT_METHOD = (
    "/admin/v2/worker/",
    "/admin/v3/transactions/participants",  # between brokers
    "/admin/v2/segments",  # between brokers
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/segments/{segmentId}/subscription",  # between brokers
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/clusters",  # between clusters
    "/ws/v2/",
    "/topics/",
    "/admin/v3/functions",
    "/admin/v3/sources",
    "/admin/v3/sinks",
    "/status.html",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/admin/v2/namespaces/{tenant}/{namespace}/removeOffloadPolicies",
    "/admin/v2/bookies",
)
"""There is no functions worker; the first two are for programs without a client library, four are for other tools; one is an older
name; bookies have their own commands."""

FORMER_METHODS = {("get", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/analyzeBacklog")}
"""What clients before Pulsar 3 use where the typed client uses another method of the same path."""


class Recorded(Exception):
    """Ends a call once it is known where it goes."""


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str, frozenset[str], Any]] = []

    def __call__(
        self,
        method: str,
        template: str,
        names: Mapping[str, object],
        query: Mapping[str, object] | None = None,
        body: object = None,
        *,
        has_body: bool = False,
    ) -> Any:
        given = frozenset(name for name, value in (query or {}).items() if value is not None)
        self.calls.append((method, template, given, body))
        raise Recorded


def value_of(name: str, annotation: str) -> Any:
    if name in VALUES:
        return VALUES[name]
    for text, value in (("list", ["x"]), ("Texts", ["x"]), ("dict", {"a": "b"}), ("bool", True), ("int", 1)):
        if annotation.startswith(text):
            return value
    return MessageId(ledger_id=1, entry_id=1) if "MessageId" in annotation else "x"


def argument_sets(method: Any) -> Iterator[dict[str, Any]]:
    """The required arguments, with each choice of the optional ones."""
    parameters = [item for item in inspect.signature(method).parameters.values()]
    required = [item for item in parameters if item.default is inspect.Parameter.empty]
    optional = [item for item in parameters if item.default is not inspect.Parameter.empty]
    for size in range(len(optional) + 1):
        for chosen in itertools.combinations(optional, size):
            yield {item.name: value_of(item.name, str(item.annotation)) for item in (*required, *chosen)}


def nouns(client: AdminClient) -> Iterator[Any]:
    for noun in vars(client).values():
        if isinstance(noun, Noun):
            yield noun
        elif isinstance(noun, NamespacePolicies | TopicPolicies):
            yield from vars(noun).values()


@pytest.fixture(scope="module")
def recorded() -> list[tuple[str, str, frozenset[str], Any]]:
    recorder = Recorder()
    client = AdminClient("http://nowhere:1")
    for noun in nouns(client):
        noun._call = recorder
        for name, method in inspect.getmembers(noun, inspect.ismethod):
            if name.startswith("_"):
                continue
            for arguments in argument_sets(method):
                before = len(recorder.calls)
                with pytest.raises(Recorded):
                    method(**arguments)
                assert len(recorder.calls) == before + 1, f"{type(noun).__name__}.{name}"
    return recorder.calls


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document(all_routes())


def test_every_call_is_documented(recorded: list[Any], described: dict[str, Any]) -> None:
    for method, template, query, _ in recorded:
        operation = described["paths"].get(template, {}).get(method.lower())
        assert operation is not None, f"{method} {template}"
        known = {item["name"] for item in operation["parameters"] if item["in"] == "query"}
        assert query <= known, f"{method} {template}: {query - known}"


def test_every_operation_has_a_method(recorded: list[Any], described: dict[str, Any]) -> None:
    called = {(method.lower(), template) for method, template, _, _ in recorded}
    missing = [
        f"{method.upper()} {path}"
        for path, methods in described["paths"].items()
        for method in methods
        if (method, path) not in called | FORMER_METHODS and not path.startswith(WITHOUT_METHOD)
    ]
    assert missing == []


def test_bodies_go_where_bodies_are_taken(recorded: list[Any], described: dict[str, Any]) -> None:
    for method, template, _, body in recorded:
        if body is not None:
            assert "requestBody" in described["paths"][template][method.lower()], f"{method} {template}"


def test_policies_have_the_types_that_are_documented(described: dict[str, Any]) -> None:
    client = AdminClient("http://nowhere:1")
    for noun in nouns(client):
        if not isinstance(noun, NamespacePolicy | TopicPolicy):
            continue
        answer = described["paths"][noun._template]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        (mine,), _ = msgspec.json.schema_components([noun._kind], ref_template="#/components/schemas/{name}")
        if "$ref" in answer:
            assert mine == answer, noun._template
        elif "enum" in answer:
            assert mine["type"] == "string", noun._template
        else:
            assert mine["type"] == answer["type"], noun._template


def test_importing_the_client_starts_nothing_of_a_server() -> None:
    code = (
        "import sys; import magnetar.admin.client; "
        "found = [m for m in ('httptools', 'starlette', 'magnetar.broker.service', 'rocksdict', 'pulsar') if m in sys.modules]; "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
